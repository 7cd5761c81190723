"""What was measured: one row of the table, of one program, in one scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.figures import median_of

OURS = "mailslot"
LIMIT = "limit"

Figures = dict[str, float]
"""What one repeat has shown, by name; the units are in the names. What happens per job is divided by the jobs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program in one scene, measured some times; without repeats it couldn't be measured, and the note says why."""

    scene: str
    by: str
    repeats: Sequence[Figures]
    how: str = ""
    note: str = ""

    @property
    def figures(self) -> Figures:
        """Return the figures of one repeat, the one with the median of what the scene is about."""
        name, _ = self.principal
        return median_of(self.repeats, lambda figures: figures.get(name, 0.0)) if self.repeats else {}

    @property
    def principal(self) -> tuple[str, bool]:
        """Return the name of the figure that the scene is about, and whether more of it is better."""
        have = self.repeats[0] if self.repeats else {}
        name = next((name for name in ("jobs_per_s", "p50_ms", "cpu_percent") if name in have), "jobs_per_s")
        return name, name == "jobs_per_s"

    @property
    def spread(self) -> tuple[float, float]:
        """Return the smallest and the largest of what the scene is about."""
        name, _ = self.principal
        values = [figures.get(name, 0.0) for figures in self.repeats or [{}]]
        return min(values), max(values)

    def as_json(self) -> Mapping[str, Any]:
        """Return everything, for a file."""
        return {
            "scene": self.scene,
            "by": self.by,
            "how": self.how,
            "note": self.note,
            "median": self.figures,
            "repeats": list(self.repeats),
        }


def ratio(row: Row, ours: Row) -> float | None:
    """Return how many times as good as we a row is, by what their scene is about; None when that can't be said."""
    name, more_is_better = ours.principal
    theirs, own = row.figures.get(name), ours.figures.get(name)
    if not theirs or not own:
        return None
    return theirs / own if more_is_better else own / theirs
