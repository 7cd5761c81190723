"""mailslot.enqueue() and mailslot.cancel(), as an application calls them in its own transaction."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tests.support.database import Database

SAVE = "SELECT * FROM mailslot.enqueue('{}', idempotency_key => 'invitation:42')"


async def until_waiting(database: Database) -> None:
    """Return when a transaction waits for another one to end."""
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')"
    while not await database.fetchval(waiting):
        pass


async def test_the_call_of_the_manual_works_as_written(database: Database) -> None:
    """Every argument by name, as an application in any language would write it."""
    row = await database.fetchrow(
        """SELECT * FROM mailslot.enqueue('{"to": ["maya@example.org"], "subject": "..", "text": ".."}'::jsonb,
           queue => 'default', idempotency_key => 'invitation:42', available_at => now(),
           expires_at => now() + interval '3 days', priority => 1, on_doubt => 'resend')"""
    )
    assert row is not None
    assert dict(row) == {"id": 1, "is_new": True, "outcome": None}


async def test_a_payload_is_enough(database: Database) -> None:
    """Now, for three days, in the queue default."""
    await database.execute("SELECT mailslot.enqueue('{}')")
    row = await database.fetchrow("SELECT * FROM mailslot.jobs")
    assert row is not None
    expected = {"queue": "default", "kind": "email", "priority": 1, "max_attempts": 100, "on_doubt": "resend"}
    assert {name: row[name] for name in expected} == expected
    assert row["available_at"] == row["created_at"]
    assert row["expires_at"] - row["available_at"] == timedelta(days=3)


async def test_a_job_may_ask_for_a_relay_by_its_name(database: Database) -> None:
    """Else it leaves that to its queue; a name that no relay can have is refused at once."""
    await database.execute("SELECT mailslot.enqueue('{}', relay => 'second'), mailslot.enqueue('{}')")
    assert [row[0] for row in await database.fetch("SELECT relay_wanted FROM mailslot.jobs ORDER BY id")] == ["second", None]
    with pytest.raises(asyncpg.CheckViolationError):
        await database.execute("SELECT mailslot.enqueue('{}', relay => 'no/such')")


async def test_expiry_counts_from_the_time_it_is_available(database: Database) -> None:
    """A job for next week doesn't expire before it."""
    await database.execute("SELECT mailslot.enqueue('{}', available_at => now() + interval '7 days')")
    assert await database.fetchval("SELECT expires_at - created_at FROM mailslot.jobs") == timedelta(days=10)


async def test_a_job_belongs_to_the_callers_transaction(database: Database) -> None:
    """Rolled back with it, as if it had never been."""
    connection = await database.connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(SAVE)
    await transaction.rollback()
    assert await database.fetchval("SELECT count(*) FROM mailslot.jobs") == 0


async def test_a_known_key_returns_the_first_job_and_its_outcome(database: Database) -> None:
    """Also after it has ended; the same key in another queue is another job; no key is never known."""
    first = await database.fetchrow(SAVE)
    await database.execute("UPDATE mailslot.jobs SET outcome = 'sent', completed_at = now()")
    again = await database.fetchrow(SAVE)
    elsewhere = await database.fetchrow("SELECT * FROM mailslot.enqueue('{}', 'other', 'invitation:42')")
    assert first is not None
    assert again is not None
    assert elsewhere is not None
    assert tuple(again) == (first["id"], False, "sent")
    assert elsewhere["is_new"]
    rows = await database.fetch("SELECT * FROM mailslot.enqueue('{}') UNION ALL SELECT * FROM mailslot.enqueue('{}')")
    assert [row["is_new"] for row in rows] == [True, True]


async def test_two_transactions_that_race_with_one_key_get_one_job(database: Database) -> None:
    """The second waits for the first to commit, and returns its job."""
    one, two = await database.connect(), await database.connect()
    transaction = one.transaction()
    await transaction.start()
    first = await one.fetchrow(SAVE)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        racing = group.create_task(two.fetchrow(SAVE))
        await until_waiting(database)
        await transaction.commit()
    second = racing.result()
    assert first is not None
    assert second is not None
    assert (first["is_new"], second["is_new"]) == (True, False)
    assert first["id"] == second["id"]
    assert await database.fetchval("SELECT count(*) FROM mailslot.jobs") == 1


async def test_the_second_of_a_race_saves_when_the_first_rolls_back(database: Database) -> None:
    """Nobody is told of a job that doesn't exist."""
    one, two = await database.connect(), await database.connect()
    transaction = one.transaction()
    await transaction.start()
    first = await one.fetchrow(SAVE)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        racing = group.create_task(two.fetchrow(SAVE))
        await until_waiting(database)
        await transaction.rollback()
    second = racing.result()
    assert first is not None
    assert second is not None
    assert second["is_new"]
    assert second["id"] != first["id"]
    assert [row["id"] for row in await database.fetch("SELECT id FROM mailslot.jobs")] == [second["id"]]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_an_older_snapshot_gets_a_serialization_failure_not_a_loop(database: Database, isolation: str) -> None:
    """The key is there but can't be seen: the application repeats its transaction, as it must in these levels anyway."""
    connection = await database.connect()
    await connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    await connection.fetch("SELECT 1 FROM mailslot.jobs")
    await database.execute(SAVE)
    with pytest.raises(asyncpg.SerializationError):
        await connection.fetchrow(SAVE, timeout=30)


MANY = "SELECT mailslot.enqueue_many($1::text[]::jsonb[], idempotency_keys => $2::text[])"


