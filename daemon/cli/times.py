"""Instants as people write them: `2026-12-24T18:00:00+01:00`, or `+3d` from now.

A relative time counts from the database's clock, so it is kept as a distance until that clock has been asked. Without a zone an
instant is refused: the server's zone and the writer's are seldom the same.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DISTANCE = re.compile(r"\+(?:[0-9]{1,9}[smhdw])+")
_PART = re.compile(r"([0-9]+)([smhdw])")


def parse(text: str) -> datetime | timedelta:
    """Return an aware instant or a distance; raises ValueError with a sentence that says how to write one."""
    if _DISTANCE.fullmatch(text):
        return timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text)))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} isn't a time; write 2026-12-24T18:00:00+01:00, or +90m, +3d, +1d12h from now") from None
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no zone; add Z or an offset such as +01:00")
    return instant


def resolve(when: datetime | timedelta, now: datetime) -> datetime:
    """Return the instant that is meant, given the database's clock; raises ValueError beyond the year 9999."""
    if isinstance(when, datetime):
        return when
    try:
        return now + when
    except OverflowError:
        raise ValueError("lies beyond the year 9999") from None
