"""What changes between a statement's snapshot and its locks is judged as it is under the lock.

Each statement is held up right there: a lock that somebody else has is waited for inside it, after its snapshot was taken and
before it locks its rows. Then the row changes, and the statement goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from daemon.database import statement
from daemon.store import FIRST
from tests.store.plans import given
from tests.store.queue import EXPIRED, HELD, OVERDUE, Queue
from tests.support.database import Database

GATE = 77
WAITING = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted)"

SENT = "completed_at = now(), outcome = 'sent', lease_expires_at = NULL"
EXTENDED = "lease_expires_at = now() + interval '20 seconds'"
TAKEN = "lease_token = gen_random_uuid(), lease_expires_at = now() + interval '20 seconds'"
CANCELLED = "completed_at = now(), outcome = 'cancelled'"
MARKED = "marked_at = now()"


def gated(name: str, before: str, after: str, source: str = "") -> str:
    """Return a statement that waits at the gate where `before` stands; the gate opens after `source` has been read."""
    text = statement(name)
    assert text.count(before) == 1
    gate = f"gate AS MATERIALIZED (SELECT pg_advisory_xact_lock({GATE}) {source})"
    text = text.replace(before, after)
    if source:
        head, found, tail = text.partition("), judged AS MATERIALIZED (")
        assert found
        return f"{head}), {gate}, judged AS MATERIALIZED ({tail}"
    return text.replace("WITH ", f"WITH {gate}, ", 1)


ARRAYS, DOCUMENT = "unnest($1::bigint[]", "json_to_recordset($1::json)"
ASKED = {
    name: (f"FROM {source}", f"FROM gate CROSS JOIN {source}")
    for name, source in {"extend": ARRAYS, "release": ARRAYS, "mark": DOCUMENT, "record": DOCUMENT}.items()
}
ARGUMENTS_OF_SWEEP = (["default"], [1], 5_000, 500, True, 0.0, 660.0, 3, 2, 30.0, False, [FIRST])


class Gate:
    """Holds statements up while it is closed."""

    def __init__(self, keeper: asyncpg.Connection, connection: asyncpg.Connection) -> None:
        self._keeper = keeper
        self._connection = connection

    async def answers(self, text: str, arguments: tuple[Any, ...], meanwhile: str) -> list[asyncpg.Record]:
        """Run a gated statement, run `meanwhile` while it waits, let it go on, and return its rows."""
        await self._keeper.execute("SELECT pg_advisory_lock($1)", GATE)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._connection.fetch(text, *arguments))
            while not await self._keeper.fetchval(WAITING, GATE):
                assert not running.done()
            await self._keeper.execute(meanwhile)
            await self._keeper.execute("SELECT pg_advisory_unlock($1)", GATE)
        return running.result()


@pytest.fixture
async def gate(other: asyncpg.Connection, shared_database: Database) -> AsyncIterator[Gate]:
    """Return a gate between two connections."""
    async with shared_database.connection() as connection:
        yield Gate(other, connection)


def changed(job_id: int, assignments: str) -> str:
    """Return an UPDATE of one job."""
    return f"UPDATE mailslot.jobs SET {assignments} WHERE id = {job_id}"  # noqa: S608  our own names


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        (EXPIRED, SENT),
        (EXPIRED, EXTENDED),
        (EXPIRED, TAKEN),
        (EXPIRED, MARKED),
        (OVERDUE, SENT),
        (OVERDUE, EXTENDED),
        (OVERDUE, TAKEN + ", marked_at = NULL"),
        ({"expires_at": "now() - interval '1 second'"}, CANCELLED),
        ({"expires_at": "now() - interval '1 second'"}, "expires_at = now() + interval '1 day'"),
    ],
)
async def test_a_sweep_judges_the_row_that_it_locks_and_not_the_one_that_it_saw(
    queue: Queue, gate: Gate, columns: dict[str, str], change: str
) -> None:
    """A record, an extension, a takeover or an operator that comes between the look and the lock wins."""
    saved = await queue.save(**columns)
    text = gated(
        "sweep",
        "FROM looked CROSS JOIN taking",
        "FROM (SELECT looked.* FROM looked CROSS JOIN gate OFFSET 0) AS looked CROSS JOIN taking",
        "FROM (SELECT count(*) FROM looked) AS counted",
    )
    assert await gate.answers(text, ARGUMENTS_OF_SWEEP, changed(saved, change)) == []
    row = await queue.row(saved)
    assert (row["crashes"], row["reason"], await queue.ledger(saved)) == (0, None, [])


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        ({}, TAKEN),
        ({}, CANCELLED),
        ({}, "available_at = now() + interval '1 hour'"),
        ({}, "crashes = 1"),
        ({}, "expires_at = now() - interval '1 second'"),
        (EXPIRED, SENT),
        (EXPIRED, EXTENDED),
        (EXPIRED, TAKEN),
        (EXPIRED, MARKED),
        (EXPIRED, "cancel_requested_at = now()"),
    ],
)
async def test_a_claim_takes_the_row_that_it_locks_and_not_the_one_that_it_saw(
    queue: Queue, gate: Gate, columns: dict[str, str], change: str
) -> None:
    """Nobody is taken over who has just come back, and nothing is taken twice."""
    saved = await queue.save(**columns)
    text = gated("claim", "FROM unnest($1::text[]", "FROM gate CROSS JOIN unnest($1::text[]")
    levels = (["default"], [1], [FIRST], [0])
    arguments: tuple[Any, ...] = (*levels, 1, [uuid4()], "me", 30.0, True, 0.0, False, [], 1_000, 3, [], [None])
    assert await gate.answers(text, arguments, changed(saved, change)) == []
    assert await queue.ledger(saved) == []
    assert (await queue.row(saved))["lease_owner"] != "me"


def said(answer: asyncpg.Record) -> str:
    """Return what a holder's statement answered."""
    return str(answer.get("state") or answer["verdict"])


