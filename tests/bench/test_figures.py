"""The arithmetic of the bench. What it measures is never tested; how it counts is."""

from __future__ import annotations

import pytest

from daemon.database import statement
from tests.bench import figures
from tests.bench.figures import ProcessTimes


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (1.0, 10.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    """Nearest rank, in any order."""
    assert figures.percentile([10.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0], share) == expected


def test_no_values_have_no_percentile() -> None:
    """Better an error than a nought that looks fast."""
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 0.5)


def test_the_median_of_an_even_number_is_one_that_happened() -> None:
    """The lower of the two in the middle."""
    assert figures.median_of([4, 1, 3, 2], float) == 2
    assert figures.median_of([9, 1, 5], float) == 5


def test_a_process_may_have_any_name() -> None:
    """The name stands in parentheses, and may hold some itself."""
    line = "42 (tmux: (x) y) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 5 6 7\n"
    assert figures.process_times(line) == ProcessTimes(pid=42, parent=7, own=120, ended_children=3400)


def test_a_tree_counts_everybody_below_once() -> None:
    """Children and grandchildren, those that have ended included; strangers not, and a root that is also a child only once."""
    processes = [
        ProcessTimes(1, 0, 1_000_000, 1_000_000),
        ProcessTimes(10, 1, 5, 100),
        ProcessTimes(11, 10, 7, 0),
        ProcessTimes(12, 11, 9, 1),
        ProcessTimes(20, 1, 3_000, 0),
    ]
    assert figures.tree_ticks(processes, [10]) == 122
    assert figures.tree_ticks(processes, [10, 11]) == 122
    assert figures.tree_ticks(processes, [99]) == 0


def test_a_core_is_busy_when_it_isnt_idle() -> None:
    """Waiting for a disk is idle; what the hypervisor gave to others isn't."""
    assert figures.busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n") == 63


def test_the_peak_of_memory_is_read_from_the_status() -> None:
    """In kB; nothing is nought."""
    assert figures.peak_kilobytes("Name:\tx\nVmHWM:\t   43128 kB\nVmRSS:\t 40000 kB\n") == 43_128
    assert figures.peak_kilobytes("Name:\tkthread\n") == 0


def test_a_statement_takes_its_bind_and_its_execute() -> None:
    """Of one backend's two lines one time; other statements, parsing and the lines of a text don't count."""
    log = [
        "[7] LOG:  duration: 9.000 ms  parse __asyncpg_stmt_1__: -- Claims",
        "[7] LOG:  duration: 0.500 ms  bind __asyncpg_stmt_1__: -- Claims",
        "\t-- and more",
        "[8] LOG:  duration: 0.250 ms  bind __asyncpg_stmt_1__: -- Claims",
        "[7] LOG:  duration: 2.000 ms  execute __asyncpg_stmt_1__: -- Claims",
        "[7] LOG:  duration: 4.000 ms  execute __asyncpg_stmt_2__: -- Marks",
        "[8] LOG:  duration: 1.000 ms  execute __asyncpg_stmt_1__: -- Claims",
        "[8] LOG:  duration: 3.000 ms  execute <unnamed>: -- Claims",
    ]
    assert figures.durations_ms(log, "-- Claims") == [2.5, 1.25, 3.0]


def test_a_statement_is_known_by_what_the_server_keeps_of_it() -> None:
    """PostgreSQL leaves out the comment ahead, counts constants as parameters, and lists of them as one."""
    ours = (
        "-- Says what.\n--\n-- $1 text\n"
        "SELECT a, -- why\n  b FROM t WHERE x = 'it''s' AND y IN (1, 2) AND z < now() - interval '1 day'\n"
        "  AND extract(epoch FROM at) > 2.5 AND NOT c = true AND d = $1::float8;\n"
    )
    kept = (
        "SELECT a, -- why\n  b FROM t WHERE x = $2 AND y IN ($3 /*, ... */) AND z < now() - interval $4\n"
        "  AND extract($5 FROM at) > $6 AND NOT c = $7 AND d = $1::float8"
    )
    assert figures.signature(ours) == figures.signature(kept)
    assert figures.signature("SELECT a FROM t WHERE x1 = 1") != figures.signature("SELECT a FROM t WHERE x2 = 1")


def test_the_batches_of_the_daemon_can_be_told_apart() -> None:
    """Claim, mark and record each have a signature of their own."""
    assert len({figures.signature(statement(name)) for name in ("claim", "mark", "record", "release")}) == 4


def test_a_share_of_nothing_is_nought() -> None:
    """No update, no HOT update."""
    assert figures.share(0, 0) == 0
    assert figures.share(1, 4) == 0.25
