"""Instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from daemon.cli import times

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("+45s", NOW + timedelta(seconds=45)),
        ("+90m", NOW + timedelta(minutes=90)),
        ("+2h", NOW + timedelta(hours=2)),
        ("+3d", NOW + timedelta(days=3)),
        ("+1w", NOW + timedelta(weeks=1)),
        ("+1d12h", NOW + timedelta(days=1, hours=12)),
        ("2026-12-24T18:00:00+01:00", datetime(2026, 12, 24, 17, tzinfo=UTC)),
        ("2026-12-24 18:00Z", datetime(2026, 12, 24, 18, tzinfo=UTC)),
    ],
)
def test_a_time_is_absolute_or_counts_from_now(text: str, instant: datetime) -> None:
    """Both ways of writing mean one instant."""
    assert times.resolve(times.parse(text), NOW) == instant


@pytest.mark.parametrize("text", ["", "now", "+", "+3", "3d", "-3d", "+3x", "+3d ", "+٣d", "18:00", "2026-13-01T00:00Z"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    """The sentence shows how to write one."""
    with pytest.raises(ValueError, match=r"write 2026-12-24T18:00:00\+01:00"):
        times.parse(text)


@pytest.mark.parametrize("text", ["2026-12-24", "2026-12-24T18:00:00"])
def test_an_instant_without_a_zone_is_refused(text: str) -> None:
    """The server's zone and the writer's are seldom the same."""
    with pytest.raises(ValueError, match="no zone"):
        times.parse(text)


def test_a_distance_beyond_the_calendar_is_refused() -> None:
    """An overflow is a sentence, not a traceback."""
    with pytest.raises(ValueError, match="9999"):
        times.resolve(times.parse("+9999999d"), NOW)
