"""Group commit: questions that are ready at the same moment share one statement.

The next batch gathers while the last one is on its way, so batches grow with the load and a lone question never waits for
company; the most it waits for is the statement before it, and for that no longer than `TURN_S`. Measured: one statement for each
job ends at 3,700 jobs a second whatever the table looks like, batches of 50 at 30,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from daemon.core.errors import MailslotError

TURN_S = 0.003
"""How long a statement waits for the one before it; where the database takes longer than that, they run side by side."""
Question = TypeVar("Question")
Answer = TypeVar("Answer")

LARGEST = 500
"""Questions in one statement; bounds how long a batch can take, not how many may wait."""


class Turn:
    """Lets a worker's claims, marks and records take turns, as long as they are quick.

    Whoever waits for his turn gathers meanwhile, so that batches grow to twice the size and the server does with half as many
    statements. Side by side, each of the three kinds had a fifth of the slots at any moment, and no more.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._wanted = 0
        """Who has the turn or waits for it; the lock alone looks free between the end of a turn and the start of the next."""

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[bool]:
        """Wait for the statement before, but not for long, then run the block; yields whether it has the turn.

        Cancelling is safe.
        """
        self._wanted += 1
        has_turn = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_S if self._wanted > 1 else None):
                    has_turn = await self._lock.acquire()
            yield has_turn
        finally:
            self._wanted -= 1
            if has_turn:
                self._lock.release()


class Gathering(Generic[Question, Answer]):
    """The questions that wait for the next batch, each with the future of its answer."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._filled = asyncio.Event()

    async def filled(self) -> None:
        """Wait until there are questions."""
        await self._filled.wait()

    def add(self, question: Question) -> asyncio.Future[Answer]:
        """Let a question wait, and return the future of its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self._filled.set()
        return future

    def batch(self) -> list[tuple[Question, asyncio.Future[Answer]]]:
        """Take the questions that wait longest."""
        batch, self._waiting = self._waiting[:LARGEST], self._waiting[LARGEST:]
        if not self._waiting:
            self._filled.clear()
        return batch

    def put_back(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        """Let questions wait again, before all others."""
        if batch:
            self._waiting = batch + self._waiting
            self._filled.set()


class Batch(Generic[Question, Answer]):
    """Collects questions and puts them to `ask_all`, which returns one answer for each, in order."""

    def __init__(self, ask_all: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]], turn: Turn) -> None:
        self._ask_all = ask_all
        self._turn = turn
        self._gathering: Gathering[Question, Answer] = Gathering()

    async def ask(self, question: Question) -> Answer:
        """Return the answer to one question.

        Raises what `ask_all` raised for its whole batch. A caller that is cancelled leaves the question where it is: it may be
        put all the same.
        """
        return await self._gathering.add(question)

    async def run(self) -> None:
        """Put batches, one at a time, for ever."""
        while True:
            await self._gathering.filled()
            async with self._turn.taken():
                await self._put(self._gathering.batch())

    async def _put(self, batch: list[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask_all([question for question, _ in batch])
        except MailslotError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