async def test_many_jobs_are_saved_as_one_by_one(database: Database) -> None:
    """With the defaults of mailslot.enqueue() where nothing or null is given, and each argument in its place."""
    every = {"payload": '\'{"a": 1}\'', "queue": "'q'", "idempotency_key": "'k'", "available_at": "now() + interval '1 day'",
             "expires_at": "now() + interval '2 days'", "priority": "3", "on_doubt": "'hold'", "kind": "'k'", "max_attempts": "7",
             "traceparent": "'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'", "relay": "'r'"}  # fmt: skip
    plural = {"payload": "payloads", "queue": "queues", "idempotency_key": "idempotency_keys", "priority": "priorities",
              "on_doubt": "on_doubts", "kind": "kinds", "traceparent": "traceparents", "relay": "relays"}  # fmt: skip
    one = ", ".join(f"{name} => {value}" for name, value in every.items())
    arrays = {"payload": "::jsonb[]", "available_at": "::timestamptz[]"}
    many = ", ".join(
        f"{plural.get(name, name)} => ARRAY[NULL, {value}]{arrays.get(name, '')}"
        for name, value in every.items()
        if name != "payload"
    )
    async with database.connection() as connection, connection.transaction():
        await connection.execute(f"SELECT mailslot.enqueue('{{}}'), mailslot.enqueue({one})")
        await connection.execute("UPDATE mailslot.jobs SET idempotency_key = 'before' WHERE idempotency_key IS NOT NULL")
        saved = await connection.fetchval(f"""SELECT mailslot.enqueue_many(ARRAY['{{}}', '{{"a": 1}}']::jsonb[], {many})""")
        await connection.execute("SELECT mailslot.enqueue_many(ARRAY['{}']::jsonb[])")
        rows = await connection.fetch("SELECT * FROM mailslot.jobs ORDER BY id")
    assert saved == 2
    unlike = {"id", "uid", "idempotency_key"}
    seen = [{name: value for name, value in row.items() if name not in unlike} for row in rows]
    assert seen[2:] == [*seen[:2], seen[0]]
    assert [row["idempotency_key"] for row in rows] == [None, "before", None, "k", None]


async def test_of_many_jobs_those_with_a_known_key_are_not_saved_again(database: Database) -> None:
    """Known from before, or from earlier in the same call, which is the one that stays; their order is that of their ids."""
    await database.execute("SELECT mailslot.enqueue('1', idempotency_key => 'a')")
    payloads, keys = ["2", "3", "4", "5", "6"], ["a", "b", None, "b", None]
    assert await database.fetchval(MANY, payloads, keys) == 3
    rows = await database.fetch("SELECT payload, idempotency_key FROM mailslot.jobs ORDER BY id")
    assert [tuple(row) for row in rows] == [("1", "a"), ("3", "b"), ("4", None), ("6", None)]


async def test_many_jobs_wait_for_whoever_is_saving_one_of_their_keys(database: Database) -> None:
    """And save it if he rolls back."""
    one, two = await database.connect(), await database.connect()
    for ending, new in (("COMMIT", 1), ("ROLLBACK", 2)):
        await one.execute(f"BEGIN; SELECT mailslot.enqueue('{{}}', idempotency_key => '{ending}')")
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            racing = group.create_task(two.fetchval(MANY, ["{}", "{}"], [ending, None]))
            await until_waiting(database)
            await one.execute(ending)
        assert racing.result() == new


async def test_one_bad_job_of_many_refuses_all(database: Database) -> None:
    """A statement is one thing; whoever wants to know which one it was halves."""
    for payloads, keys in ((["{}", None], [None, None]), (["{}", "{}"], [None, ""]), (["{}", "{"], [None, None])):
        with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
            await database.fetchval(MANY, payloads, keys)
    assert await database.fetchval("SELECT count(*) FROM mailslot.jobs") == 0


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ("", "cancelled"),
        ("doubts = 1", "in_doubt"),
        ("""recipients = '{"a": {"verdict": "sent"}, "b": {"verdict": "later"}}'""", "sent"),
        ("""recipients = '{"a": {"verdict": "in_doubt"}, "b": {"verdict": "later"}}'""", "in_doubt"),
        ("lease_token = gen_random_uuid(), lease_expires_at = now()", "cancel_requested"),
        ("outcome = 'sent', completed_at = now()", "sent"),
        ("outcome = 'dead', completed_at = now()", "dead"),
        ("outcome = 'in_doubt', completed_at = now()", "in_doubt"),
    ],
)
async def test_cancel_returns_the_state_afterwards(database: Database, columns: str, state: str) -> None:
    """Never cancelled when a copy may be out or somebody has it; a worker's job is decided by its mark."""
    job = await database.fetchval("SELECT id FROM mailslot.enqueue('{}')")
    if columns:
        await database.execute(f"UPDATE mailslot.jobs SET {columns}")  # noqa: S608 - ours
    assert await database.fetchval("SELECT mailslot.cancel($1)", job) == state
    assert await database.fetchval("SELECT coalesce(outcome, 'cancel_requested') FROM mailslot.jobs") == state


async def test_cancel_of_no_job_is_null(database: Database) -> None:
    """An application can tell `no such job` from every state."""
    assert await database.fetchval("SELECT mailslot.cancel(7)") is None


async def test_cancelling_twice_keeps_the_first_time(database: Database) -> None:
    """The first request stays the one that counts."""
    await database.execute("SELECT mailslot.enqueue('{}')")
    await database.execute("UPDATE mailslot.jobs SET lease_token = gen_random_uuid(), lease_expires_at = now()")
    await database.execute("SELECT mailslot.cancel(1)")
    first = await database.fetchval("SELECT cancel_requested_at FROM mailslot.jobs")
    await database.execute("SELECT mailslot.cancel(1)")
    assert await database.fetchval("SELECT cancel_requested_at FROM mailslot.jobs") == first
