"""Where the next claim looks: what is passed is found again in bounded time, and a dear look back is paid for before the next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from daemon.core.job import Job
from daemon.cursors import LATEST_S, LEVELS_A_CLAIM, NEAR_S, OVERLAP_S, SHARE, Cursors
from daemon.store import FIRST, LAST, PRIORITIES, Level
from tests.worker.fakes import NOW, made

RESCAN_S = 2.0
MANY = tuple(f"q{number}" for number in range(1_000))


class Bench:
    """Cursors, and a clock that each claim moves on by what it costs."""

    def __init__(self, *queues: str) -> None:
        self.queues = queues or ("default",)
        self.now_mono = 1_000.0
        self.cursors = Cursors(self.queues, rescan_interval_s=RESCAN_S, now_mono=self.now_mono)
        self.names = dict.fromkeys(self.queues)

    def claim(self, *jobs: Job, wanted: int | None = None, cost_s: float = 0.0) -> tuple[Level, ...]:
        """Ask where to look, and find these jobs there; returns the levels that were named."""
        asked_mono = self.now_mono
        levels = self.cursors.next(asked_mono, self.names)
        self.now_mono += cost_s
        self.cursors.answered(
            levels, jobs, wanted=len(jobs) if wanted is None else wanted, asked_mono=asked_mono, now_mono=self.now_mono
        )
        return levels

    def first_look(self, job: Job | None = None, cost_s: float = 0.0) -> Job:
        """Get over the first full look, by which one job of priority 1 is found."""
        found = job or made()
        self.claim(found, cost_s=cost_s)
        return found


def one(levels: Sequence[Level], priority: int = 1) -> Level:
    """Return the level of a priority."""
    (found,) = [level for level in levels if level.priority == priority]
    return found


def is_full(levels: Sequence[Level]) -> bool:
    """Return whether everything is looked at."""
    return all((level.after_at, level.after_id, level.back_s) == (FIRST, 0, None) for level in levels)


# ---------------------------------------------------------------- going on


def test_the_first_look_is_a_full_one() -> None:
    """Nobody knows what lies there."""
    levels = Bench().claim(made())
    assert [(level.queue, level.priority) for level in levels] == [("default", priority) for priority in PRIORITIES]
    assert is_full(levels)


def test_a_level_goes_on_behind_the_last_job_that_was_found_in_it() -> None:
    """In the levels after it nobody has looked yet."""
    bench = Bench()
    job = bench.first_look()
    levels = bench.claim(made())
    assert one(levels) == Level("default", 1, job.available_at, job.id)
    assert is_full(levels[2:])


def test_a_level_that_was_found_empty_goes_on_from_that_moment() -> None:
    """Also those before the one that was served last. By the worker's clock, and a little earlier: messages take their time."""
    bench = Bench()
    bench.first_look()
    bench.now_mono += 1.5
    level = one(bench.claim(made()), 0)
    assert level.after_at == LAST
    assert level.back_s == pytest.approx(1.5 + OVERLAP_S)
    bench.now_mono += 0.1
    assert one(bench.claim(wanted=1), 0).back_s == pytest.approx(0.1 + OVERLAP_S), "counted from the last look"
    bench.now_mono += 0.2
    assert [level.back_s for level in bench.claim(wanted=1)] == pytest.approx([0.2 + OVERLAP_S] * 4)


def test_queues_that_may_not_be_claimed_from_stay_where_they_are() -> None:
    """They are left out, and nobody has looked at them."""
    bench = Bench("a", "b")
    bench.names = {"b": None}
    assert {level.queue for level in bench.claim(wanted=1)} == {"b"}
    bench.names = {"a": None}
    assert is_full(bench.claim(wanted=1))


# ---------------------------------------------------------------- what lies behind


def test_a_job_that_came_back_is_found_by_the_next_claim() -> None:
    """The cursor goes back to just before it, and no other one moves."""
    bench = Bench()
    job = made(5)
    bench.first_look(job)
    bench.claim(made(9))
    bench.cursors.came_back(job)
    levels = bench.claim(made())
    assert one(levels) == Level("default", 1, job.available_at, 4)
    assert one(levels, 0).after_at == LAST


def test_a_job_that_came_back_into_an_emptied_level_is_found() -> None:
    """The level isn't empty any more."""
    bench = Bench()
    job = bench.first_look()
    bench.claim(wanted=1)
    bench.cursors.came_back(job)
    assert bench.cursors.wait_s(bench.now_mono) == 0.0
    assert one(bench.claim(job, wanted=2)) == Level("default", 1, job.available_at, job.id - 1)
    assert bench.cursors.wait_s(bench.now_mono) > 0.0


def test_a_job_that_came_back_while_a_claim_is_under_way_is_found_by_the_next() -> None:
    """The answer of that one moves the cursor on, past the job."""
    bench = Bench()
    job = bench.first_look(made(5))
    levels = bench.cursors.next(bench.now_mono, bench.names)
    bench.cursors.came_back(job)
    bench.cursors.answered(levels, [made(9)], wanted=1, asked_mono=bench.now_mono, now_mono=bench.now_mono)
    assert one(bench.claim(made())).after_id == 4


