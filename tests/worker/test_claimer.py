"""The claimer: one short claim for all who wait, cursors that hide no work for long, and suspects that run alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daemon import claimer as module
from daemon.allowance import Allowance
from daemon.batch import Turn
from daemon.bell import Bell
from daemon.claimer import ABANDONED_TWICE_S, SUSPECT_PATIENCE_S, Claimed, Claimer
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.rate import Permit
from daemon.core.settings import Database, Settings, Worker
from daemon.cursors import NEAR_S
from daemon.store import FIRST, LAST, NOTHING_CLOSED, Closed, Front, Level
from tests.worker.fakes import Clock, FakeLog, FakeStore, Question, made, ports, running, turns

RESCAN_S = 2.0
NEVER_S = 3_600.0
EMPTY = -1


class FakeAllowances:
    """Allows what the test says; without a word everything."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = tuple(queues)
        self.limit: int | None = None
        self.closed = NOTHING_CLOSED
        self.wait_s: float | None = None
        self.waits = False
        self.error: Exception | None = None
        self.permits: dict[str, list[Permit]] = {}
        self.settled: list[int] = []

    async def allow(self, wanted: int) -> Allowance:
        """Allow as many as are wanted, up to the limit."""
        if self.error is not None:
            raise self.error
        count = wanted if self.limit is None else min(wanted, self.limit)
        ways = dict.fromkeys(self.queues, "relay")
        return Allowance(count, self.closed, self.queues, self.wait_s, self.waits, self.permits, ways)

    async def settle(self, _allowance: Allowance, claimed: int) -> None:
        """Note how many were claimed."""
        self.settled.append(claimed)


class Bench:
    """A claimer between a test and its store; `polls` lets it come round by itself."""

    def __init__(
        self,
        *,
        slots: int = 2,
        queues: Sequence[str] = ("default",),
        once: bool = False,
        polls: bool = False,
        rescan_s: float = RESCAN_S,
    ) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.healthy = True
        self.allowances = FakeAllowances(queues)
        self.poll_s = 0.001 if polls else NEVER_S
        worker = Worker(
            concurrency=slots,
            queues=list(queues),
            poll_interval_s=self.poll_s,
            rescan_interval_s=rescan_s,
        )
        self.claimer = Claimer(
            Settings(worker=worker, database=Database(reconnect_max_s=0.001)),
            self.store,  # type: ignore[arg-type]
            ports(self.clock),
            may_claim=lambda: self.healthy,
            allowances=self.allowances,  # type: ignore[arg-type]
            bell=Bell(self.store.arm, self.clock, listens=False),  # test_bell.py has one that does
            turn=Turn(),
            once=once,
        )

    @asynccontextmanager
    async def slots(self, number: int) -> AsyncIterator[list[asyncio.Task[Claimed | None]]]:
        """Let slots wait for their next job."""
        async with running(*(self.claimer.next() for _ in range(number))) as tasks:
            await turns()
            yield tasks

    async def claim(self) -> Question:
        """Wait for the next claim."""
        return await self.store.next("claim")

    async def first_look(self) -> None:
        """Get over the first full look, by which one job is found."""
        async with self.slots(1) as (slot,):
            (await self.claim()).answer([made()])
            await slot


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Keep what is logged."""
    kept = FakeLog()
    monkeypatch.setattr(module, "log", kept)
    return kept


def levels(question: Question) -> list[tuple[str, int]]:
    """Return which levels a claim looks at, in order."""
    return [(level.queue, level.priority) for level in question.arguments[0]]


def begins(question: Question) -> dict[int, int]:
    """Return behind which job a claim of one queue begins, by priority; 0 is the front, EMPTY the moment of the last look."""
    return {level.priority: EMPTY if level.after_at == LAST else level.after_id for level in question.arguments[0]}


def place(job: Job) -> Level:
    """Return the cursor behind a job."""
    return Level(job.queue, job.priority, job.available_at, job.id)


# ---------------------------------------------------------------- sharing


async def test_slots_that_wait_at_the_same_moment_share_one_claim() -> None:
    """As many tokens as slots; each slot gets a job of its own, trusted from before the claim was sent."""
    bench = Bench(slots=3)
    async with running(bench.claimer.run()), bench.slots(3) as slots:
        claim = await bench.claim()
        assert len(set(claim.arguments[1])) == 3
        assert claim.options == {"suspects": False, "closed": NOTHING_CLOSED}
        jobs = [made() for _ in range(3)]
        bench.clock.pass_s(7.0)
        claim.answer(jobs)
        assert [await slot for slot in slots] == [Claimed(job, 1_000.0) for job in jobs]


async def test_nothing_is_claimed_for_nobody() -> None:
    """However often it is woken: no leased job ever waits in memory."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()):
        bench.claimer.wake()
        assert await bench.store.quiet()


