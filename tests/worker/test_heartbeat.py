"""The heartbeat: what it extends, whom it tells, and what a failure changes."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from daemon import heartbeat as module
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Database, Settings
from daemon.core.settings import Lease as LeaseSettings
from daemon.heartbeat import Heartbeat
from daemon.slots import LOST, Held, Lease
from tests.worker.fakes import Clock, FakeLog, FakeSession, FakeStore, Question, made, ports, running, turns

TRUST_S = 25.0


class Bench:
    """A heartbeat that beats when it is hurried, between a test and its session."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.clock = Clock()
        self.store = FakeStore()
        self.session = FakeSession()
        self.held = Held(10)
        self.recovered = 0
        settings = Settings(lease=LeaseSettings(heartbeat_s=3_600.0), database=Database(reconnect_max_s=0.001))
        self.heartbeat = Heartbeat(settings, self.held, self.store, ports(self.clock))  # type: ignore[arg-type]
        self.heartbeat.on_recovered = self._note

    def _note(self) -> None:
        self.recovered += 1

    def lease(self) -> Lease:
        """Hold a lease that is trusted for ten seconds."""
        lease = Lease(made(), self.clock() + 10.0)
        self.held.take(lease)
        return lease

    async def beat(self) -> Question:
        """Let the heartbeat beat, and return what it asks; the session is opened if it has to be."""
        self.heartbeat.hurry()
        if not self.session.is_open:
            (await self.session.next("open")).answer()
        return await self.session.next("extend")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a heartbeat that logs into a list."""
    log = FakeLog()
    monkeypatch.setattr(module, "log", log)
    return Bench(log)


def run(bench: Bench) -> AbstractAsyncContextManager[object]:
    """Run the loop."""
    return running(bench.heartbeat.run(bench.session))  # type: ignore[arg-type]


async def test_a_held_lease_is_trusted_from_before_the_question(bench: Bench) -> None:
    """However long the answer took."""
    lease = bench.lease()
    async with run(bench):
        question = await bench.beat()
        assert question.arguments == ([lease],)
        bench.clock.pass_s(4.0)
        question.answer({lease.job.token: "held"})
        await turns()
    assert lease.until_mono == 1_000.0 + TRUST_S
    assert lease.given_up is None


async def test_a_lost_lease_is_told_to_its_slot_and_a_busy_one_is_left_alone(bench: Bench) -> None:
    """Lost is what the answer says, or doesn't mention; busy is neither lost nor extended."""
    held, busy, lost, missing = [bench.lease() for _ in range(4)]
    async with run(bench):
        question = await bench.beat()
        question.answer({held.job.token: "held", busy.job.token: "busy", lost.job.token: "lost"})
        await turns()
    assert [lease.given_up for lease in (held, busy, lost, missing)] == [None, None, LOST, LOST]
    assert busy.until_mono == 1_010.0
    assert [event for _, event in bench.log.events].count("lease.lost") == 2


async def test_a_lease_whose_conclusion_is_on_its_way_is_not_extended_and_not_lost(bench: Bench) -> None:
    """Neither if it began before the question nor if it began while the question was on its way."""
    before, meanwhile = bench.lease(), bench.lease()
    before.recording = True
    async with run(bench):
        question = await bench.beat()
        assert question.arguments == ([meanwhile],)
        meanwhile.recording = True
        question.answer({meanwhile.job.token: "lost"})
        await turns()
    assert [before.given_up, meanwhile.given_up] == [None, None]


async def test_nobody_claims_before_the_first_heartbeat_was_answered(bench: Bench) -> None:
    """Only then the worker says that it is ready, once."""
    said: list[str] = []
    bench.heartbeat.on_ready = lambda: said.append("ready")
    healthy = [bench.heartbeat.healthy]
    async with run(bench):
        (await bench.session.next("open")).answer()
        question = await bench.session.next("extend")
        await turns()
        healthy.append(bench.heartbeat.healthy)
        assert said == []
        question.answer({})
        await turns()
        healthy.append(bench.heartbeat.healthy)
        (await bench.beat()).answer({})
        await turns()
    assert healthy == [False, False, True]
    assert said == ["ready"]
    assert bench.log.events == [("info", "database.connected")]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("no", "42501")])
async def test_a_failed_heartbeat_stops_the_claiming_and_takes_no_lease(bench: Bench, error: Exception) -> None:
    """Leases are believed until their window ends; nobody is taken over by us until the grace has passed."""
    lease = bench.lease()
    async with run(bench):
        (await bench.beat()).answer({lease.job.token: "held"})
        await turns()
        until = lease.until_mono
        bench.clock.pass_s(7.0)
        (await bench.beat()).fail(error)
        await turns()
        assert not bench.heartbeat.healthy
        assert (lease.until_mono, lease.given_up) == (until, None)
        assert bench.store.notes == ["trouble"]
        assert bench.heartbeat.round_mono == 1_007.0, "a failure is a round as well"


async def test_recovery_reopens_the_session_and_wakes_the_claimer(bench: Bench) -> None:
    """By itself and as often as it takes; an outage is one line when it begins and one when it ends."""
    async with run(bench):
        (await bench.beat()).answer({})
        await turns()
        assert bench.recovered == 1
        (await bench.beat()).fail(StoreUnavailable("away"))
        for _ in range(3):
            (await bench.session.next("open")).fail(StoreUnavailable("away"))
            await turns()
            assert not bench.heartbeat.healthy
        (await bench.session.next("open")).answer()
        (await bench.session.next("extend")).answer({})
        await turns()
        assert bench.heartbeat.healthy
        assert bench.recovered == 2
    assert bench.store.notes == ["trouble"] * 4
    assert [event for _, event in bench.log.events] == ["database.connected", "database.lost", "database.connected"]


async def test_a_heartbeat_over_a_sound_session_wakes_nobody(bench: Bench) -> None:
    """Only a new session may have missed a notification."""
    async with run(bench):
        for _ in range(3):
            (await bench.beat()).answer({})
            await turns()
    assert bench.recovered == 1


async def test_a_session_that_is_lost_between_two_beats_is_reopened_by_the_next(bench: Bench) -> None:
    """Whoever hears of it hurries the heartbeat."""
    async with run(bench):
        (await bench.beat()).answer({})
        await turns()
        assert await bench.session.quiet()
        bench.session.is_open = False
        (await bench.beat()).answer({})
        await turns()
    assert bench.recovered == 2


async def test_a_heartbeat_that_hangs_makes_no_round(bench: Bench) -> None:
    """The watchdog sees it."""
    async with run(bench):
        await bench.beat()
        bench.clock.pass_s(60.0)
        await turns()
        assert bench.heartbeat.round_mono == 1_000.0
