"""Least privilege: each role may do what stands here, and everything else that exists is tried and refused."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from tests.schema.conftest import RoleConnection
from tests.support.database import Database

ROLES = ("mailslot_producer", "mailslot_worker", "mailslot_operator", "mailslot_monitor")
TABLES = {"attempts", "audit", "job_states", "jobs", "meta", "queues", "rates", "settings", "workers"}
SHARED = {"ending", "settle", "holds_assumed", "is_sound", "commit_durably"}
FUNCTIONS = {"enqueue", "enqueue_many", "cancel", "has_to_ring", "ring", *SHARED}
LIFECYCLE = {
    "available_at", "completed_at", "attempt", "crashes", "doubts", "lease_token", "lease_owner", "leased_at", "lease_expires_at",
    "marked_at", "cancel_requested_at", "outcome", "assumed", "reason", "relay", "reply", "recipients",
}  # fmt: skip
LEDGER = {"job_id", "lease_token", "owner", "attempt", "leased_at", "ended_at", "stage", "verdict", "reason", "relay", "reply",
          "accepted"}  # fmt: skip

MAY_EXECUTE = {
    "mailslot_producer": {"enqueue", "enqueue_many", "cancel"},
    "mailslot_worker": SHARED,
    "mailslot_operator": {"enqueue", "enqueue_many", "cancel", *SHARED},
    "mailslot_monitor": set(),
}
MAY_READ = {
    "mailslot_producer": set(),
    "mailslot_worker": {"meta", "settings", "queues", "jobs", "attempts", "rates", "workers"},
    "mailslot_operator": TABLES,
    "mailslot_monitor": {"job_states", "queues", "workers", "settings", "meta"},
}
MAY_INSERT = {
    "mailslot_producer": set(),
    "mailslot_worker": {"attempts", "rates", "workers"},
    "mailslot_operator": {"queues", "audit"},  # of the audit trail only some columns, which a test below tells apart
    "mailslot_monitor": set(),
}
MAY_DELETE = {
    "mailslot_producer": set(),
    "mailslot_worker": {"workers"},
    "mailslot_operator": {"queues"},
    "mailslot_monitor": set(),
}
MAY_UPDATE = {
    "mailslot_producer": {},
    "mailslot_worker": {
        "jobs": LIFECYCLE,
        "attempts": LEDGER,
        "rates": {"relay", "tokens", "filled_at", "taken"},
        "workers": {"session_key", "owner", "host", "pid", "version", "concurrency", "started_at", "seen_at"},
    },
    "mailslot_operator": {
        "jobs": {*LIFECYCLE, "expires_at"},
        "attempts": {"accepted"},
        "settings": {"one", "lease_s", "in_doubt_delay_s", "hard_cap_s", "max_crashes", "max_doubts", "notify"},
        "queues": {"queue", "paused"},
    },
    "mailslot_monitor": {},
}


async def is_refused(connection: asyncpg.Connection, statement: str) -> bool:
    """Try a statement and take it back; whether it was refused for want of a privilege."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    except asyncpg.PostgresError:
        return False  # the privilege was there; the statement made no sense
    else:
        return False
    finally:
        await transaction.rollback()


async def columns_of(database: Database) -> dict[str, set[str]]:
    """Return every table and view of the schema with its columns."""
    rows = await database.fetch("""
        SELECT relname, array_agg(attname::text) AS columns FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        WHERE relnamespace = 'mailslot'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND attnum > 0 AND NOT attisdropped
        GROUP BY relname""")
    return {row["relname"]: set(row["columns"]) for row in rows}


def attempts_on(tables: dict[str, set[str]], role: str) -> Iterator[tuple[str, bool]]:
    """Yield every way to touch every table, and whether the role may go it."""
    for table, columns in tables.items():
        name = f"mailslot.{table}"
        yield f"TABLE {name}", table in MAY_READ[role]
        yield f"INSERT INTO {name} DEFAULT VALUES", table in MAY_INSERT[role]
        yield f"DELETE FROM {name} WHERE false", table in MAY_DELETE[role]  # noqa: S608 - ours
        for column in columns:
            yield f"SELECT {column} FROM {name}", table in MAY_READ[role]  # noqa: S608 - ours
        if table == "job_states":
            yield f"CREATE OR REPLACE VIEW {name} AS SELECT 1", False
            yield f"DROP VIEW {name}", False
            continue
        yield f"TRUNCATE {name}", False
        yield f"LOCK {name} IN ACCESS EXCLUSIVE MODE", table in MAY_DELETE[role] or MAY_UPDATE[role].get(table) == columns
        yield f"CREATE TRIGGER x BEFORE INSERT ON {name} EXECUTE FUNCTION suppress_redundant_updates_trigger()", False
        yield f"ALTER TABLE {name} ADD x integer", False
        yield f"DROP TABLE {name}", False
        for column in columns:
            may_update = column in MAY_UPDATE[role].get(table, ())
            yield f"UPDATE {name} SET {column} = DEFAULT WHERE false", may_update  # noqa: S608 - ours


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_touch_what_it_needs_and_nothing_else(database: Database, connect_as: RoleConnection, role: str) -> None:
    """Every table, every verb, every column, by trying; a table that is added later is tried too."""
    tables = await columns_of(database)
    assert set(tables) == TABLES
    connection = await connect_as(role)
    wrong = [statement for statement, allowed in attempts_on(tables, role) if await is_refused(connection, statement) == allowed]
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_call_what_it_needs_and_nothing_else(database: Database, connect_as: RoleConnection, role: str) -> None:
    """Every function, by calling it with nothing."""
    rows = await database.fetch("""
        SELECT proname, (SELECT coalesce(string_agg('NULL::' || format_type(type, NULL), ', '), '')
                         FROM unnest(proargtypes) AS type) AS arguments
        FROM pg_proc WHERE pronamespace = 'mailslot'::regnamespace""")
    assert {row["proname"] for row in rows} == FUNCTIONS
    connection = await connect_as(role)
    calls = {row["proname"]: f"SELECT mailslot.{row['proname']}({row['arguments']})" for row in rows}
    called = {name for name, call in calls.items() if not await is_refused(connection, call)}
    assert called == MAY_EXECUTE[role]


