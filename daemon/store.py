"""The worker's statements: one method each, one round trip each, and no connection is ever lent out.

Every method takes a connection from the pool, runs one statement of `sql/`, and gives the connection back before it returns, so
holding one across SMTP is impossible by construction. Batches go in as columns or as JSON. A connection that failed in any way
that isn't an answer is terminated, never reused: after a time-out or a cancellation nobody knows what it would answer next.

All methods raise StoreUnavailable when there was no answer (the statement may have run all the same: every statement is fenced
and may be repeated) and StoreRefused when the answer was no. All may be cancelled, with the same uncertainty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import asyncpg
import msgspec

from daemon.connections import Connections
from daemon.core.errors import StoreUnavailable
from daemon.core.job import Job
from daemon.core.outcome import Record, Release
from daemon.core.rate import Rate
from daemon.core.settings import Settings
from daemon.database import READ_ONLY, connect, statement, translated
from daemon.ports import Ports

PRIORITIES = (0, 1, 2, 3)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""Before and behind all jobs: the infinities of PostgreSQL."""
SWEEP_WINDOW = 5_000
"""Rows that a sweep looks at in each level: leased rows lie at the front of the index; 8 ms at a million unfinished jobs."""
SWEEP_LIMIT = 500
FRONT_AGE_S = 10.0
"""How old the front of a level is at least. What takes longer to commit may lie before it: a full look finds that."""
INLINE_BYTES = 262_144
"""Payloads up to here travel with the claim; larger ones are fetched by their slot, so that a claim stays short."""
PAYLOAD_TIMEOUT_S = 60.0
IDLE_S = 60.0
"""A connection that nobody needed for so long is closed."""


@dataclass(frozen=True, slots=True)
class Level:
    """One exact range of the index, (queue, priority), and behind which job to begin.

    `back_s`: the last so many seconds before the database's now are looked at in any case.
    """

    queue: str
    priority: int
    after_at: datetime = FIRST
    after_id: int = 0
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """Whose mail a claim leaves alone: that of these queues, and that which asks for one of these relays."""

    queues: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()


NOTHING_CLOSED = Closed()


@dataclass(frozen=True, slots=True)
class Wish:
    """Asks for tokens of one relay's bucket, or (less than 0) puts some back."""

    relay: str
    rate: Rate
    tokens: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What a bucket gave, and the seconds until it has another token."""

    relay: str
    taken: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the database says that all its workers agreed on, in seconds, and who we are to it."""

    schema_version: int
    instance: UUID
    lease_s: float
    in_doubt_delay_s: float
    hard_cap_s: float
    max_crashes: int
    max_doubts: int
    user: str
    may_work: bool


@dataclass(frozen=True, slots=True)
class Server:
    """What a server is and promises."""

    fsync: bool
    full_page_writes: bool
    read_only: bool
    schema_exists: bool


class MarkRequest(msgspec.Struct, frozen=True):
    """Asks to mark a job: its lease, the recipients as they will stand, and those that the dot would cover."""

    job: Job
    recipients: str | None
    sending: tuple[str, ...]


class Marked(msgspec.Struct, frozen=True):
    """The mark's decision: go, evidence (for `accepted`), cancelled, expired, busy or lost."""

    verdict: str
    accepted: tuple[str, ...]
    expires_in_s: float


class Ending(msgspec.Struct, frozen=True):
    """A conclusion on its way to the row: under this job's token."""

    job: Job
    conclusion: Record | Release


LOST = Marked("lost", (), 0.0)
"""What a job is told that the server leaves out: somebody's trigger may keep a row from being changed."""


class Asked(msgspec.Struct, omit_defaults=True):
    """One line of what `sql/mark.sql` is given."""

    id: int
    token: UUID
    sending: tuple[str, ...]
    recipients: str | None = None


class Recorded(msgspec.Struct, omit_defaults=True):
    """One line of what `sql/record.sql` is given. As JSON, for 14 arrays took the driver twice as long: 11 us a job, not 7."""

    id: int
    token: UUID
    uid: UUID
    verdict: str
    delay_s: float
    doubts: int
    assumed: bool
    outcome: str | None = None
    reason: str | None = None
    relay: str | None = None
    reply: str | None = None
    recipients: str | None = None
    stage: str | None = None
    accepted: tuple[str, ...] = ()


class Written(msgspec.Struct, frozen=True):
    """What a record or release did: done, busy or lost, and the outcome that the row has now (None: ready again)."""

    state: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Front:
    """Before which place nothing unfinished lies in each level, and whether a suspect is due: it has lost a worker before."""

    levels: tuple[Level, ...]
    suspect_is_due: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """One job that a sweep changed, why, and its outcome (None: ready again)."""

    id: int
    why: str
    outcome: str | None