async def test_whoever_comes_while_a_claim_is_under_way_waits_for_the_next() -> None:
    """One claim at a time."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(1) as (first,):
        claim = await bench.claim()
        async with bench.slots(1) as (second,):
            assert await bench.store.quiet()
            claim.answer([made()])
            await first
            again = await bench.claim()
            assert len(again.arguments[1]) == 1
            again.answer([made()])
            assert await second is not None


async def test_a_slot_that_went_away_gets_no_job() -> None:
    """The next one in the row does."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(2) as (gone, stays):
        claim = await bench.claim()
        gone.cancel()
        job = made()
        claim.answer([job])
        found = await stays
        assert found is not None
        assert found.job is job


async def test_an_unhealthy_worker_claims_nothing() -> None:
    """Without heartbeats it couldn't keep what it gets; when they are back it claims at the next wake-up."""
    bench = Bench()
    bench.healthy = False
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        bench.claimer.wake()
        assert await bench.store.quiet()
        bench.healthy = True
        bench.claimer.wake()
        (await bench.claim()).answer([made()])
        assert await slot is not None


async def test_whose_mail_has_to_wait_is_named_in_the_claim() -> None:
    """It is asked for anew before each claim."""
    bench = Bench()
    bench.allowances.closed = Closed(("default",), ("relay",))
    async with running(bench.claimer.run()), bench.slots(1):
        claim = await bench.claim()
        assert claim.options["closed"] == Closed(("default",), ("relay",))
        claim.answer([made()])


async def test_no_more_is_claimed_than_is_allowed() -> None:
    """Tokens of a rate come before the lease; each job gets one, what wasn't needed is settled, and the rest waits."""
    bench = Bench(slots=3)
    bench.allowances.limit = 1
    permit = Permit("relay", 1_001.0)
    bench.allowances.permits = {"relay": [permit]}
    async with running(bench.claimer.run()), bench.slots(3) as slots:
        claim = await bench.claim()
        assert len(claim.arguments[1]) == 1
        job = made()
        bench.allowances.limit = 0
        claim.answer([job])
        assert await slots[0] == Claimed(job, 1_000.0, permit)
        assert await bench.store.quiet()
        assert bench.allowances.settled == [1]
        bench.allowances.limit = None
        bench.claimer.wake()
        (await bench.claim()).answer([made(), made()])
        assert [slot is not None for slot in [await slots[1], await slots[2]]] == [True, True]


async def test_the_next_look_comes_when_there_are_tokens_again() -> None:
    """Sooner than the poll, if it has to."""
    bench = Bench(slots=2)
    bench.allowances.limit, bench.allowances.wait_s = 0, 0.001
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        await turns()
        bench.allowances.limit = None
        (await bench.claim()).answer([made()])
        assert await slot is not None


async def test_queues_in_which_there_can_be_nothing_arent_looked_at() -> None:
    """The others are."""
    bench = Bench(queues=("a", "b"))
    bench.allowances.queues = ("b",)
    async with running(bench.claimer.run()), bench.slots(1):
        claim = await bench.claim()
        assert levels(claim) == [("b", priority) for priority in (0, 1, 2, 3)]
        claim.answer([made(queue="b")])


@pytest.mark.parametrize("before", [Closed(("default",), ()), Closed((), ("relay",))])
async def test_what_had_to_wait_is_looked_for_once_it_may_go(before: Closed) -> None:
    """It lies behind the cursors that went on without it."""
    bench = Bench()
    bench.allowances.closed = before
    async with running(bench.claimer.run()):
        await bench.first_look()
        bench.allowances.closed = NOTHING_CLOSED
        async with bench.slots(1):
            claim = await bench.claim()
            assert set(begins(claim).values()) == {0}
            claim.answer([made()])


