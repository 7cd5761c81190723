"""Illegal rows are impossible, whoever writes them."""

from __future__ import annotations

import asyncpg

from tests.support.database import Database

VALID = {
    "payload": "'{}'",
    "expires_at": "now() + interval '1 day'",
}
LEASE = {"lease_token": "gen_random_uuid()", "lease_expires_at": "now()"}
ENDED = {"completed_at": "now()", "outcome": "'sent'"}
LONG = "repeat('x', {})"
LEGAL = {
    "ready": {},
    "leased": LEASE,
    "marked": {**LEASE, "marked_at": "now()"},
    "sent": ENDED,
    "sent under its token": {**ENDED, "lease_token": "gen_random_uuid()"},
    "assumed": {**ENDED, "assumed": "true"},
    "in doubt": {**ENDED, "outcome": "'in_doubt'", "doubts": "1"},
    "dead": {**ENDED, "outcome": "'dead'"},
    "found unsent by a person": {**ENDED, "outcome": "'dead'", "doubts": "1", "reason": "'resolved_not_sent'"},
    "cancelled": {**ENDED, "outcome": "'cancelled'"},
    "the longest texts": {
        "queue": LONG.format(100), "kind": LONG.format(100), "idempotency_key": LONG.format(500), "reason": LONG.format(200),
        "relay": LONG.format(200), "reply": LONG.format(500),
    },
    "the ends of time": {"available_at": "'2000-01-01Z'", "expires_at": "'3000-01-01Z'"},
}  # fmt: skip
ILLEGAL = {
    "finished without an outcome": {"completed_at": "now()"},
    "an outcome without an end": {"outcome": "'sent'"},
    "an outcome that there isn't": {**ENDED, "outcome": "'lost'"},
    "a token without an expiry": {"lease_token": "gen_random_uuid()"},
    "an expiry without a token": {"lease_expires_at": "now()"},
    "a mark without a token": {"marked_at": "now()"},
    "assumed and unfinished": {"assumed": "true"},
    "assumed and dead": {**ENDED, "outcome": "'dead'", "assumed": "true"},
    "dead after a doubt": {**ENDED, "outcome": "'dead'", "doubts": "1"},
    "dead after a doubt, for another reason": {**ENDED, "outcome": "'dead'", "doubts": "1", "reason": "'expired'"},
    "cancelled after a doubt": {**ENDED, "outcome": "'cancelled'", "doubts": "1"},
    "less than no attempt": {"attempt": "-1"},
    "less than no crash": {"crashes": "-1"},
    "less than no doubt": {"doubts": "-1"},
    "no attempts": {"max_attempts": "0"},
    "too many attempts": {"max_attempts": "10001"},
    "a priority above": {"priority": "-1"},
    "a priority below": {"priority": "4"},
    "a policy that there isn't": {"on_doubt": "'perhaps'"},
    "no queue": {"queue": "''"},
    "a queue with a space": {"queue": "'a b'"},
    "a queue of two lines": {"queue": "E'a\\n'"},
    "a long queue": {"queue": LONG.format(101)},
    "no kind": {"kind": "''"},
    "a kind with a slash": {"kind": "'a/b'"},
    "a relay with a space": {"relay_wanted": "'a b'"},
    "no key": {"idempotency_key": "''"},
    "a long key": {"idempotency_key": LONG.format(501)},
    "a trace that isn't one": {"traceparent": "'00-x'"},
    "created before mail": {"created_at": "'1999-12-31Z'"},
    "created never": {"created_at": "'infinity'"},
    "available before mail": {"available_at": "'1999-12-31Z'"},
    "available never": {"available_at": "'infinity'"},
    "expired before mail": {"expires_at": "'1999-12-31Z'"},
    "never expired": {"expires_at": "'infinity'"},
    "a long reason": {"reason": LONG.format(201)},
    "a long relay": {"relay": LONG.format(201)},
    "a long reply": {"reply": LONG.format(501)},
}
NOT_NULL = (
    "uid", "queue", "kind", "priority", "payload", "created_at", "available_at", "expires_at", "attempt", "max_attempts",
    "crashes", "doubts", "on_doubt", "assumed",
)  # fmt: skip


async def insert(connection: asyncpg.Connection, columns: dict[str, str]) -> str | None:
    """Insert a row and take it back; returns the name of the constraint that refused it, or None."""
    row = {**VALID, **columns}
    statement = f"INSERT INTO mailslot.jobs ({', '.join(row)}) VALUES ({', '.join(row.values())})"  # noqa: S608 - ours
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(statement)
    except asyncpg.CheckViolationError as error:
        return str(error.constraint_name)
    except asyncpg.NotNullViolationError as error:
        return f"{error.column_name} not null"
    else:
        return None
    finally:
        await transaction.rollback()


