"""Rows as a plot: one bar for each row with jobs per second, scene by scene, written as SVG by hand."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tests.bench.row import LIMIT, OURS, Row

BAR, GAP, LABEL, WIDTH, VALUE = 18, 6, 330, 560, 90
COLOURS = {OURS: "#2f6f4f", LIMIT: "#b9b9b9"}
OTHER = "#8a5a2b"


def svg(rows: Sequence[Row]) -> str:
    """Return the plot; each scene has a scale of its own, since a no-op is no mail."""
    shown = [row for row in rows if "jobs_per_s" in row.figures]
    scenes = list(dict.fromkeys(row.scene for row in shown))
    parts: list[str] = []
    top = GAP
    for scene in scenes:
        bars = sorted((row for row in shown if row.scene == scene), key=lambda row: -row.figures["jobs_per_s"])
        parts.append(f'<text x="{GAP}" y="{top + BAR - 4}" font-weight="bold">{escape(scene)}: jobs/s</text>')
        top += BAR + GAP
        most = bars[0].figures["jobs_per_s"]
        for row in bars:
            parts += _bar(row, top, most)
            top += BAR + GAP
        top += GAP
    width = LABEL + WIDTH + VALUE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
        ' font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _bar(row: Row, top: int, most: float) -> list[str]:
    value = row.figures["jobs_per_s"]
    length = round(value / most * WIDTH, 1) if most else 0
    text = ", ".join(part for part in (row.by, row.how, row.note) if part)
    return [
        f'<text x="{LABEL - GAP}" y="{top + BAR - 5}" text-anchor="end">{escape(text[:58])}</text>',
        f'<rect x="{LABEL}" y="{top}" width="{length}" height="{BAR}" fill="{COLOURS.get(row.by, OTHER)}"/>',
        f'<text x="{LABEL + length + GAP}" y="{top + BAR - 5}">{value:,.0f}</text>',
    ]
