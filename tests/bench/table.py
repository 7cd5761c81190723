"""Rows as a table for a terminal: each scene's own row first, the limits and the peers below it, with the ratio to ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.bench.row import OURS, Row, ratio

Cell = Callable[[float], str]


WORDS = 2
"""Columns that hold words, to the left; those to the right of them hold numbers."""


def _number(digits: int) -> Cell:
    return lambda value: f"{value:,.{digits}f}"


COLUMNS: Mapping[str, tuple[str, Cell]] = {
    "jobs_per_s": ("jobs/s", _number(0)),
    "worker_cpu_ms": ("CPU ms", _number(3)),
    "postgres_cpu_ms": ("PG ms", _number(3)),
    "sink_cpu_ms": ("sink ms", _number(3)),
    "wal_bytes": ("WAL B", _number(0)),
    "dead_tuples": ("dead", _number(2)),
    "hot_share": ("HOT", lambda value: f"{value:.0%}"),
    "statements": ("stmts", _number(3)),
    "claim_batch": ("claim", _number(1)),
    "mark_batch": ("mark", _number(1)),
    "record_batch": ("record", _number(1)),
    "peak_rss_mb": ("RSS MB", _number(0)),
    "ready_s": ("READY s", _number(2)),
    "p50_ms": ("p50 ms", _number(2)),
    "p90_ms": ("p90", _number(2)),
    "p99_ms": ("p99 ms", _number(2)),
    "call_us": ("PG us", _number(0)),
    "executed_us": ("of it call", _number(0)),
    "claim_p50_ms": ("claim p50", _number(2)),
    "claim_p99_ms": ("claim p99", _number(2)),
    "rows_fetched": ("rows", _number(1)),
    "waiting_on_locks": ("locks", _number(2)),
    "cpu_percent": ("CPU %", _number(3)),
    "postgres_cpu_percent": ("PG %", _number(3)),
    "statements_per_s": ("stmts/s", _number(2)),
    "other_cores": ("others", _number(2)),
}
"""The figures that have a column, with its heading; a column without any value is left out."""

LEGEND = """\
CPU, PG, sink: ms of CPU per job of the worker, of PostgreSQL with all its processes, of the sink. WAL B, dead, stmts: bytes of
WAL, row versions left dead, and statements per job; HOT: share of updates that touch no index. claim, mark, record: jobs in one
statement. rows: rows fetched by index per job. Each row is the repeat with the median, [smallest .. largest]. The ratio is to our
own row of the scene; more than 1 is better than we are. others: cores that programs kept busy which don't belong to the bench;
where that isn't near nought, only CPU, counts and ratios mean something. Compare within one run only."""


def render(rows: Sequence[Row]) -> str:
    """Return the table, one block for each kind of scene: the scenes with the same columns stand together."""
    blocks: list[list[Row]] = []
    for row in _ordered(rows):
        if blocks and _family(blocks[-1][0]) == _family(row):
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return "\n\n".join(_block(block, rows) for block in blocks)


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return lines whose columns stand below each other: the first two to the left, all others to the right."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < WORDS else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]


def _family(row: Row) -> str:
    return row.scene.replace(",", "-").partition("-")[0]


def _ordered(rows: Sequence[Row]) -> list[Row]:
    scenes = list(dict.fromkeys(row.scene for row in rows))
    families = list(dict.fromkeys(_family(row) for row in rows))
    return sorted(rows, key=lambda row: (families.index(_family(row)), scenes.index(row.scene), row.by != OURS))


def _block(block: Sequence[Row], rows: Sequence[Row]) -> str:
    shown = [name for name in COLUMNS if any(name in row.figures for row in block)]
    header = ["scene", "who", "ratio", "spread", *(COLUMNS[name][0] for name in shown)]
    lines = [header]
    for row in block:
        figures = row.figures
        cells = [COLUMNS[name][1](figures[name]) if name in figures else "" for name in shown]
        lines.append([row.scene, _who(row), _ratio(row, rows), _spread(row), *cells])
    kept = [column for column in range(len(header)) if column < WORDS or any(line[column] for line in lines[1:])]
    lines = [[line[column] for column in kept] for line in lines]
    notes = ["", *(row.note for row in block)]
    return "\n".join(f"{line}  {note}".rstrip() for line, note in zip(aligned(lines), notes, strict=True))


def _who(row: Row) -> str:
    return ", ".join(part for part in (row.by, row.how) if part)


def _ratio(row: Row, rows: Sequence[Row]) -> str:
    ours = next((each for each in rows if each.scene == row.scene and each.by == OURS), None)
    if ours is None or row is ours:
        return ""
    found = ratio(row, ours)
    return f"{found:.2f}" if found is not None else ""


def _spread(row: Row) -> str:
    if len(row.repeats) <= 1:
        return ""
    least, most = row.spread
    cell = COLUMNS.get(row.principal[0], ("", _number(2)))[1]
    return f"[{cell(least)} .. {cell(most)}]"
