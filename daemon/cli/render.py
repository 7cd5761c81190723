"""How rows look on a terminal and in JSON.

Addresses, subjects and replies come from strangers, so nothing unprintable reaches a terminal: an escape sequence in a relay's
reply must not move the operator's cursor. JSON is plain ASCII for the same reason, one object a line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta


def as_json(value: object) -> str:
    """Return `value` as one line of ASCII; instants as ISO 8601, what JSON doesn't know as its text."""
    return json.dumps(value, ensure_ascii=True, default=_plain, separators=(", ", ": "))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def printable(value: object) -> str:
    """Return the value's text with everything that isn't printable escaped; an instant in seconds, with its zone."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value))


def distance(span: timedelta) -> str:
    """Return a span in few letters, rounded down: `45s`, `12m`, `3h`, `9d`; one that is negative is `0s`."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> str:
    """Return lines of aligned columns, none longer than `width`: what doesn't fit is cut, with a dot in its place."""
    cells = [tuple(heads), *(tuple(printable(value) for value in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = ("  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in lines)


def listing(values: Mapping[str, object]) -> str:
    """Return a line for each value that there is, names in one column; None and empty text are left out."""
    shown = {name: printable(value) for name, value in values.items() if value is not None and value != ""}
    size = max((len(name) for name in shown), default=0)
    return "\n".join(f"  {name:<{size}}  {text}" for name, text in shown.items())
