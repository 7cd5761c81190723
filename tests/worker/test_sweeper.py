"""The sweeper's rounds: the front often, everything once a minute, and who is told."""

from __future__ import annotations

import pytest

from daemon import sweeper as module
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Settings, Worker
from daemon.store import SWEEP_LIMIT, Swept
from daemon.sweeper import FULL_PASS_S, Sweeper
from tests.worker.fakes import Clock, FakeLog, FakeStore, ports, running, turns


class Bench:
    """A sweeper that comes round all the time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.swept = 0
        self.suspects: list[bool] = []
        self.sweeper = Sweeper(
            Settings(worker=Worker(sweep_interval_s=0.001)),
            self.store,  # type: ignore[arg-type]
            ports(self.clock),
            on_swept=self._note,
            on_suspect=self.suspects.append,
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
        assert question.options == {"queues": None}
        question.answer([Swept(1, "orphan", None), Swept(2, "worker_lost", "dead"), Swept(3, "cancelled", "cancelled")])
        (await bench.store.next("suspect_is_due")).answer(value=True)
        await turns()
    assert (bench.swept, bench.suspects) == (1, [True])
    assert log.events == [("warning", "job.swept"), ("error", "job.swept"), ("info", "job.swept")]


async def test_nobody_is_woken_for_jobs_that_ended() -> None:
    """Only what is ready again is work."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([Swept(2, "expired", "dead")])
        (await bench.store.next("suspect_is_due")).answer(value=False)
        await turns()
    assert (bench.swept, bench.suspects) == (0, [False])


async def test_a_sweep_that_changed_all_it_may_is_repeated_at_once() -> None:
    """A great many orphans don't wait for many rounds."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([Swept(n, "orphan", None) for n in range(SWEEP_LIMIT)])
        (await bench.store.next("sweep")).answer([])
        await bench.store.next("suspect_is_due")
    assert bench.swept == 1


async def test_once_a_minute_everything_is_looked_at() -> None:
    """All queues that have jobs, also those that nobody serves; and not again before the next minute."""
    bench = Bench()
    async with running(bench.sweeper.run()):
        (await bench.store.next("sweep")).answer([])
        (await bench.store.next("suspect_is_due")).answer(value=False)
        bench.clock.pass_s(FULL_PASS_S)
        (await bench.store.next("sweep")).answer([])
        (await bench.store.next("queues")).answer(["a", "b"])
        full = await bench.store.next("sweep")
        assert full.options == {"queues": ["a", "b"]}
        full.answer([])
        (await bench.store.next("suspect_is_due")).answer(value=False)
        (await bench.store.next("sweep")).answer([])
        await bench.store.next("suspect_is_due")


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