def test_of_several_that_came_back_the_first_counts() -> None:
    """And a place that lies ahead of the cursor moves nothing."""
    bench = Bench()
    early, late = made(5), made(6)
    bench.first_look(made(7, available_at=NOW))
    for job in (late, early, late):
        bench.cursors.came_back(job)
    assert one(bench.claim(made())).after_at == NOW
    bench.claim(made(available_at=NOW + timedelta(days=9)))
    for job in (late, early, late):
        bench.cursors.came_back(job)
    assert one(bench.claim(made())).after_id == 4


def test_a_claim_that_was_given_back_is_looked_for_where_it_began() -> None:
    """Its jobs are nowhere else."""
    bench = Bench()
    bench.first_look()
    bench.now_mono += 1.0
    levels, asked_mono = bench.cursors.next(bench.now_mono, bench.names), bench.now_mono
    bench.now_mono += 0.5
    bench.claim(made(), made())
    bench.cursors.gave_back(levels, asked_mono)
    again = bench.claim(made())
    assert one(again) == one(levels)
    seconds = one(levels, 0).back_s
    assert seconds is not None
    assert one(again, 0).back_s == pytest.approx(seconds + 0.5)


def test_a_late_commit_is_found_by_the_near_look_after_its_wake_up() -> None:
    """A commit lies no further behind the last near look than its transaction took: so far back goes the next one."""
    bench = Bench()
    bench.first_look()
    bench.now_mono += 0.7
    bench.cursors.look_near()
    levels = bench.claim(made())
    assert [level.back_s for level in levels] == [pytest.approx(0.7 + NEAR_S)] * 2 + [None] * 2
    assert one(levels).after_at < LAST, "a cursor that lies further back stays there"
    bench.now_mono += 0.3
    bench.cursors.look_near()
    assert one(bench.claim(made())).back_s == pytest.approx(0.3 + NEAR_S)
    assert one(bench.claim(made())).back_s is None


def test_levels_that_a_near_look_did_not_reach_are_still_owed_it() -> None:
    """The claim had enough before it came to them."""
    bench = Bench()
    bench.claim(wanted=1)
    bench.cursors.look_near()
    bench.claim(made(priority=0))
    bench.now_mono += 0.4
    levels = bench.claim(wanted=1)
    assert [level.back_s for level in levels[1:]] == [pytest.approx(0.4 + NEAR_S)] * 3
    assert levels[0].back_s is None


@pytest.mark.parametrize("cause", ["time", "asked for"])
def test_whatever_lies_behind_is_found_by_the_next_full_look(cause: str) -> None:
    """A lease that expired, a row that was locked when it was passed, what another worker gave back: nobody knows where."""
    bench = Bench()
    bench.first_look()
    if cause == "time":
        bench.now_mono += RESCAN_S
    else:
        bench.cursors.look_at_all()
    assert is_full(bench.claim(made()))
    assert not is_full(bench.claim(made())), "once is enough"


def test_until_a_full_look_may_be_had_again_the_sweepers_front_is_low_enough() -> None:
    """Every job that was unfinished then lies behind it; what lies before it are dead entries."""
    bench = Bench()
    bench.first_look(cost_s=1.0)
    bench.claim(made(), cost_s=0.001)
    bench.cursors.begin_at([Level("default", priority, NOW) for priority in PRIORITIES])
    bench.now_mono += RESCAN_S
    levels = bench.claim(made(), cost_s=0.001)
    assert [level.after_at for level in levels] == [NOW] * 2 + [FIRST] * 2, "where nobody has looked yet it is a full look"
    assert one(bench.claim(made())).after_at > NOW, "once is enough"
    bench.now_mono += RESCAN_S
    assert one(bench.claim(made())).after_at == NOW
    bench.now_mono += LATEST_S
    assert is_full(bench.claim(made())), "a full one is still owed"


def test_a_front_moves_no_cursor_on() -> None:
    """It is where to go back to, not what may be passed by."""
    bench = Bench()
    job = bench.first_look(cost_s=1.0)
    bench.cursors.begin_at([Level("default", 1, job.available_at + timedelta(seconds=1))])
    bench.now_mono += RESCAN_S
    assert one(bench.claim(made())).after_at == job.available_at


# ---------------------------------------------------------------- what a look back may cost


