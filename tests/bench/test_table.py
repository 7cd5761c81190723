"""What the bench prints and draws from rows."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tests.bench import plot, table
from tests.bench.row import LIMIT, OURS, Row, ratio

ROWS = [
    Row(
        "smtp-50",
        OURS,
        [{"jobs_per_s": 900.0, "wal_bytes": 800.0}, {"jobs_per_s": 1200.0}, {"jobs_per_s": 1000.0}],
        "concurrency 50",
    ),
    Row("smtp-50", LIMIT, [{"jobs_per_s": 4000.0}], "slots / delay"),
    Row("pickup", OURS, [{"p50_ms": 2.0, "p99_ms": 4.0}]),
    Row("pickup", "a queue 1.0", [{"p50_ms": 4.0}], "listen & notify"),
    Row("smtp-10", OURS, [{"jobs_per_s": 500.0}]),
    Row("smtp-10", "a queue 1.0", [], note="not measured: no Python 3.12"),
]


def test_a_row_is_the_repeat_in_the_middle() -> None:
    """Not the best one, and not an average that never happened."""
    assert ROWS[0].figures == {"jobs_per_s": 1000.0}
    assert ROWS[0].spread == (900.0, 1200.0)


def test_more_than_one_is_better_than_we_are() -> None:
    """More jobs are better, more milliseconds are worse."""
    assert ratio(ROWS[1], ROWS[0]) == 4.0
    assert ratio(ROWS[3], ROWS[2]) == 0.5
    assert ratio(ROWS[3], ROWS[0]) is None


def test_the_table_keeps_a_family_together() -> None:
    """Scenes of one kind in one block, our own row first, and no column that nobody fills."""
    mails, pickups = table.render(ROWS).split("\n\n")
    assert [line.split("  ")[0] for line in mails.splitlines()] == ["scene", "smtp-50", "smtp-50", "smtp-10", "smtp-10"]
    assert "WAL B" not in mails
    assert "4.00" in mails.splitlines()[2]
    assert mails.splitlines()[4].split("  ")[-1] == "not measured: no Python 3.12"
    assert pickups.splitlines()[0].split() == ["scene", "who", "ratio", "p50", "ms", "p99", "ms"]


def test_columns_stand_below_each_other() -> None:
    """Words to the left, numbers to the right."""
    assert table.aligned([["a", "b", "c"], ["aaa", "b", "100"]]) == ["a    b    c", "aaa  b  100"]


def test_the_plot_is_well_formed_and_has_a_bar_for_each_speed() -> None:
    """Names are escaped; what has no speed has no bar."""
    drawn = ET.fromstring(plot.svg([*ROWS, Row("smtp-10", "<&>", [{"jobs_per_s": 1.0}])]))  # noqa: S314  our own text
    bars = [element for element in drawn.iter("{http://www.w3.org/2000/svg}rect") if element.get("width") != "100%"]
    assert len(bars) == 4