@pytest.mark.parametrize("role", [*ROLES, "stranger"])
async def test_no_role_can_become_more_than_it_is(database: Database, connect_as: RoleConnection, role: str) -> None:
    """No object of its own in the schema, no sequence, no other role of ours, no default that turns a new table over."""
    if role == "stranger":
        connection = await connect_as("pg_read_all_stats")
        assert await is_refused(connection, "SELECT mailslot.cancel(1)")
        assert await is_refused(connection, "SELECT FROM mailslot.job_states")
    else:
        connection = await connect_as(role)
    for statement in (
        "CREATE TABLE mailslot.mine ()",
        "CREATE FUNCTION mailslot.mine() RETURNS integer LANGUAGE sql RETURN 1",
        "CREATE OR REPLACE FUNCTION mailslot.cancel(id bigint) RETURNS text LANGUAGE sql RETURN 'x'",
        "ALTER FUNCTION mailslot.enqueue RESET ALL",
        "SELECT nextval('mailslot.jobs_id_seq')",
        "SELECT setval('mailslot.jobs_id_seq', 1)",
        "ALTER SCHEMA mailslot RENAME TO theirs",
    ):
        assert await is_refused(connection, statement), statement
    rows = await database.fetch("""
        SELECT a.rolname AS member, b.rolname AS of FROM pg_roles AS a, pg_roles AS b
        WHERE a.rolname = ANY ($1) AND a.oid <> b.oid AND pg_has_role(a.oid, b.oid, 'MEMBER')""", ROLES)  # fmt: skip
    assert rows == []


async def test_roles_cannot_log_in_or_do_anything_outside(database: Database) -> None:
    """They are granted to an application's own users; none is more than a set of privileges."""
    rows = await database.fetch("SELECT * FROM pg_roles WHERE rolname = ANY ($1)", [*ROLES, "mailslot_owner"])
    assert len(rows) == 5
    for row in rows:
        powers = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolcanlogin", "rolreplication", "rolbypassrls")
        assert [name for name in powers if row[name]] == [], row["rolname"]


async def test_an_operator_notes_what_was_done_but_not_who_or_when(connect_as: RoleConnection) -> None:
    """The audit trail's author and time are the server's to say, and no row is ever changed."""
    operator = await connect_as("mailslot_operator")
    assert not await is_refused(operator, "INSERT INTO mailslot.audit (action, job_id, detail) VALUES ('x', 1, '{}')")
    for column, value in (("who", "'somebody'"), ("at", "now()"), ("id", "DEFAULT")):
        assert await is_refused(operator, f"INSERT INTO mailslot.audit (action, {column}) VALUES ('x', {value})")  # noqa: S608
    assert await is_refused(operator, "UPDATE mailslot.audit SET detail = '{}' WHERE false")


async def test_functions_that_lend_rights_pin_their_search_path(database: Database) -> None:
    """A SECURITY DEFINER function looks for names where its owner said, temporary ones last."""
    rows = await database.fetch("""
        SELECT proname, proconfig, proowner::regrole::text AS owner FROM pg_proc
        WHERE pronamespace = 'mailslot'::regnamespace AND prosecdef""")
    assert {row["proname"] for row in rows} == {"enqueue", "enqueue_many", "cancel", "ring"}
    assert all(row["proconfig"] == ["search_path=pg_catalog, pg_temp"] for row in rows)
    assert {row["owner"] for row in rows} == {"mailslot_owner"}


