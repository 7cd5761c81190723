"""The tables on which a queue may slow down: what lies in them beside the work, and what else goes on meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

from tests.bench import work
from tests.support.database import Database

MILLION = 1_000_000
LEASED = 10_000
QUEUES = tuple(f"queue-{number}" for number in range(1_000))
DAY_S = 86_400.0
FINISHED = """
INSERT INTO /* bench */ mailslot.jobs (payload, created_at, available_at, expires_at, completed_at, outcome, attempt,
                                       lease_token, lease_owner, leased_at, marked_at, reason, relay, reply)
SELECT jsonb_build_object('to', jsonb_build_array('user' || i || '@example.org'), 'subject', 'Your order', 'text', $1::text),
       now() - interval '1 day', now() - interval '1 day', now() + interval '2 days', now() - interval '1 day', 'sent', 1,
       gen_random_uuid(), 'bench', now() - interval '1 day', now() - interval '1 day', 'accepted', 'sink', '250 2.0.0 Ok'
FROM generate_series(1, $2::integer) AS i
"""
LEASE = """
UPDATE /* bench */ mailslot.jobs SET lease_token = gen_random_uuid(), lease_owner = 'another', leased_at = now(),
       lease_expires_at = now() + interval '55 seconds', attempt = 1
WHERE completed_at IS NULL AND queue = 'default' AND available_at < now() - interval '1 hour'
"""
"""As far ahead as a lease can be without looking like one of a clock that jumped: enough for a measurement."""
OLDER = "UPDATE /* bench */ mailslot.jobs SET available_at = available_at - interval '2 hours'"
SPREAD = "UPDATE /* bench */ mailslot.jobs SET queue = 'queue-' || id % 1000"


@dataclass(frozen=True, slots=True)
class Ground:
    """One kind of table."""

    name: str
    text: str
    """What it is, with places for the numbers."""
    lay: Callable[[Database, int], Awaitable[None]]
    """Makes what lies there; gets the database and by how much all numbers are divided."""
    aged: int = 0
    """How many jobs are worked off before it is measured."""
    queues: Sequence[str] = (work.QUEUE,)
    just_before: Callable[[Database], Awaitable[object]] | None = None
    """Done right before the work is released."""
    meanwhile: Callable[[Database], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    """What else goes on while the daemon works."""

    def about(self, divided: int) -> str:
        """Return what it is, when all numbers are divided by this."""
        return self.text.format(million=MILLION // divided, aged=self.aged // divided, leased=LEASED // divided)


async def _nothing(_database: Database, _divided: int) -> None:
    return


async def _due(database: Database, divided: int) -> None:
    await work.enqueue(database, MILLION // divided, kind="noop")


async def _future(database: Database, divided: int) -> None:
    await work.enqueue(database, MILLION // divided, due_in_s=DAY_S)


async def _finished(database: Database, divided: int) -> None:
    async with database.connection() as connection:
        await connection.execute(FINISHED, work.TEXT, MILLION // divided, timeout=work.LONG_S)


async def _leased(database: Database, divided: int) -> None:
    await work.enqueue(database, LEASED // divided)
    await database.execute(OLDER)


async def _lease(database: Database) -> None:
    await database.execute(LEASE)


async def _spread(database: Database) -> None:
    async with database.connection() as connection:
        await connection.execute(SPREAD, timeout=work.LONG_S)


@asynccontextmanager
async def pinned(database: Database) -> AsyncIterator[None]:
    """Hold a snapshot open, as a long report or a forgotten session does: no row that dies from now on can be cleared away."""
    async with database.connection() as connection:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT /* bench */ count(*) FROM mailslot.meta")
        yield


GROUNDS: Sequence[Ground] = (
    Ground("empty", "nothing but the work", _nothing),
    Ground("due", "{million:,} more due", _due),
    Ground("future", "{million:,} due tomorrow", _future),
    Ground("finished", "{million:,} finished", _finished),
    Ground("pinned", "after {aged:,} jobs under a pinned snapshot", _nothing, aged=500_000, meanwhile=pinned),
    Ground("leased", "{leased:,} leased by others in front", _leased, just_before=_lease),
    Ground("queues", "the work in 1,000 queues", _nothing, queues=QUEUES, just_before=_spread),
)