async def test_an_allowance_that_fails_is_an_outage_like_another(log: FakeLog) -> None:
    """Nothing was claimed, so nothing is given back."""
    bench = Bench()
    bench.allowances.error = StoreUnavailable("away")
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        assert await bench.store.quiet()
        bench.allowances.error = None
        bench.claimer.wake()
        (await bench.claim()).answer([made()])
        assert await slot is not None
    assert log.events == [("warning", "claim.failed")]


# ---------------------------------------------------------------- where to look


async def test_the_urgent_come_first_and_queues_take_turns() -> None:
    """Priorities in order; within one the queue that was served is the last the next time."""
    bench = Bench(queues=("a", "b", "c"))
    firsts = []
    async with running(bench.claimer.run()):
        for _ in range(3):
            async with bench.slots(1) as (slot,):
                claim = await bench.claim()
                asked = levels(claim)
                assert [priority for _, priority in asked] == sorted([0, 1, 2, 3] * 3)
                assert {queue for queue, _ in asked[:3]} == {"a", "b", "c"}
                firsts.append(asked[3][0])
                claim.answer([made(queue=asked[3][0], priority=1)])
                await slot
    assert firsts == ["a", "b", "c"]


async def test_the_next_claim_begins_where_the_last_one_of_its_level_ended() -> None:
    """What lies before was claimed just now; other levels begin at their own place."""
    bench = Bench()
    async with running(bench.claimer.run()):
        async with bench.slots(2) as slots:
            first = await bench.claim()
            assert begins(first) == {0: 0, 1: 0, 2: 0, 3: 0}
            assert {level.after_at for level in first.arguments[0]} == {FIRST}
            jobs = [made(11, priority=0), made(12, priority=1)]
            first.answer(jobs)
            await asyncio.wait(slots)
        async with bench.slots(1) as (slot,):
            second = await bench.claim()
            assert begins(second) == {0: EMPTY, 1: 12, 2: 0, 3: 0}, (
                "nothing is left in a level before the last one that was served"
            )
            assert place(jobs[1]) in second.arguments[0]
            second.answer([made(13, priority=1)])
            await slot
        async with bench.slots(1):
            assert begins(await bench.claim()) == {0: EMPTY, 1: 13, 2: 0, 3: 0}


@pytest.mark.parametrize("cause", ["look_behind", "time"])
async def test_everything_is_looked_at_again_when_something_may_lie_anywhere_behind(cause: str) -> None:
    """When somebody says so, and at the latest two seconds after the last full look."""
    bench = Bench()
    async with running(bench.claimer.run()):
        await bench.first_look()
        if cause == "time":
            bench.clock.pass_s(RESCAN_S)
        else:
            bench.claimer.look_behind()
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            assert set(begins(claim).values()) == {0}
            claim.answer([made(21)])
            await slot
        async with bench.slots(1):
            assert begins(await bench.claim())[1] == 21, "once is enough"


async def test_a_wake_up_looks_a_little_behind() -> None:
    """A job's place is the start of its transaction: one that committed late lies behind the cursor, though not far."""
    bench = Bench()
    async with running(bench.claimer.run()):
        await bench.first_look()
        bench.claimer.wake()
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            assert begins(claim)[1] > 0
            assert [level.back_s for level in claim.arguments[0] if level.priority < 2] == [NEAR_S, NEAR_S]
            claim.answer([made(21)])
            await slot
        async with bench.slots(1):
            claim = await bench.claim()
            assert begins(claim)[1] == 21
            assert claim.arguments[0][1].back_s is None, "once is enough"


async def test_the_cursor_goes_back_to_a_job_that_was_released() -> None:
    """Just there; also when the next claim is already under way."""
    bench = Bench()
    async with running(bench.claimer.run()):
        await bench.first_look()
        async with bench.slots(1) as (slot,):
            (await bench.claim()).answer([made(33)])
            found = await slot
        assert found is not None
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            bench.claimer.released(found.job)
            claim.answer([made(35)])
            await slot
        async with bench.slots(1):
            claim = await bench.claim()
            assert place(found.job).after_at == claim.arguments[0][1].after_at
            assert begins(claim)[1] == 32


