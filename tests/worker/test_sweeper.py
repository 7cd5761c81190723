"""The sweeper's rounds: the front often, everything once a minute, and who is told."""

from __future__ import annotations

import pytest

from daemon import sweeper as module
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Settings, Worker
from daemon.store import SWEEP_LIMIT, Front, Level, Swept
from daemon.sweeper import FULL_PASS_S, Sweeper
from tests.worker.fakes import NOW, Clock, FakeLog, FakeStore, ports, running, turns

NOTHING, SUSPECT = Front((Level("default", 1, NOW),), suspect_is_due=False), Front((), suspect_is_due=True)


class Bench:
    """A sweeper that comes round all the time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.swept = 0
        self.fronts: list[Front] = []
        self.sweeper = Sweeper(
            Settings(worker=Worker(sweep_interval_s=0.001)),
            self.store,  # type: ignore[arg-type]
            ports(self.clock),
            on_swept=self._note,
            on_front=self.fronts.append,
        )

    def _note(self) -> None:
        self.swept += 1


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Keep what is logged."""
    kept = FakeLog()
    monkeypatch.setattr(module, "log", kept)
    return kept


async def test_a_round_sweeps_the_front_and_asks_for_suspects(log: FakeLog) -> None:
    """The claimer hears that jobs are ready again, and whether a suspect waits; each job is said as loud as it needs a person."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        question = await bench.store.next("sweep")
        assert question.options == {"fronts": (), "queues": None}
        question.answer([Swept(1, "orphan", None), Swept(2, "worker_lost", "dead"), Swept(3, "cancelled", "cancelled")])
        (await bench.store.next("front")).answer(SUSPECT)
        await turns()
    assert (bench.swept, bench.fronts) == (1, [SUSPECT])
    assert log.events == [("warning", "job.swept"), ("error", "job.swept"), ("info", "job.swept")]


async def test_nobody_is_woken_for_jobs_that_ended() -> None:
    """Only what is ready again is work."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([Swept(2, "expired", "dead")])
        (await bench.store.next("front")).answer(NOTHING)
        await turns()
    assert (bench.swept, bench.fronts) == (0, [NOTHING])


async def test_a_sweep_that_changed_all_it_may_is_repeated_at_once() -> None:
    """A great many orphans don't wait for many rounds."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([Swept(n, "orphan", None) for n in range(SWEEP_LIMIT)])
        (await bench.store.next("sweep")).answer([])
        await bench.store.next("front")
    assert bench.swept == 1


async def test_once_a_minute_everything_is_looked_at() -> None:
    """All queues that have jobs, also those that nobody serves; and not again before the next minute."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([])
        (await bench.store.next("front")).answer(NOTHING)
        sweep = await bench.store.next("sweep")
        bench.clock.pass_s(FULL_PASS_S)
        sweep.answer([])
        (await bench.store.next("front")).answer(NOTHING)
        (await bench.store.next("queues")).answer(["a", "b"])
        full = await bench.store.next("sweep")
        assert full.options == {"fronts": (), "queues": ["a", "b"]}
        full.answer([])
        (await bench.store.next("sweep")).answer([])
        await bench.store.next("front")


async def test_a_dear_look_from_the_very_front_is_paid_for_before_the_next() -> None:
    """Until then the rounds begin at the first unfinished job that the last one found."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        sweep = await bench.store.next("sweep")
        bench.clock.pass_s(0.1)
        sweep.answer([])
        (await bench.store.next("front")).answer(NOTHING)
        for passing_s, expected in ((4.9, NOTHING.levels), (0.2, NOTHING.levels), (0.0, ())):
            sweep = await bench.store.next("sweep")
            assert sweep.options["fronts"] == expected
            bench.clock.pass_s(passing_s)
            sweep.answer([])
            front = await bench.store.next("front")
            assert front.arguments == (expected,)
            front.answer(NOTHING)


@pytest.mark.parametrize(
    ("error", "events"),
    [(StoreUnavailable("away"), []), (StoreRefused("no", "42501"), [("error", "sweep.refused")])],
)
async def test_a_failed_round_is_skipped(log: FakeLog, error: Exception, events: list[tuple[str, str]]) -> None:
    """The next one comes by itself; an outage was said already."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).fail(error)
        await bench.store.next("sweep")
    assert log.events == events