class Store:
    """The statements, and the connections that they share. Made inside the event loop."""

    def __init__(self, settings: Settings, owner: str, ports: Ports) -> None:
        self._settings = settings
        self._owner = owner
        self._ports = ports
        database, name = settings.database, f"mailslot {owner}"
        self._connections = Connections(
            partial(connect, database, application_name=name), limit=database.pool_size, idle_s=IDLE_S, clock=ports.boottime_s
        )
        self._reading = asyncio.Lock()
        """One large payload at a time: the other connections are for marks and outcomes."""
        self._settled_at_mono = ports.boottime_s() + settings.lease.takeover_grace_s
        self._levels = [Level(queue, priority) for queue in settings.worker.queues for priority in PRIORITIES]

    def close(self) -> None:
        """Drop all connections at once; what was committed is committed."""
        self._connections.close()

    def expire(self) -> None:
        """Connect anew from now on: the server isn't the one we want."""
        self._connections.expire()

    def trouble(self) -> None:
        """Note that the database was away: from now on nobody is taken over until the grace has passed."""
        self._settled_at_mono = self._ports.boottime_s() + self._settings.lease.takeover_grace_s

    @property
    def may_take_over(self) -> bool:
        """Whether the link has been sound for the grace; others may need that long to come back and extend."""
        return self._ports.boottime_s() >= self._settled_at_mono

    async def server(self) -> Server:
        """Ask what the server is."""
        (row,) = await self._fetch("server")
        return Server(**row)

    async def agreement(self) -> Agreement:
        """Ask for the schema's version and the settings that all workers share."""
        (row,) = await self._fetch("agreement")
        return Agreement(**row)

    async def queues(self) -> list[str]:
        """Return every queue that has an unfinished job."""
        return [row["queue"] for row in await self._fetch("queues")]

    async def claim(
        self, levels: Sequence[Level], tokens: Sequence[UUID], *, suspects: bool, closed: Closed = NOTHING_CLOSED
    ) -> list[Job]:
        """Claim at most as many due jobs as there are tokens, in the levels' order; see `sql/claim.sql`.

        Returns the jobs, none when nothing is due.
        """
        lease = self._settings.lease
        rows = await self._fetch(
            "claim",
            *_columns(levels),
            len(tokens),
            list(tokens),
            self._owner,
            lease.duration_s,
            self.may_take_over,
            lease.takeover_grace_s,
            suspects,
            closed.queues,
            INLINE_BYTES,
            lease.max_crashes,
            closed.relays,
            [level.back_s for level in levels],
        )
        return [Job(*row) for row in rows]

    async def arm(self, heard: int | None) -> bool:
        """Arm the bell unless it has been armed since this number was heard; returns whether this did it. See `daemon.bell`."""
        (row,) = await self._fetch("bell_arm", heard)
        return bool(row["armed"])

    async def take(self, wishes: Sequence[Wish]) -> list[Taken]:
        """Take tokens from the relays' buckets, or put some back; one answer for each wish, in no order. Never waits for tokens.

        Cancelling may lose the tokens; nobody gets more than there were.
        """
        rows = await self._fetch(
            "take",
            [wish.relay for wish in wishes],
            [wish.rate.per_s for wish in wishes],
            [wish.rate.capacity for wish in wishes],
            [wish.tokens for wish in wishes],
        )
        return [Taken(**row) for row in rows]

    async def payload(self, job: Job) -> str | None:
        """Fetch a payload that was too large to travel with the claim; None when the job isn't the caller's any more."""
        async with self._reading:
            rows = await self._fetch("payload", job.id, job.token, timeout_s=PAYLOAD_TIMEOUT_S)
        return rows[0]["payload"] if rows else None

    async def abandon(self, levels: Sequence[Level], tokens: Sequence[UUID]) -> int:
        """Give back what a claim without an answer may have taken; returns how many jobs that were."""
        back_s = [level.back_s for level in levels]
        return len(await self._fetch("abandon", *_columns(levels), list(tokens), SWEEP_WINDOW, back_s))

    async def mark(self, requests: Sequence[MarkRequest]) -> list[Marked]:
        """Mark jobs; one decision for each request, in the requests' order."""
        lines = _json("mark", [Asked(each.job.id, each.job.token, each.sending, each.recipients) for each in requests])
        rows = await self._fetch("mark", lines, self._settings.lease.duration_s)
        found = {row["token"]: Marked(row["verdict"], tuple(row["accepted"] or ()), row["expires_in_s"] or 0.0) for row in rows}
        return [found.get(request.job.token, LOST) for request in requests]

    async def record(self, endings: Sequence[Ending]) -> list[Written]:
        """Write outcomes (and what goes back to ready with a delay); one answer for each, in order."""
        jobs = [ending.job for ending in endings]
        records = [ending.conclusion for ending in endings if isinstance(ending.conclusion, Record)]
        lines = _json("record", [_recorded(job, record) for job, record in zip(jobs, records, strict=True)])
        rows = await self._fetch("record", lines)
        return _answers(rows, jobs)

    async def release(self, endings: Sequence[Ending]) -> list[Written]:
        """Give jobs back with their attempt; one answer for each, in order."""
        jobs = [ending.job for ending in endings]
        releases = [ending.conclusion for ending in endings if isinstance(ending.conclusion, Release)]
        rows = await self._fetch(
            "release",
            [job.id for job in jobs],
            [job.token for job in jobs],
            [release.delay_s for release in releases],
            [release.reason for release in releases],
            [release.relay for release in releases],
            [release.reply for release in releases],
            [job.recipients for job in jobs],
        )
        return _answers(rows, jobs)

    async def sweep(self, *, fronts: Sequence[Level] = (), queues: Sequence[str] | None = None) -> list[Swept]:
        """Put right what no worker will: the front of this worker's levels, or with `queues` a full pass over those.

        `fronts` is what `front` has returned before.
        """
        lease = self._settings.lease
        full = queues is not None
        levels = [Level(queue, priority) for queue in queues or () for priority in PRIORITIES] if full else fronts or self._levels
        rows = await self._fetch(
            "sweep",
            [level.queue for level in levels],
            [level.priority for level in levels],
            None if full else SWEEP_WINDOW,
            SWEEP_LIMIT,
            self.may_take_over,
            lease.takeover_grace_s,
            lease.in_doubt_delay_s,
            lease.max_crashes,
            lease.max_doubts,
            lease.duration_s,
            full,
            [level.after_at for level in levels],
        )
        return [Swept(**row) for row in rows]

    async def asked_for(self, relays: Sequence[str], *, within_s: float) -> bool:
        """Return whether mail in this worker's levels that is due in so many seconds asks for one of these relays."""
        (row,) = await self._fetch(
            "asked",
            [level.queue for level in self._levels],
            [level.priority for level in self._levels],
            relays,
            within_s,
        )
        return bool(row["asked"])

    async def front(self, fronts: Sequence[Level] = ()) -> Front:
        """Look at the front of this worker's levels, from the very front or from what was found the last time."""
        levels = fronts or self._levels
        rows = await self._fetch(
            "front",
            [level.queue for level in levels],
            [level.priority for level in levels],
            [level.after_at for level in levels],
            SWEEP_WINDOW,
            self._settings.lease.max_crashes,
            FRONT_AGE_S,
        )
        found = tuple([Level(row["queue"], row["priority"], row["after_at"]) for row in rows])
        return Front(found, any(row["suspect_is_due"] for row in rows))

    async def _fetch(self, name: str, *args: object, timeout_s: float | None = None) -> list[asyncpg.Record]:
        connections = self._connections
        try:
            with translated(name):
                connection = await connections.take(self._settings.database.connect_timeout_s)
                answered = False
                try:
                    rows: list[asyncpg.Record] = await connection.fetch(statement(name), *args, timeout=timeout_s)
                    answered = True
                except asyncpg.PostgresError as error:
                    answered = error.sqlstate is not None and error.sqlstate[:2] not in {"08", "57"}
                    if error.sqlstate == READ_ONLY or not answered:
                        connections.expire()
                    raise
                finally:
                    connections.give_back(connection, sound=answered)
        except StoreUnavailable:
            self.trouble()
            raise
        return rows


def _json(operation: str, value: object) -> str:
    with translated(operation):
        return msgspec.json.encode(value).decode()


def _recorded(job: Job, record: Record) -> Recorded:
    return Recorded(
        job.id,
        job.token,
        job.uid,
        record.verdict,
        record.delay_s,
        record.doubts,
        record.assumed,
        record.outcome,
        record.reason,
        record.relay,
        record.reply,
        record.recipients,
        record.stage,
        record.accepted,
    )


def _columns(levels: Sequence[Level]) -> tuple[list[str], list[int], list[datetime], list[int]]:
    return (
        [level.queue for level in levels],
        [level.priority for level in levels],
        [level.after_at for level in levels],
        [level.after_id for level in levels],
    )


def _answers(rows: Sequence[asyncpg.Record], jobs: Sequence[Job]) -> list[Written]:
    found = {row["token"]: Written(row["state"], row["outcome"]) for row in rows}
    return [found[job.token] for job in jobs]
