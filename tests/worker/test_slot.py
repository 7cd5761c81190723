"""The slot: the boundary between one job and all others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daemon import slot as module
from daemon.claimer import Claimed
from daemon.core.job import Job
from daemon.core.outcome import Conclusion, Record, Release
from daemon.core.settings import Settings
from daemon.core.trust import TrustWindow
from daemon.slot import Slot
from daemon.slots import Held, Lease
from daemon.store import Ending, Written
from tests.worker.fakes import Clock, FakeLog, made, ports

SENT = Record("sent", "sent", reason="accepted")


class Bench:
    """A slot whose claimer hands out the given claims, and whose attempt does what the test says."""

    def __init__(self, *claims: Claimed, written: Written | None = None) -> None:
        self.claims: list[Claimed | None] = [*claims, None]
        self.written = written or Written("done", "sent")
        self.endings: list[Ending] = []
        self.held = Held(1)
        self.story: list[str] = []
        self.does: Any = None
        means: Any = SimpleNamespace(settings=Settings(), ports=ports(Clock()), trust=TrustWindow(30.0, 5.0))
        stand_in: Any = self
        self.slot = Slot(means, self.held, stand_in, stand_in, {"email": self._attempt, "report": self._attempt})

    async def next(self) -> Claimed | None:
        """Hand out the next claim."""
        assert len(self.held) == 0, "a slot holds nothing while it waits"
        return self.claims.pop(0)

    def released(self, _job: Job) -> None:
        """Note that a job is ready again."""
        self.story.append("released")

    async def write(self, ending: Ending) -> Written:
        """Note a conclusion, and whether its lease is still held and not extended any more."""
        (lease,) = self.held
        assert lease.recording
        self.endings.append(ending)
        self.story.append("recorded")
        return self.written

    async def _attempt(self, lease: Lease) -> Conclusion:
        assert list(self.held) == [lease]
        found: Conclusion = await self.does(lease)
        return found


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Keep what is logged."""
    kept = FakeLog()
    monkeypatch.setattr(module, "log", kept)
    return kept


def claimed(**changes: Any) -> Claimed:  # noqa: ANN401  a job's fields
    """Return a claim that was asked for at second 1,000."""
    return Claimed(made(**changes), 1_000.0)


async def test_a_lease_is_trusted_from_its_claim_and_held_until_its_conclusion_is_recorded(log: FakeLog) -> None:
    """Then the connection goes back, and the slot asks for more."""
    bench = Bench(claimed(), claimed())
    until: list[float] = []

    async def send(lease: Lease) -> Conclusion:
        until.append(lease.until_mono)
        lease.afterwards = lambda: bench.story.append("connection back")
        return SENT

    bench.does = send
    await bench.slot.run()
    assert until == [1_025.0, 1_025.0]
    assert bench.story == ["recorded", "connection back"] * 2
    assert [ending.conclusion for ending in bench.endings] == [SENT, SENT]
    assert [event for event in log.events if event[0] == "info"] == [("info", "job.sent")] * 2


@pytest.mark.parametrize(
    ("kind", "begun", "expected"),
    [
        ("email", False, ("later", None, 0)),
        ("email", True, ("doubt", "in_doubt", 1)),
        ("report", False, ("later", None, 0)),
        ("report", True, ("later", None, 0)),
    ],
)
async def test_whatever_an_attempt_raises_is_a_conclusion_about_its_job(
    kind: str,
    begun: bool,  # noqa: FBT001
    expected: tuple[str, str | None, int],
) -> None:
    """Before the dot it is tried again, after the dot of a mail it is in doubt; the slot goes on with the next job."""
    bench = Bench(claimed(kind=kind), claimed())

    async def stumble(lease: Lease) -> Conclusion:
        if len(bench.endings) == 1:
            return SENT
        if begun:
            lease.begin(9_000.0)
        raise KeyError("payload")

    bench.does = stumble
    await bench.slot.run()
    first, second = (ending.conclusion for ending in bench.endings)
    assert isinstance(first, Record)
    assert (first.verdict, first.outcome, first.doubts) == expected
    assert (first.reason, first.reply) == ("internal_error", "KeyError"), "the text may hold an address"
    assert second == SENT


async def test_what_isnt_an_exception_isnt_caught() -> None:
    """A cancellation ends the slot; the lease is let go and nothing is recorded."""
    bench = Bench(claimed())

    async def leave(_lease: Lease) -> Conclusion:
        raise KeyboardInterrupt

    bench.does = leave
    with pytest.raises(KeyboardInterrupt):
        await bench.slot.run()
    assert (bench.endings, len(bench.held)) == ([], 0)


async def test_a_kind_that_nobody_here_knows_is_put_back_unharmed(log: FakeLog) -> None:
    """With a delay and an alarm: another worker may know it."""
    bench = Bench(claimed(kind="unknown"), written=Written("done", None))
    await bench.slot.run()
    ((ending),) = bench.endings
    assert isinstance(ending.conclusion, Release)
    assert (ending.conclusion.reason, ending.conclusion.delay_s) == ("kind_unknown", 60.0)
    assert ("error", "kind.unknown") in log.events
    assert bench.story == ["recorded"]


@pytest.mark.parametrize(
    ("delay_s", "state", "story"),
    [(0.0, "done", ["recorded", "released"]), (1.0, "done", ["recorded"]), (0.0, "lost", ["recorded"])],
)
async def test_the_claimer_hears_of_a_job_that_is_ready_at_its_old_place(delay_s: float, state: str, story: list[str]) -> None:
    """It has passed that place; what is ready later lies before it, and what was lost is somebody else's."""
    bench = Bench(claimed(), written=Written(state, None))

    async def leave(_lease: Lease) -> Conclusion:
        return Release("draining", delay_s)

    bench.does = leave
    await bench.slot.run()
    assert bench.story == story


@pytest.mark.parametrize(
    ("conclusion", "written", "said"),
    [
        (SENT, Written("done", "sent"), ("info", "job.sent")),
        (Record("rejected", "dead"), Written("done", "dead"), ("error", "job.dead")),
        (Record("rejected", "dead"), Written("done", "in_doubt"), ("error", "job.in_doubt")),
        (Record("later", None, 60.0), Written("done", None), ("warning", "job.deferred")),
        (Record("later", None, 60.0), Written("done", "cancelled"), ("info", "job.cancelled")),
        (Record("doubt", None, 60.0, doubts=1), Written("done", None), ("warning", "attempt.in_doubt")),
        (Release("draining"), Written("done", None), ("info", "job.released")),
        (Release("draining"), Written("done", "cancelled"), ("info", "job.cancelled")),
        (SENT, Written("lost", None), ("warning", "outcome.stale")),
    ],
)
async def test_the_state_that_the_row_has_now_is_said_once_as_loud_as_it_needs_a_person(
    log: FakeLog, conclusion: Conclusion, written: Written, said: tuple[str, str]
) -> None:
    """What the row says counts, not what was asked for."""
    bench = Bench(claimed(), written=written)

    async def conclude(_lease: Lease) -> Conclusion:
        return conclusion

    bench.does = conclude
    await bench.slot.run()
    assert [event for event in log.events if event[0] != "debug"] == [said]