async def test_nothing_is_granted_to_everybody(database: Database) -> None:
    """No function, table, column, sequence or the schema itself has a privilege for PUBLIC, by grant or by default."""
    rows = await database.fetch("""
        SELECT name, privilege_type FROM (
            SELECT proname::text, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'mailslot'::regnamespace
            UNION ALL
            SELECT relname::text, coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner))
            FROM pg_class WHERE relnamespace = 'mailslot'::regnamespace AND relkind IN ('r', 'v', 'S')
            UNION ALL
            SELECT attname::text, attacl FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            WHERE relnamespace = 'mailslot'::regnamespace AND attacl IS NOT NULL
            UNION ALL
            SELECT nspname::text, coalesce(nspacl, acldefault('n', nspowner)) FROM pg_namespace WHERE nspname = 'mailslot'
        ) AS object (name, acl), aclexplode(acl) WHERE grantee = 0""")
    assert [tuple(row) for row in rows] == []


async def test_names_of_a_callers_own_are_never_looked_up(database: Database, connect_as: RoleConnection) -> None:
    """Functions and operators in front of the search path, and temporary tables, don't get the owner's rights."""
    await database.execute("""
        CREATE SCHEMA hostile;
        CREATE FUNCTION hostile.refuse() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'shadowed'; END $$;
        CREATE FUNCTION hostile.now() RETURNS timestamptz BEGIN ATOMIC SELECT hostile.refuse(); SELECT current_timestamp; END;
        CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz BEGIN ATOMIC SELECT hostile.now(); END;
        CREATE FUNCTION hostile.pg_notify(text, text) RETURNS void BEGIN ATOMIC SELECT hostile.refuse(); END;
        CREATE FUNCTION hostile.nextval(regclass) RETURNS bigint BEGIN ATOMIC SELECT hostile.refuse(); SELECT 1::bigint; END;
        CREATE FUNCTION hostile.pg_sequence_last_value(regclass) RETURNS bigint BEGIN ATOMIC SELECT hostile.nextval($1); END;
        CREATE FUNCTION hostile.set_config(text, text, boolean) RETURNS text BEGIN ATOMIC SELECT hostile.refuse(); SELECT $1; END;
        CREATE FUNCTION hostile.ending(text, integer, jsonb) RETURNS text BEGIN ATOMIC SELECT hostile.refuse(); SELECT $1; END;
        CREATE FUNCTION hostile.equal(text, text) RETURNS boolean BEGIN ATOMIC SELECT hostile.refuse(); SELECT true; END;
        CREATE FUNCTION hostile.equal(bigint, bigint) RETURNS boolean BEGIN ATOMIC SELECT hostile.refuse(); SELECT true; END;
        CREATE FUNCTION hostile.add(a timestamptz, b interval) RETURNS timestamptz BEGIN ATOMIC SELECT hostile.now(); END;
        CREATE OPERATOR hostile.= (FUNCTION = hostile.equal, LEFTARG = text, RIGHTARG = text);
        CREATE OPERATOR hostile.= (FUNCTION = hostile.equal, LEFTARG = bigint, RIGHTARG = bigint);
        CREATE OPERATOR hostile.+ (FUNCTION = hostile.add, LEFTARG = timestamptz, RIGHTARG = interval);
        CREATE TABLE hostile.jobs (LIKE mailslot.jobs);
        CREATE TABLE hostile.settings (notify boolean);
        GRANT USAGE ON SCHEMA hostile TO PUBLIC;
    """)
    producer = await connect_as("mailslot_producer")
    await producer.execute("SET search_path = hostile, pg_catalog, mailslot")
    await producer.execute("CREATE TEMP TABLE jobs (id bigint); CREATE TEMP TABLE settings (notify boolean); "
                           "CREATE FUNCTION pg_temp.coalesce_(text) RETURNS text LANGUAGE sql RETURN 'x'")  # fmt: skip
    first = await producer.fetchrow("SELECT * FROM mailslot.enqueue('{}', idempotency_key => 'k')")
    again = await producer.fetchrow("SELECT * FROM mailslot.enqueue('{}', idempotency_key => 'k')")
    assert first is not None
    assert again is not None
    assert (first["is_new"], again["is_new"], again["id"]) == (True, False, first["id"])
    assert await producer.fetchval("SELECT mailslot.cancel($1)", first["id"]) == "cancelled"
    assert await producer.fetchval("SELECT mailslot.enqueue_many(ARRAY['{}', '{}']::jsonb[], idempotency_keys => '{k,l}')") == 1
    with pytest.raises(asyncpg.RaiseError, match="shadowed"):
        await producer.fetchval("SELECT now()")


async def test_monitors_see_no_payload_no_address_and_no_reply(connect_as: RoleConnection) -> None:
    """States and counts, for people who shouldn't read mail."""
    monitor = await connect_as("mailslot_monitor")
    statement = await monitor.prepare("SELECT * FROM mailslot.job_states")
    names = {attribute.name for attribute in statement.get_attributes()}
    assert not names & {"payload", "recipients", "reply", "idempotency_key", "lease_token"}
