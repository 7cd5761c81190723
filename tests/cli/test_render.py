"""What strangers wrote, on an operator's terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from daemon.cli.render import as_json, distance, listing, printable, table


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x9b2J", "a\rb", "a\nb", "\u202egnp.exe", "\x00", "\ud800", "\u2028"])
def test_nothing_unprintable_reaches_a_terminal(hostile: str) -> None:
    """A reply of a relay can't move the cursor, clear the screen or turn the text around."""
    for shown in (printable(hostile), as_json(hostile), table(("A",), [(hostile,)], 80).splitlines()[1], listing({"a": hostile})):
        assert shown.isprintable()


def test_what_can_be_printed_is_left_alone() -> None:
    """Umlauts, ideographs and symbols are no danger."""
    assert printable("Zoë 東京 ✓ é") == "Zoë 東京 ✓ é"


def test_json_knows_instants_and_uuids() -> None:
    """An instant keeps its zone and its microseconds."""
    value = {"at": datetime(2026, 12, 1, 1, 2, 3, 4, tzinfo=UTC), "uid": UUID(int=1)}
    assert as_json(value) == '{"at": "2026-12-01T01:02:03.000004+00:00", "uid": "00000000-0000-0000-0000-000000000001"}'


def test_no_line_of_a_table_is_wider_than_the_terminal() -> None:
    """What doesn't fit is cut where it can be seen."""
    lines = table(("ID", "REASON"), [(1, "short"), (22, "x" * 200)], 40).splitlines()
    assert lines[:2] == ["ID  REASON", "1   short"]
    assert len(lines[2]) == 40
    assert lines[2].endswith("…")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=120), "2m"),
        (timedelta(hours=47), "47h"),
        (timedelta(days=400), "400d"),
    ],
)
def test_a_distance_is_short_and_rounded_down(span: timedelta, text: str) -> None:
    """Two of a unit, then the next one."""
    assert distance(span) == text
