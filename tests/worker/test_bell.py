"""The bell: armed once for each time that it may have been rung, and looked after for as long as a commit takes."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from daemon.batch import Turn
from daemon.bell import AGAIN_S, LOOKS_S, Bell
from daemon.claimer import Claimer
from daemon.core.errors import StoreUnavailable
from daemon.core.settings import Database, Settings, Worker
from daemon.cursors import NEAR_S
from daemon.store import FIRST, LAST
from tests.worker.fakes import Clock, FakeStore, made, ports, running
from tests.worker.test_claimer import FakeAllowances

NEVER_S = 3_600.0


class Bench:
    """A bell that a test rings, and a claimer that arms it."""

    def __init__(self, *, listens: bool = True, slots: int = 2) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.bell = Bell(self.store.arm, self.clock, listens=listens)
        self.allowances = FakeAllowances(["default"])
        self.claimer = Claimer(
            Settings(
                worker=Worker(concurrency=slots, poll_interval_s=NEVER_S, rescan_interval_s=NEVER_S),
                database=Database(reconnect_max_s=0.001),
            ),
            self.store,  # type: ignore[arg-type]
            ports(self.clock),
            may_claim=lambda: True,
            allowances=self.allowances,  # type: ignore[arg-type]
            turn=Turn(),
            bell=self.bell,
        )

    async def arm(self, *, answer: bool) -> bool:
        """Let the bell be armed, with this answer of the database."""
        async with running(self.bell.arm()) as (arming,):
            (await self.store.next("arm")).answer(answer)
            await asyncio.wait((arming,))
            return bool(arming.result())

    async def answers(self, *expected: tuple[str, Any]) -> None:
        """Answer what the claimer asks, which must be this and nothing else."""
        for name, answer in expected:
            (await self.store.next(name)).answer(answer)
        assert await self.store.quiet()


LOOK: tuple[str, Any] = ("claim", [])
ALONE: tuple[str, Any] = ("claim", [made()])


async def test_an_idle_worker_arms_and_looks_once_more() -> None:
    """What was committed between its look and the arming rang nobody."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK, ("arm", True), LOOK)


@pytest.mark.parametrize("look", ["at once", "later"])
async def test_the_looks_after_arming_reach_back(look: str) -> None:
    """A transaction that was long under way has its place among jobs that are gone."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        (await bench.store.next("claim")).answer([])
        (await bench.store.next("arm")).answer(True)  # noqa: FBT003  what the database says
        if look == "later":
            await bench.answers(LOOK)
            bench.clock.pass_s(LOOKS_S[0])
        claim = await bench.store.next("claim")
        assert all(level.after_at < LAST or level.back_s >= NEAR_S for level in claim.arguments[0])


async def test_after_an_outage_nobody_knows_which_ring_was_missed() -> None:
    """Everything is looked at, and the bell is armed whatever its number."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK, ("arm", False))
        bench.claimer.rung("7")
        (await bench.store.next("claim")).answer([])
        question = await bench.store.next("arm")
        assert question.arguments == (7,)
        question.answer(False)  # noqa: FBT003  what the database says
        bench.claimer.recovered()
        claim = await bench.store.next("claim")
        assert {level.after_at for level in claim.arguments[0]} == {FIRST}
        claim.answer([])
        assert (await bench.store.next("arm")).arguments == (None,)


async def test_who_finds_the_bell_armed_leaves_the_looking_to_whoever_did_it() -> None:
    """Of eight idle workers that one notification has woken, one looks again."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK, ("arm", False))
        assert bench.bell.wait_s() == inf


async def test_a_slot_without_a_job_is_enough() -> None:
    """A worker that is half busy can take a job at once too."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next(), bench.claimer.next()):
        await bench.answers(ALONE, ("arm", True), LOOK)


