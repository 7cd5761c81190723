"""What the worker's loops are tested with: a clock that is set by hand, a store that answers when the test says so, and jobs.

`Asked` is the meeting point: a loop asks and waits, the test takes the question, looks at it, and answers or fails it. So a test
waits for what a loop does, never for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from daemon.core.job import Job
from daemon.ports import Ports

PATIENCE_S = 10.0
"""After this a test that waits for a question fails."""
NOW = datetime(2025, 12, 1, 7, 30, tzinfo=UTC)
_numbers = count(1)


class Clock:
    """A boot clock that stands still until it is set."""

    def __init__(self, now_mono: float = 1_000.0) -> None:
        self.now_mono = now_mono

    def __call__(self) -> float:
        """Return the second that it is."""
        return self.now_mono

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_mono += seconds


def ports(clock: Clock) -> Ports:
    """Return ports with this clock, dice that never surprise, and tokens that are numbers."""
    return Ports(boottime_s=clock, number=lambda: 0.5, token=lambda: UUID(int=next(_numbers)))


def made(job_id: int = 0, **changes: Any) -> Job:  # noqa: ANN401  a job's fields
    """Return a job as the claim returns it."""
    number = next(_numbers)
    fields: dict[str, Any] = {
        "id": job_id or number,
        "uid": UUID(int=number),
        "token": UUID(int=number),
        "queue": "default",
        "kind": "email",
        "priority": 1,
        "payload": "{}",
        "payload_bytes": 2,
        "recipients": None,
        "attempt": 1,
        "max_attempts": 5,
        "crashes": 0,
        "doubts": 0,
        "on_doubt": "resend",
        "created_at": NOW,
        "available_at": NOW + timedelta(seconds=number),
        "expires_at": NOW + timedelta(days=3),
    }
    return Job(**{**fields, **changes})


@dataclass
class Question:
    """One call of a fake's method that waits for its answer."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    future: asyncio.Future[Any] = field(repr=False)

    def answer(self, value: object = None) -> None:
        """Let the call return."""
        self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Let the call raise."""
        self.future.set_exception(error)


class Asked:
    """Stands in for a store or a session: every method asks the test. `notes` are calls that need no answer, in order."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[Question] = asyncio.Queue()
        self.notes: list[str] = []

    async def put(self, name: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  as the real one's
        """Ask, and wait for the answer."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait(Question(name, arguments, options, future))
        return await future

    async def next(self, name: str) -> Question:
        """Wait for the next question, which must be this one."""
        async with asyncio.timeout(PATIENCE_S):
            question = await self.questions.get()
        assert question.name == name, question
        return question

    async def quiet(self) -> bool:
        """Let the loops run as far as they can without an answer; returns whether nobody asked anything."""
        await turns()
        return self.questions.empty()


class FakeStore(Asked):
    """Stands in for the store."""

    def trouble(self) -> None:
        """Note that the database was away."""
        self.notes.append("trouble")

    def expire(self) -> None:
        """Note that connections were given up."""
        self.notes.append("expire")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  as the real one's
        async def ask(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  as the real one's
            return await self.put(name, *arguments, **options)

        return ask


class FakeSession(Asked):
    """Stands in for the worker's own session."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    async def open(self) -> None:
        """Ask to be opened."""
        await self.put("open")
        self.is_open = True

    async def extend(self, leases: Any) -> Any:  # noqa: ANN401  as the real one's
        """Ask for the leases' states; a failure closes the session, as the real one's does."""
        try:
            return await self.put("extend", leases)
        except BaseException:
            self.is_open = False
            raise


class FakeLog:
    """Keeps what would be logged."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def bind(self) -> FakeLog:
        """Return a logger that keeps its events here too."""
        return self

    def __getattr__(self, level: str) -> Any:  # noqa: ANN401  as the real one's
        return lambda event, **_: self.events.append((level, event))


async def turns(number: int = 50) -> None:
    """Let everything run that is ready to run, and what becomes ready by that."""
    for _ in range(number):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run loops in the background for as long as the block lasts."""
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(loop) for loop in loops]
        try:
            yield started
        finally:
            for task in started:
                task.cancel()