async def test_a_claim_that_finds_too_little_isnt_repeated() -> None:
    """What may lie behind comes with a wake-up, a poll or the next full look: an empty queue costs next to nothing."""
    bench = Bench()
    async with running(bench.claimer.run()):
        await bench.first_look()
        async with bench.slots(2) as slots:
            (await bench.claim()).answer([made()])
            assert await bench.store.quiet()
            bench.claimer.wake()
            again = await bench.claim()
            assert len(again.arguments[1]) == 1
            again.answer([made()])
            await asyncio.wait(slots)


async def test_a_look_that_is_too_dear_now_comes_by_itself_later() -> None:
    """A wake-up that can't look behind at once isn't forgotten."""
    bench = Bench()
    async with running(bench.claimer.run()):
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            bench.clock.pass_s(0.0001)  # so much did the first full look cost
            claim.answer([made()])
            await slot
        bench.claimer.look_behind()
        async with bench.slots(1):
            claim = await bench.claim()
            assert begins(claim)[1] > 0
            bench.clock.pass_s(0.0051)
            claim.answer([])
            assert begins(await bench.claim())[1] == 0


async def test_a_full_look_that_finds_nothing_isnt_repeated_at_once() -> None:
    """An empty queue costs next to nothing: the next look comes with a wake-up or the poll."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(1):
        (await bench.claim()).answer([])
        assert await bench.store.quiet()
        bench.claimer.wake()
        (await bench.claim()).answer([made()])


async def test_polling_finds_work_without_any_wake_up() -> None:
    """Notifications are a convenience."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        (await bench.claim()).answer([])
        (await bench.claim()).answer([made()])
        assert await slot is not None


# ---------------------------------------------------------------- claims without an answer


async def test_a_claim_without_an_answer_is_given_back_before_the_next_one(log: FakeLog) -> None:
    """By the levels and tokens that it was sent with; the next one begins where it began."""
    bench = Bench()
    async with running(bench.claimer.run()):
        await bench.first_look()
        async with bench.slots(1) as (slot,):
            lost = await bench.claim()
            lost.fail(StoreUnavailable("time-out"))
            back = await bench.store.next("abandon")
            assert [(level.queue, level.priority) for level in back.arguments[0]] == levels(lost)
            assert back.arguments[1] == lost.arguments[1]
            back.answer(1)
            again = await bench.claim()
            assert begins(again) == begins(lost)
            assert not set(again.arguments[1]) & set(lost.arguments[1]), "tokens are never used twice"
            again.answer([made()])
            assert await slot is not None
    assert log.events == [("warning", "claim.failed"), ("info", "claim.abandoned")]


async def test_it_is_given_back_once_more_a_little_later() -> None:
    """The server may still have been at it when the first try came; after that the lease's end decides."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()), bench.slots(1):
        lost = await bench.claim()
        lost.fail(StoreUnavailable("time-out"))
        (await bench.store.next("abandon")).answer(0)
        (await bench.claim()).answer([made()])
        assert await bench.store.quiet()
        bench.clock.pass_s(ABANDONED_TWICE_S)
        bench.claimer.wake()
        again = await bench.store.next("abandon")
        assert again.arguments == lost.arguments
        again.answer(0)
        bench.clock.pass_s(10 * ABANDONED_TWICE_S)
        bench.claimer.wake()
        assert await bench.store.quiet()


async def test_what_came_back_late_is_looked_for_where_its_claim_began() -> None:
    """Claims have gone on meanwhile."""
    bench = Bench(rescan_s=NEVER_S)
    async with running(bench.claimer.run()):
        await bench.first_look()
        async with bench.slots(1) as (slot,):
            lost = await bench.claim()
            lost.fail(StoreUnavailable("time-out"))
            (await bench.store.next("abandon")).answer(0)
            (await bench.claim()).answer([made(9_000)])
            await slot
        bench.clock.pass_s(ABANDONED_TWICE_S / 2)
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            assert begins(claim)[1] == 9_000
            bench.clock.pass_s(ABANDONED_TWICE_S / 2)
            claim.answer([made(9_001)])
            await slot
        async with bench.slots(1) as (slot,):
            (await bench.store.next("abandon")).answer(1)
            assert begins(await bench.claim())[1] == begins(lost)[1]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("no", "42501")])
async def test_giving_back_that_fails_is_repeated_and_stops_no_claim(error: Exception) -> None:
    """Whoever can't give back can still take."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        lost = await bench.claim()
        lost.fail(StoreUnavailable("time-out"))
        (await bench.store.next("abandon")).fail(error)
        (await bench.claim()).answer([made()])
        assert await slot is not None
        bench.clock.pass_s(ABANDONED_TWICE_S)
        bench.claimer.wake()
        assert (await bench.store.next("abandon")).arguments == lost.arguments