async def test_a_busy_worker_arms_nothing() -> None:
    """Every slot has a job, so nobody needs to be woken."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(ALONE)
        bench.claimer.wake()
        assert await bench.store.quiet()


async def test_an_armed_bell_is_asked_about_again_when_it_may_have_been_rung() -> None:
    """A poll that nothing woke asks nothing: an idle worker has few statements."""
    bench = Bench(slots=9)
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK, ("arm", False))
        async with running(bench.claimer.next()):
            await bench.answers(LOOK)
        bench.claimer.wake()
        await bench.answers(LOOK)
        bench.claimer.rung("7")
        await bench.answers(LOOK, ("arm", False))


@pytest.mark.parametrize(
    ("notes", "heard"),
    [
        ((), None),
        (("7",), 7),
        (("7", "8"), 8),
        (("7", ""), None),
        (("",), None),
        (("x",), None),
        (("9" * 19,), None),
        (("-1",), None),
    ],
)
async def test_the_database_is_told_the_number_that_was_heard_last(notes: tuple[str, ...], heard: int | None) -> None:
    """None if a ring may have been missed: at first, after an outage, and if somebody notifies what isn't a number."""
    bench = Bench()
    for note in notes:
        bench.bell.rung(note)
    async with running(bench.bell.arm()):
        assert (await bench.store.next("arm")).arguments == (heard,)


async def test_a_number_is_told_once() -> None:
    """Whoever hears nothing for long after it may have missed something."""
    bench = Bench()
    bench.bell.rung("7")
    await bench.arm(answer=True)
    bench.clock.pass_s(AGAIN_S)
    async with running(bench.bell.arm()):
        assert (await bench.store.next("arm")).arguments == (None,)


async def test_a_ring_that_got_lost_is_made_good_after_a_while() -> None:
    """Without a wake-up an armed bell is believed in for so long."""
    bench = Bench()
    assert not await bench.arm(answer=False)
    bench.clock.pass_s(AGAIN_S - 0.001)
    assert not await bench.bell.arm()
    bench.clock.pass_s(0.001)
    assert await bench.arm(answer=True)


async def test_whoever_armed_looks_again_for_commits_that_took_their_time() -> None:
    """Twice, and then the poll is enough."""
    bench = Bench()
    assert bench.bell.wait_s() == inf
    await bench.arm(answer=True)
    first_s, second_s = LOOKS_S
    assert bench.bell.wait_s() == pytest.approx(first_s)
    assert not bench.bell.looks()
    bench.clock.pass_s(first_s)
    assert bench.bell.looks()
    assert bench.bell.wait_s() == pytest.approx(second_s - first_s)
    bench.clock.pass_s(second_s)
    assert bench.bell.wait_s() == 0.0
    assert bench.bell.looks()
    assert (bench.bell.looks(), bench.bell.wait_s()) == (False, inf)


async def test_the_claimer_looks_when_the_bell_says_so() -> None:
    """With nothing that wakes it; a look whose time came while all slots were busy isn't made up for."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK, ("arm", True), LOOK)
        bench.clock.pass_s(LOOKS_S[-1])
        await bench.answers(LOOK)
        assert bench.bell.wait_s() == inf


async def test_a_ring_while_the_arming_is_under_way_isnt_forgotten() -> None:
    """The answer is older than the ring."""
    bench = Bench()
    async with running(bench.bell.arm()) as (arming,):
        question = await bench.store.next("arm")
        bench.bell.rung()
        question.answer(False)  # noqa: FBT003  what the database says
        await arming
    assert await bench.arm(answer=True)


async def test_an_arming_without_an_answer_is_repeated() -> None:
    """Nobody knows whether it is armed."""
    bench = Bench()
    async with running(bench.claimer.run(), bench.claimer.next()):
        (await bench.store.next("claim")).answer([])
        (await bench.store.next("arm")).fail(StoreUnavailable("away"))
        await bench.answers(LOOK, ("arm", False))


async def test_a_worker_that_doesnt_listen_arms_nothing() -> None:
    """It would have producers notify nobody."""
    bench = Bench(listens=False)
    async with running(bench.claimer.run(), bench.claimer.next()):
        await bench.answers(LOOK)


async def test_a_worker_that_may_claim_nothing_arms_nothing() -> None:
    """Its relays are away: more jobs are no news to it."""
    bench = Bench()
    bench.allowances.limit = 0
    async with running(bench.claimer.run(), bench.claimer.next()):
        assert await bench.store.quiet()