@pytest.mark.parametrize("change", [SENT, TAKEN, "lease_token = NULL, lease_expires_at = NULL"], ids=["sent", "taken", "back"])
@pytest.mark.parametrize("name", ["extend", "mark", "release"])
async def test_the_fence_is_tested_under_the_lock(queue: Queue, gate: Gate, name: str, change: str) -> None:
    """A holder whose lease goes while its statement is on its way changes nothing; asked again, it hears that it is lost."""
    saved = await queue.save(**HELD)
    row = await queue.row(saved)
    arguments = given(name, [saved], [row["lease_token"]], [row["uid"]])
    (answer,) = await gate.answers(gated(name, *ASKED[name]), arguments, changed(saved, change))
    assert said(answer) in {"busy", "lost"}
    row = await queue.row(saved)
    assert (row["marked_at"], row["reason"], row["attempt"]) == (None, None, 1)
    (again,) = await queue.connection.fetch(statement(name), *arguments)
    assert said(again) == "lost"


async def test_a_mark_decides_by_the_cancellation_that_it_finds_under_the_lock(queue: Queue, gate: Gate) -> None:
    """The application's commit came first, so its wish counts."""
    saved = await queue.save(**HELD)
    arguments = given("mark", [saved], [(await queue.row(saved))["lease_token"]], [])
    (answer,) = await gate.answers(gated("mark", *ASKED["mark"]), arguments, f"SELECT mailslot.cancel({saved})")
    assert answer["verdict"] == "cancelled"
    assert (await queue.row(saved))["marked_at"] is None


async def test_a_record_counts_from_what_it_finds_under_the_lock(queue: Queue, gate: Gate) -> None:
    """Cancelled while the record is on its way: it ends instead of being tried again."""
    saved = await queue.save(**HELD)
    row = await queue.row(saved)
    later = {"outcome": None, "delay_s": 60.0, "reason": "deferred", "stage": "rcpt", "verdict": "later", "accepted": None}
    arguments = given("record", [saved], [row["lease_token"]], [row["uid"]], **later)
    text = gated("record", *ASKED["record"])
    (answer,) = await gate.answers(text, arguments, f"SELECT mailslot.cancel({saved})")
    assert (answer["state"], answer["outcome"]) == ("done", "cancelled")