async def test_an_outage_is_said_once_and_claiming_goes_on_after_it(log: FakeLog) -> None:
    """Each claim of the outage is given back; the log has one line."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        (await bench.claim()).fail(StoreUnavailable("away"))
        for _ in range(3):
            (await bench.store.next("abandon")).fail(StoreUnavailable("away"))
            (await bench.claim()).fail(StoreUnavailable("away"))
        (await bench.store.next("abandon")).answer(0)
        question = await bench.store.questions.get()
        while question.name == "abandon":
            question.answer(0)
            question = await bench.store.questions.get()
        question.answer([made()])
        assert await slot is not None
    assert log.events == [("warning", "claim.failed")]


async def test_a_job_that_can_not_be_handed_out_goes_back() -> None:
    """Its slot was cancelled while the claim was under way."""
    bench = Bench()
    async with running(bench.claimer.run()):
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            slot.cancel()
            await turns()
            job = made()
            claim.answer([job])
            await turns()
        bench.claimer.wake()
        back = await bench.store.next("abandon")
        assert back.arguments[1] == (job.token,)
        back.answer(1)


# ---------------------------------------------------------------- stopping


async def test_stopping_sends_home_who_waits_and_whoever_comes() -> None:
    """And the loop ends."""
    bench = Bench()
    async with running(bench.claimer.run()) as (loop,), bench.slots(2) as slots:
        (await bench.claim()).answer([])
        await bench.store.next("claim")  # a suspect is looked for
        bench.claimer.stop()
        assert [await slot for slot in slots] == [None, None]
        assert await bench.claimer.next() is None
        del loop


async def test_jobs_that_come_after_the_stop_are_given_back_before_the_loop_ends() -> None:
    """A claim was on its way: nobody is left to work them, and nobody is to be blamed for them."""
    bench = Bench()
    async with running(bench.claimer.run()) as (loop,), bench.slots(2) as slots:
        claim = await bench.claim()
        bench.claimer.stop()
        assert [await slot for slot in slots] == [None, None]
        jobs = [made(priority=0), made(priority=3)]
        claim.answer(jobs)
        for job in jobs:
            back = await bench.store.next("abandon")
            assert back.arguments == ((Level("default", job.priority, job.available_at, job.id - 1),), (job.token,))
            back.answer(1)
        await loop
    assert await bench.store.quiet()


@pytest.mark.parametrize("first", ["answered", "failed"])
async def test_a_claim_that_fails_while_stopping_is_given_back_before_the_loop_ends(first: str) -> None:
    """At once and until it is answered."""
    bench = Bench()
    async with running(bench.claimer.run()) as (loop,), bench.slots(1):
        claim = await bench.claim()
        bench.claimer.stop()
        claim.fail(StoreUnavailable("time-out"))
        back = await bench.store.next("abandon")
        assert back.arguments == claim.arguments
        if first == "failed":
            back.fail(StoreUnavailable("away"))
            back = await bench.store.next("abandon")
        back.answer(1)
        await loop
    assert await bench.store.quiet()


async def test_once_nothing_is_due_and_every_slot_waits_once_is_over() -> None:
    """Also suspects have been looked for."""
    bench = Bench(once=True)
    async with running(bench.claimer.run()) as (loop,), bench.slots(2) as slots:
        (await bench.claim()).answer([])
        suspects = await bench.claim()
        assert suspects.options["suspects"] is True
        suspects.answer([])
        assert [await slot for slot in slots] == [None, None]
        await loop


async def test_once_waits_for_slots_that_still_work() -> None:
    """What they release may be due again."""
    bench = Bench(once=True)
    async with running(bench.claimer.run()), bench.slots(1) as (slot,):
        (await bench.claim()).answer([])
        assert await bench.store.quiet()
        async with bench.slots(1) as (other,):
            for suspects in (False, False, True):  # from the cursors, from the front, and suspects
                claim = await bench.claim()
                assert claim.options["suspects"] is suspects
                claim.answer([])
            assert [await slot, await other] == [None, None]


@pytest.mark.parametrize(("closed", "wait_s"), [(Closed(("default",), ("relay",)), None), (NOTHING_CLOSED, NEVER_S)])
async def test_once_waits_for_the_means_of_what_was_left_alone(closed: Closed, wait_s: float | None) -> None:
    """No relay is usable, or none has tokens: that nothing was found says nothing."""
    bench = Bench(once=True)
    bench.allowances.closed, bench.allowances.wait_s, bench.allowances.waits = closed, wait_s, wait_s is None
    async with running(bench.claimer.run()), bench.slots(2) as slots:
        (await bench.claim()).answer([])
        (await bench.claim()).answer([])
        assert await bench.store.quiet()
        assert not any(slot.done() for slot in slots)
        assert bench.claimer.held_up is (wait_s is None), "tokens always come"


async def test_once_believes_the_claim_and_not_the_look_for_suspects_after_it() -> None:
    """A token may come between the two: what the claim left out for want of it is still to be done."""
    bench = Bench(once=True)
    bench.allowances.wait_s = NEVER_S
    async with running(bench.claimer.run()), bench.slots(2) as slots:
        claim = await bench.claim()
        bench.allowances.wait_s = None
        claim.answer([])
        (await bench.claim()).answer([])
        assert await bench.store.quiet()
        assert not any(slot.done() for slot in slots)


async def test_a_worker_that_may_claim_nothing_does_not_come_round_for_a_look_that_is_owed() -> None:
    """Its pause is that of the tokens."""
    bench = Bench()
    bench.allowances.limit, bench.allowances.wait_s = 0, NEVER_S
    async with running(bench.claimer.run()), bench.slots(1):
        await turns()
        bench.claimer.look_behind()
        await turns()
        assert bench.claimer._patience_s() == bench.poll_s  # noqa: SLF001


async def test_once_waits_for_a_relay_that_is_away_if_a_mail_asks_for_it() -> None:
    """A relay that nobody asks for by name may stay away."""
    bench = Bench(once=True)
    bench.allowances.closed = Closed((), ("away",))
    async with running(bench.claimer.run()) as (loop,), bench.slots(2) as slots:
        for asked_for in (True, True, False):
            question = await bench.store.questions.get()
            while question.name == "claim":
                question.answer([])
                question = await bench.store.questions.get()
            assert question.name == "asked_for"
            assert question.arguments == (("away",),)
            question.answer(asked_for)
            await turns()
            assert bench.claimer.held_up is asked_for
            assert all(slot.done() is not asked_for for slot in slots)
            bench.claimer.wake()
        await loop


async def test_whoever_has_work_again_is_not_held_up() -> None:
    """So the patience of `--once` begins anew when that is done."""
    bench = Bench(once=True)
    bench.allowances.waits = True
    async with running(bench.claimer.run()), bench.slots(2) as slots:
        (await bench.claim()).answer([])
        (await bench.claim()).answer([])
        await turns()
        assert bench.claimer.held_up
        bench.claimer.wake()
        (await bench.claim()).answer([made()])
        await turns()
        assert sum(slot.done() for slot in slots) == 1
        assert not bench.claimer.held_up


async def test_once_ends_where_no_relay_would_ever_come() -> None:
    """A worker that only has functions leaves mail to others."""
    bench = Bench(once=True)
    bench.allowances.closed = Closed(("default",))
    async with running(bench.claimer.run()) as (loop,), bench.slots(2):
        (await bench.claim()).answer([])
        (await bench.claim()).answer([])
        await loop


# ---------------------------------------------------------------- suspects


async def test_an_idle_worker_takes_one_suspect_and_then_nothing_until_it_is_done() -> None:
    """So that the next crash blames one job and no bystander."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()), bench.slots(2) as (worker, idle):
        (await bench.claim()).answer([])
        claim = await bench.claim()
        assert claim.options["suspects"] is True
        assert len(claim.arguments[1]) == 1
        assert set(begins(claim).values()) == {0}
        claim.answer([made(crashes=1)])
        assert await worker is not None
        bench.claimer.wake()
        assert await bench.store.quiet(), "nothing runs beside a suspect"
        async with bench.slots(1) as (back,):
            ordinary = await bench.claim()
            assert ordinary.options["suspects"] is False
            ordinary.answer([made(), made()])
            assert (await back, await idle) != (None, None)


