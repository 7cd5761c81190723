"""The work that is measured: mails of one kilobyte, enqueued beforehand, released at one moment, and checked to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import asyncpg

from tests.support.database import Database

SENDER = "shop@example.net"
QUEUE = "default"
TEXT = ("Hello Ann, this is the text of a message that somebody has asked for, and it goes on like this.\r\n" * 9)[:850]
LOOK_S = 0.02
STALLED_S = 30.0
LONG_S = 3600.0

INSERT = """
INSERT INTO /* bench */ mailslot.jobs (payload, queue, kind, available_at, expires_at)
SELECT jsonb_build_object('to', jsonb_build_array('user' || i || '@example.org'), 'subject', 'Your order ' || i || ' has shipped',
                          'text', $1::text), $2, $3, now() + make_interval(secs => $5), now() + interval '3 days'
FROM generate_series(1, $4::integer) AS i
"""
HOLD = "INSERT INTO /* bench */ mailslot.queues VALUES ($1, true) ON CONFLICT (queue) DO UPDATE SET paused = true"
RELEASE = "UPDATE /* bench */ mailslot.queues SET paused = false WHERE queue = $1"
LAST = """
SELECT /* bench */ count(*) FROM (SELECT FROM mailslot.jobs WHERE queue = $1 AND priority = 1 AND completed_at IS NULL
AND available_at <= now() ORDER BY available_at DESC, id DESC LIMIT 1) AS last
"""
"""The job that is likely to be finished last: cheap to ask for, since it stands at the very end of the index."""
COUNTS = """
SELECT /* bench */ count(*) FILTER (WHERE outcome = 'sent') AS sent, count(*) FILTER (WHERE outcome IS NULL) AS unfinished,
       max(completed_at) AS last_at
FROM mailslot.jobs WHERE queue = $1 AND available_at <= now()
"""

LEFT = "SELECT /* bench */ count(*) FROM mailslot.jobs WHERE queue = $1 AND outcome IS NULL"


def payload(number: int) -> dict[str, Any]:
    """Return the payload of one mail, about one kilobyte as JSON."""
    return {"to": [f"user{number}@example.org"], "subject": f"Your order {number} has shipped", "text": TEXT}


async def enqueue(database: Database, jobs: int, *, kind: str = "email", due_in_s: float = 0.0) -> None:
    """Insert jobs in one statement; they are due at once, or all so many seconds later."""
    async with database.connection() as connection:
        await connection.execute(INSERT, TEXT, QUEUE, kind, jobs, due_in_s, timeout=LONG_S)


async def hold(database: Database, queue: str = QUEUE) -> None:
    """Pause the queue, so that a worker can start and be idle before it is measured."""
    await database.execute(HOLD, queue)


async def finished(connection: asyncpg.Connection) -> None:
    """Wait until no due job is unfinished. Asks for one row of the index, fifty times a second."""

    async def last_is_done() -> bool:
        return not await connection.fetchval(LAST, QUEUE)

    await until(last_is_done, every_s=LOOK_S)


async def until(said: Callable[[], Awaitable[bool]], *, every_s: float) -> None:
    """Ask again and again until the answer is yes."""
    while not await said():  # noqa: ASYNC110  the database has no event for this
        await asyncio.sleep(every_s)


class Round:
    """One batch of held jobs, from the moment at which they may be claimed to the last record."""

    def __init__(self, database: Database, jobs: int) -> None:
        self._database = database
        self._jobs = jobs
        self._begun_at: datetime | None = None
        self.seconds = 0.0

    async def run(self) -> None:
        """Release the queue and return when its last job is recorded.

        Raises AssertionError when nothing moves for STALLED_S.
        """
        async with self._database.connection() as connection:
            await connection.execute("SET enable_seqscan = off")
            self._begun_at = await connection.fetchval("SELECT /* bench */ clock_timestamp()")
            async with connection.transaction():
                await connection.execute(RELEASE, QUEUE)
                await connection.execute("NOTIFY mailslot")
            await self._last_one(connection)

    async def check(self) -> None:
        """Check that every job was sent, and work out the seconds that it took, by the server's clock."""
        row = await self._database.fetchrow(COUNTS, QUEUE)
        assert row is not None
        assert (row["sent"], row["unfinished"]) == (self._jobs, 0), f"of {self._jobs} jobs: {dict(row)}"
        assert self._begun_at is not None
        self.seconds = (row["last_at"] - self._begun_at).total_seconds()

    async def _last_one(self, connection: asyncpg.Connection) -> None:
        before = -1
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(STALLED_S):
                    await finished(connection)
                    return
            left = await self._database.fetchval(LEFT, QUEUE)
            assert left != before, f"{left} jobs unfinished, and none was finished in {STALLED_S:g} s"
            before = left
