"""A table of jobs that a test can put into any state, and the store that works on it.

`Queue.save` writes a row as it is, whatever the state; `Queue.claim` takes jobs the way a worker does. Time is never waited for:
leases that have expired are written as expired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import uuid4

import asyncpg
from msgspec.structs import replace

from daemon.core.job import Job
from daemon.core.outcome import Conclusion, Record
from daemon.core.settings import Database, Lease, Mail, Settings, Worker
from daemon.database import QUIET
from daemon.ports import Ports
from daemon.store import NOTHING_CLOSED, PRIORITIES, Closed, Ending, Level, Marked, MarkRequest, Store, Written

EVERYWHERE = [Level("default", priority) for priority in PRIORITIES]
YES, NO = True, False
"""Arguments of statements that are written out."""
AGO = "now() - interval '1 hour'"
SOON = "now() + interval '1 hour'"
LEASED = {"lease_token": "gen_random_uuid()", "lease_owner": "'gone'", "leased_at": AGO, "attempt": "1"}
"""A job that somebody has; add `lease_expires_at`, and `marked_at` if the dot may be out."""
EXPIRED = {**LEASED, "lease_expires_at": "now() - interval '5 minutes'"}
HELD = {**LEASED, "lease_expires_at": "now() + interval '20 seconds'"}
MARKED = {**HELD, "marked_at": AGO}
OVERDUE = {**LEASED, "lease_expires_at": AGO, "marked_at": AGO}
"""Marked, and both the lease and in_doubt_delay are over."""


def settings_for(dsn: str, *, queues: Sequence[str] = ("default",), grace_s: float = 0.0) -> Settings:
    """Return settings of a worker; without a grace it may take over at once, however young the test's server is."""
    return Settings(
        database=Database(dsn=dsn),
        worker=Worker(queues=list(queues)),
        lease=Lease(takeover_grace_s=grace_s),
        mail=Mail(max_payload_bytes=10_000),
    )


def text(value: object) -> str | None:
    """Return JSON text, or None for None: how recipients travel."""
    return None if value is None else json.dumps(value)


class Queue:
    """The jobs of one test, through a superuser's connection of its own and through a worker's store."""

    def __init__(self, connection: asyncpg.Connection, store: Store) -> None:
        self.connection = connection
        self.store = store

    async def save(self, payload: object = None, **columns: str | None) -> int:
        """Write a job; each column is given as an SQL expression. Returns its id."""
        columns = {"expires_at": "now() + interval '1 day'", **columns}
        names, values = ", ".join(columns), ", ".join(value or "NULL" for value in columns.values())
        statement = f"INSERT INTO mailslot.jobs (payload, {names}) VALUES ($1::jsonb, {values}) RETURNING id"  # noqa: S608  our own names
        saved: int = await self.connection.fetchval(statement, json.dumps(payload or {"to": ["ann@example.org"]}))
        return saved

    async def row(self, job_id: int) -> asyncpg.Record:
        """Return the job's row and the name of its state."""
        row = await self.connection.fetchrow(
            "SELECT j.*, s.state, j.recipients::text AS verdicts FROM mailslot.jobs AS j JOIN mailslot.job_states AS s USING (id)"
            " WHERE id = $1",
            job_id,
        )
        assert row is not None
        return row

    async def verdicts(self, job_id: int) -> dict[str, str] | None:
        """Return where each recipient stands, or None where all are alike; a question mark means doubted."""
        found = (await self.row(job_id))["verdicts"]
        if found is None:
            return None
        return {a: e.get("verdict", "later") + ("?" if e.get("doubted") else "") for a, e in json.loads(found).items()}

    async def ledger(self, job_id: int) -> list[asyncpg.Record]:
        """Return the job's rows in the ledger, the oldest first."""
        found: list[asyncpg.Record] = await self.connection.fetch(
            "SELECT * FROM mailslot.attempts WHERE job_id = $1 ORDER BY ended_at", job_id
        )
        return found

    async def change(self, job_id: int, **columns: str) -> None:
        """Set columns to SQL expressions."""
        assignments = ", ".join(f"{name} = {value}" for name, value in columns.items())
        await self.connection.execute(f"UPDATE mailslot.jobs SET {assignments} WHERE id = $1", job_id)  # noqa: S608  our own names

    async def claim(
        self,
        count: int = 10,
        *,
        levels: Sequence[Level] = EVERYWHERE,
        suspects: bool = False,
        closed: Closed = NOTHING_CLOSED,
    ) -> list[Job]:
        """Claim as a worker does."""
        return await self.store.claim(levels, [uuid4() for _ in range(count)], suspects=suspects, closed=closed)

    async def job(self, **columns: str | None) -> Job:
        """Save a job, claim it, and return it as its holder has it."""
        saved = await self.save(**columns)
        (job,) = await self.claim(suspects=int(columns.get("crashes") or 0) > 0)
        assert job.id == saved
        return job

    async def mark(self, job: Job, *sending: str, recipients: object = None) -> Marked:
        """Ask for the mark of one job."""
        (decision,) = await self.store.mark([MarkRequest(job, text(recipients), sending or ("ann@example.org",))])
        return decision

    async def conclude(self, job: Job, conclusion: Conclusion) -> Written:
        """Record or release one job."""
        write = self.store.record if isinstance(conclusion, Record) else self.store.release
        (written,) = await write([Ending(job, conclusion)])
        return written

    async def lose(self, job: Job) -> Job:
        """Take the job from its holder; returns it as the new holder has it."""
        await self.change(job.id, lease_expires_at="now() - interval '1 second'")
        (taken,) = await self.claim(suspects=job.crashes > 0)
        assert taken.id == job.id
        return taken


def stranger(job: Job) -> Job:
    """Return the job as somebody has it who never held it."""
    return replace(job, token=uuid4())


async def opened(settings: Settings) -> Store:
    """Return an open store."""
    return Store(settings, "me", Ports())


async def quiet(connection: asyncpg.Connection) -> None:
    """Give a connection the planner settings that the worker's have."""
    for name, value in QUIET.items():
        await connection.execute(f"SET {name} = {value}")