async def test_suspects_are_taken_one_after_the_other_without_a_pause() -> None:
    """Looks in vain have to be earned back, not those that find one: a crash leaves as many suspects as there were slots."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()), bench.slots(2) as (first, waiting):
        (await bench.claim()).answer([])
        look = await bench.claim()
        assert look.options["suspects"] is True
        bench.clock.pass_s(0.5)  # a dear look
        look.answer([made(crashes=1)])
        assert await first is not None
        async with bench.slots(1):
            (await bench.claim()).answer([])
            again = await bench.claim()
            assert again.options["suspects"] is True
            again.answer([made(crashes=1)])
            assert await waiting is not None


async def test_a_busy_worker_looks_for_no_suspect() -> None:
    """It would have bystanders."""
    bench = Bench(polls=True)
    async with running(bench.claimer.run()), bench.slots(1):
        for _ in range(3):
            claim = await bench.claim()
            assert claim.options["suspects"] is False
            claim.answer([])


async def test_a_suspect_that_has_waited_for_a_minute_gets_its_turn() -> None:
    """The slots are let run dry; then it runs alone, and then the others go on."""
    bench = Bench(polls=True)
    bench.claimer.front(Front((), suspect_is_due=True))
    bench.clock.pass_s(SUSPECT_PATIENCE_S - 1)
    bench.claimer.front(Front((), suspect_is_due=True))
    async with running(bench.claimer.run()):
        async with bench.slots(1) as (slot,):
            claim = await bench.claim()
            assert claim.options["suspects"] is False
            claim.answer([made()])
            await slot
        bench.clock.pass_s(1.0)
        async with bench.slots(1) as (dry,):
            assert await bench.store.quiet(), "one slot is still busy"
            async with bench.slots(1) as (last,):
                suspect = await bench.claim()
                assert suspect.options["suspects"] is True
                suspect.answer([])
                ordinary = await bench.claim()
                assert ordinary.options["suspects"] is False, "its turn is over, found or not"
                ordinary.answer([made(), made()])
                assert (await dry, await last) != (None, None)


async def test_patience_begins_anew_when_no_suspect_is_due() -> None:
    """Another process has taken it."""
    bench = Bench(polls=True)
    bench.claimer.front(Front((), suspect_is_due=True))
    bench.clock.pass_s(SUSPECT_PATIENCE_S)
    bench.claimer.front(Front((), suspect_is_due=False))
    bench.claimer.front(Front((), suspect_is_due=True))
    async with running(bench.claimer.run()), bench.slots(1):
        claim = await bench.claim()
        assert claim.options["suspects"] is False


# ---------------------------------------------------------------- the watchdog's question


@pytest.mark.parametrize("answer", [[], StoreUnavailable("away")])
async def test_every_round_is_noted_with_success_or_without(answer: Any) -> None:  # noqa: ANN401
    """An outage doesn't starve the watchdog; a claim that never ends does."""
    bench = Bench()
    async with running(bench.claimer.run()), bench.slots(1):
        claim = await bench.claim()
        bench.clock.pass_s(5.0)
        await turns()
        assert bench.claimer.round_mono == 1_000.0
        if isinstance(answer, Exception):
            claim.fail(answer)
        else:
            claim.answer(answer)
        await turns()
        assert bench.claimer.round_mono == 1_005.0