@pytest.mark.parametrize("kind", ["near", "full"])
def test_a_dear_look_is_repeated_only_after_it_was_paid_for(kind: str) -> None:
    """Any number of wake-ups cost a fiftieth of the time, not all of it; and the look that is owed isn't forgotten."""
    bench = Bench()
    bench.first_look()
    want = bench.cursors.look_near if kind == "near" else bench.cursors.look_at_all

    def looks_back() -> bool:
        levels = bench.claim(made(), cost_s=0.005)
        return is_full(levels) if kind == "full" else one(levels).back_s is not None

    want()
    assert looks_back()
    for _ in range(round(SHARE) - 2):
        want()
        assert not looks_back()
    assert 0.0 < bench.cursors.wait_s(bench.now_mono) < 2 * 0.005 + 0.0001
    bench.now_mono += bench.cursors.wait_s(bench.now_mono)
    assert looks_back()


def test_a_full_look_comes_after_half_a_minute_whatever_it_costs() -> None:
    """The bound of everything that lies behind."""
    bench = Bench()
    bench.first_look(cost_s=10.0)
    bench.now_mono += LATEST_S - 0.001
    assert not is_full(bench.claim(made()))
    bench.now_mono += 0.001
    assert is_full(bench.claim(made()))


def test_who_insists_gets_a_full_look_at_once() -> None:
    """`run --once` may not end before it has seen everything."""
    bench = Bench()
    bench.first_look(cost_s=10.0)
    seen_all = [bench.cursors.has_seen_all]
    bench.cursors.look_at_all(now=True)
    assert is_full(bench.claim(wanted=1))
    seen_all.append(bench.cursors.has_seen_all)
    bench.claim(wanted=1)
    assert [*seen_all, bench.cursors.has_seen_all] == [False, True, False]


def test_a_cheap_look_may_be_repeated_at_once() -> None:
    """An idle worker answers every wake-up."""
    bench = Bench()
    bench.first_look()
    for _ in range(3):
        bench.cursors.look_near()
        assert one(bench.claim(made())).back_s is not None


# ---------------------------------------------------------------- many levels


def settled(bench: Bench) -> int:
    """Claim until nowhere is anything left; returns how many claims that took."""
    claims = 1
    bench.claim(wanted=1)
    while bench.cursors.wait_s(bench.now_mono) == 0.0:
        bench.claim(wanted=1)
        claims += 1
    return claims


def test_many_queues_are_looked_at_in_chunks_that_grow() -> None:
    """4,000 levels in six statements, the urgent ones first; then none until somebody wakes us."""
    bench = Bench(*MANY)
    named: list[tuple[Level, ...]] = []
    while bench.cursors.wait_s(bench.now_mono) == 0.0 or not named:
        named.append(bench.claim(wanted=1))
    assert [len(levels) for levels in named] == [64, 128, 256, 512, 1024, 2016]
    together = [(level.priority, level.queue) for levels in named for level in levels]
    assert len(set(together)) == 4_000
    assert [priority for priority, _ in together] == sorted(priority for priority, _ in together)
    assert bench.cursors.has_seen_all
    assert bench.claim(wanted=1) == ()


def test_what_was_found_empty_is_left_out_until_the_next_look_back() -> None:
    """So a claim of a busy worker names few levels, however many there are."""
    bench = Bench(*MANY)
    settled(bench)
    bench.cursors.came_back(made(queue="q7"))
    assert [(level.queue, level.priority) for level in bench.claim(wanted=1)] == [("q7", 1)]
    bench.cursors.look_near()
    assert settled(bench) == 6


def test_a_claim_that_has_enough_names_no_more_the_next_time() -> None:
    """Only who finds too little asks for twice as much."""
    bench = Bench(*MANY)
    for number in range(100):
        levels = bench.claim(made(queue=f"q{number}", priority=0))
        assert len(levels) <= LEVELS_A_CLAIM


def test_the_queue_that_was_served_is_the_last_of_its_priority() -> None:
    """Each of a thousand has its turn before one has its second."""
    bench = Bench(*MANY)
    served = []
    for _ in range(2_000):
        first = bench.cursors.next(bench.now_mono, bench.names)[0]
        bench.cursors.answered(
            [first], [made(queue=first.queue, priority=0)], wanted=1, asked_mono=bench.now_mono, now_mono=bench.now_mono
        )
        served.append(first.queue)
    assert served == [*MANY, *MANY]


def test_an_urgent_job_is_found_by_the_look_that_its_wake_up_asks_for() -> None:
    """Though its level was left out."""
    bench = Bench(*MANY)
    settled(bench)
    bench.cursors.came_back(made(queue="q7", priority=3))
    bench.cursors.look_near()
    levels = bench.claim(made(queue="q7", priority=3))
    assert {level.priority for level in levels} == {0}


def test_nothing_is_kept_but_the_levels() -> None:
    """However many jobs go by, come back and are looked for."""
    bench = Bench("a", "b")
    for number in range(1_000):
        job = made(queue="ab"[number % 2], priority=number % 4)
        bench.claim(job)
        bench.cursors.came_back(job)
        bench.cursors.look_near()
        bench.now_mono += 0.01
    kept = [len(kept) for kept in vars(bench.cursors).values() if isinstance(kept, dict | list | set | tuple)]
    assert max(kept) <= 2 * len(PRIORITIES)
