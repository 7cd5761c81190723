"""Group commit: what is ready together is asked together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from daemon.batch import LARGEST, TURN_S, Batch, Turn
from daemon.core.errors import StoreRefused, StoreUnavailable
from tests.worker.fakes import Asked, running, turns


class Questions(Asked):
    """Takes the batches."""

    async def ask_all(self, questions: Sequence[int]) -> list[str]:
        """Ask the test."""
        answers: list[str] = await self.put("ask_all", list(questions))
        return answers


async def test_a_lone_question_is_put_at_once() -> None:
    """Nothing waits for company."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())
    async with running(batch.run(), batch.ask(1)) as (_, one):
        question = await asked.next("ask_all")
        assert question.arguments == ([1],)
        question.answer(["one"])
        assert await one == "one"


async def test_what_is_ready_together_shares_one_statement_and_each_gets_its_own_answer() -> None:
    """In the order in which they asked."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())
    async with running(*(batch.ask(n) for n in (3, 1, 2)), batch.run()) as tasks:
        question = await asked.next("ask_all")
        assert question.arguments == ([3, 1, 2],)
        question.answer(["three", "one", "two"])
        assert [await task for task in tasks[:3]] == ["three", "one", "two"]


async def test_the_next_batch_gathers_while_the_last_is_on_its_way() -> None:
    """One statement at a time; whoever comes meanwhile goes with the next."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())
    async with running(batch.run(), batch.ask(1)) as (_, one):
        first = await asked.next("ask_all")
        async with running(batch.ask(2), batch.ask(3)) as later:
            assert await asked.quiet()
            first.answer(["one"])
            second = await asked.next("ask_all")
            assert second.arguments == ([2, 3],)
            second.answer(["two", "three"])
            assert [await task for task in (one, *later)] == ["one", "two", "three"]


async def test_a_batch_is_bounded_and_the_rest_follows_without_another_question() -> None:
    """More than fit wait for the next statement, not for the next caller."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())
    async with running(*(batch.ask(n) for n in range(LARGEST + 1)), batch.run()) as tasks:
        first = await asked.next("ask_all")
        assert first.arguments == (list(range(LARGEST)),)
        first.answer(["x"] * LARGEST)
        second = await asked.next("ask_all")
        assert second.arguments == ([LARGEST],)
        second.answer(["last"])
        assert await tasks[LARGEST] == "last"


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("no", "42501")])
async def test_a_failure_is_told_to_its_whole_batch_and_to_nobody_else(error: Exception) -> None:
    """The loop goes on with those who come later."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())

    async def outcome(number: int) -> object:
        try:
            return await batch.ask(number)
        except (StoreUnavailable, StoreRefused) as raised:
            return raised

    async with running(outcome(1), outcome(2), batch.run()) as tasks:
        (await asked.next("ask_all")).fail(error)
        assert [await task for task in tasks[:2]] == [error, error]
        async with running(batch.ask(3)) as (later,):
            (await asked.next("ask_all")).answer(["three"])
            assert await later == "three"


@pytest.mark.parametrize("error", [None, StoreUnavailable("away")])
async def test_a_caller_that_goes_away_harms_nobody(error: Exception | None) -> None:
    """Cancelled before its question is put, or while it is on its way; its neighbours hear all the same."""
    asked = Questions()
    batch: Batch[int, str] = Batch(asked.ask_all, Turn())
    async with running(batch.run(), batch.ask(1)) as (_, gone):
        question = await asked.next("ask_all")
        async with running(batch.ask(2), batch.ask(3)) as (early, last):
            await turns()
            gone.cancel()
            early.cancel()
            await turns()
            if error is None:
                question.answer(["one"])
            else:
                question.fail(error)
            question = await asked.next("ask_all")
            assert question.arguments == ([2, 3],), "what was asked is put all the same"
            question.answer(["two", "three"])
            assert await last == "three"


async def test_batches_of_two_kinds_take_turns_and_gather_meanwhile() -> None:
    """While one kind is on its way the other gathers, so that it goes with more."""
    asked, turn = Questions(), Turn()
    marks: Batch[int, str] = Batch(asked.ask_all, turn)
    records: Batch[int, str] = Batch(asked.ask_all, turn)
    async with running(marks.run(), records.run(), marks.ask(1)):
        first = await asked.next("ask_all")
        async with running(records.ask(2)):
            await turns()
            async with running(records.ask(3)) as (three,):
                await turns()
                first.answer(["one"])
                second = await asked.next("ask_all")
                assert second.arguments == ([2, 3],)
                second.answer(["two", "three"])
                assert await three == "three"


async def test_nobody_waits_long_for_his_turn() -> None:
    """A statement that takes its time, or hangs, holds up no other kind."""
    turn = Turn()
    async with turn.taken():
        began_s = asyncio.get_running_loop().time()
        async with turn.taken():
            assert asyncio.get_running_loop().time() - began_s >= TURN_S / 2
        async with turn.taken():
            pass
    async with turn.taken() as mine:
        assert mine, "the turn is free again"


async def test_nobody_waits_long_behind_who_waited_before() -> None:
    """Between the end of one turn and the start of the next the turn looks free, and isn't."""
    turn, end = Turn(), asyncio.Event()

    async def hang() -> None:
        async with turn.taken():
            await end.wait()

    async with AsyncExitStack() as first:
        await first.enter_async_context(turn.taken())
        async with running(hang()), asyncio.timeout(5.0):
            await turns(3)
            await first.aclose()  # and asks again in the same step, as a busy batch does
            async with turn.taken():
                pass
            end.set()


async def test_who_is_cancelled_while_he_waits_takes_no_turn() -> None:
    """And whoever has it keeps it."""
    turn = Turn()

    async def take() -> None:
        async with turn.taken():
            raise AssertionError("had the turn")

    async with turn.taken():
        async with running(take()) as (waiting,):
            await turns()
            waiting.cancel()
        async with turn.taken() as mine:
            assert not mine
    async with turn.taken() as mine:
        assert mine