async def test_every_legal_row_is_accepted(database: Database) -> None:
    """The checks forbid nothing that the protocol writes."""
    connection = await database.connect()
    refused = {name: by for name, columns in LEGAL.items() if (by := await insert(connection, columns))}
    assert refused == {}


async def test_every_illegal_row_is_refused_by_a_check(database: Database) -> None:
    """Also the superuser's, and each check of a column or of the row refuses at least one of them."""
    connection = await database.connect()
    refused = {name: await insert(connection, columns) for name, columns in ILLEGAL.items()}
    assert [name for name, by in refused.items() if by is None] == []
    checks = await database.fetch("""
        SELECT conname FROM pg_constraint
        WHERE contype = 'c' AND (conrelid = 'mailslot.jobs'::regclass
              OR contypid IN (SELECT atttypid FROM pg_attribute WHERE attrelid = 'mailslot.jobs'::regclass AND attnum > 0))""")
    untested = {row["conname"] for row in checks} - set(refused.values())
    assert untested == {"payload_check"}  # 64 MiB, which has a test of its own
    assert len(checks) == 13


async def test_the_table_has_one_check_for_each_statement_to_parse(database: Database) -> None:
    """What a single column may hold is a domain's, which a claim or a mark never looks at."""
    checks = await database.fetch(
        "SELECT conname FROM pg_constraint WHERE conrelid = 'mailslot.jobs'::regclass AND contype = 'c'"
    )
    assert [row["conname"] for row in checks] == ["is_sound"]


async def test_a_payload_above_64_mebibytes_is_refused(database: Database) -> None:
    """The database refuses what no worker would read; it counts bytes as stored, before compression."""
    connection = await database.connect()
    assert await insert(connection, {"payload": "to_jsonb(repeat(' ', 67000000))"}) is None
    assert await insert(connection, {"payload": "to_jsonb(repeat(' ', 67200000))"}) == "payload_check"


async def test_what_a_job_is_made_of_is_never_null(database: Database) -> None:
    """Every column that a worker relies on has a value."""
    connection = await database.connect()
    refused = {name: await insert(connection, {name: "NULL"}) for name in NOT_NULL}
    assert refused == {name: f"{name} not null" for name in NOT_NULL}


async def test_there_is_one_row_of_settings_and_of_meta(database: Database) -> None:
    """A second row can't contradict the first, and the first can't be made anything else than the one."""
    connection = await database.connect()
    for statement, error in (
        ("INSERT INTO mailslot.settings DEFAULT VALUES", asyncpg.UniqueViolationError),
        ("INSERT INTO mailslot.settings (one) VALUES (false)", asyncpg.CheckViolationError),
        ("INSERT INTO mailslot.meta (schema_version) VALUES (2)", asyncpg.UniqueViolationError),
        ("INSERT INTO mailslot.meta (one, schema_version) VALUES (false, 2)", asyncpg.CheckViolationError),
        ("UPDATE mailslot.settings SET lease_s = 0", asyncpg.CheckViolationError),
        ("UPDATE mailslot.settings SET in_doubt_delay_s = 0", asyncpg.CheckViolationError),
        ("UPDATE mailslot.settings SET hard_cap_s = -1", asyncpg.CheckViolationError),
        ("UPDATE mailslot.settings SET max_crashes = 0", asyncpg.CheckViolationError),
        ("UPDATE mailslot.settings SET max_doubts = -1", asyncpg.CheckViolationError),
        ("INSERT INTO mailslot.queues VALUES ('a b')", asyncpg.CheckViolationError),
    ):
        try:
            await connection.execute(statement)
        except error:
            continue
        raise AssertionError(f"accepted: {statement}")


async def test_an_unfinished_job_has_the_one_index_and_updates_stay_on_their_page(database: Database) -> None:
    """No index covers a column that a claim, an extension or a mark changes: these are HOT updates."""
    rows = await database.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = 'mailslot' AND tablename = 'jobs'")
    changed = ("lease_token", "lease_owner", "leased_at", "lease_expires_at", "marked_at", "attempt", "crashes")
    assert len(rows) == 3
    assert [row["indexdef"] for row in rows if any(column in row["indexdef"] for column in changed)] == []
    connection = await database.connect()
    async with connection.transaction():
        job = await connection.fetchval("SELECT id FROM mailslot.enqueue('{}')")
        claim = "lease_token = gen_random_uuid(), lease_expires_at = now(), leased_at = now(), lease_owner = 'x', attempt = 1"
        for change in (claim, "lease_expires_at = now()", "marked_at = now()"):
            await connection.execute(f"UPDATE mailslot.jobs SET {change} WHERE id = $1", job)  # noqa: S608 - ours
        counts = await connection.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'mailslot.jobs'::regclass"
        )
    assert counts is not None
    assert tuple(counts) == (3, 3)
