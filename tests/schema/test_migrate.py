"""`mailslot db migrate`: all or nothing, once, and never backwards."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit, urlunsplit

import pytest

from daemon import resources
from daemon.cli import db
from daemon.cli.db import Migrated, migrate
from daemon.core.errors import SchemaMismatch, StoreRefused
from daemon.core.schema import SCHEMA_VERSION
from daemon.core.settings import Database as Address
from daemon.core.settings import Settings
from daemon.dev.postgres import Server
from tests.support.database import Database

CREATED = Migrated(None, SCHEMA_VERSION, ("schema.sql",))
FIRST = resources.Step(2, "add_colour", "ALTER TABLE mailslot.jobs ADD colour text")
SECOND = resources.Step(3, "add_table", "CREATE TABLE mailslot.colours (colour text)")
BROKEN = resources.Step(3, "break", "SELECT 1/0")


@pytest.fixture
async def empty(database: Database) -> Database:
    """Return a database without the schema."""
    await database.execute("DROP SCHEMA mailslot CASCADE")
    return database


def settings_for(dsn: str) -> Settings:
    """Return settings for a database and nothing else."""
    return Settings(database=Address(dsn=dsn))


async def version(database: Database) -> int:
    """Return the schema's version."""
    return int(await database.fetchval("SELECT schema_version FROM mailslot.meta"))


async def test_schema_sql_writes_the_version_of_the_program(database: Database) -> None:
    """The file and the constant are changed together."""
    assert await version(database) == SCHEMA_VERSION


async def test_an_empty_database_gets_the_schema_and_keeps_it(empty: Database) -> None:
    """A second run finds nothing to do and changes nothing."""
    settings = settings_for(empty.dsn)
    assert await migrate(settings) == CREATED
    before = await empty.fetchrow("SELECT * FROM mailslot.meta")
    assert await migrate(settings) == Migrated(SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert await empty.fetchrow("SELECT * FROM mailslot.meta") == before


async def test_what_migrate_makes_is_what_schema_sql_makes(empty: Database, database: Database) -> None:
    """Every object belongs to mailslot_owner, whoever ran it, and nothing lands elsewhere."""
    await migrate(settings_for(empty.dsn))
    owners = await database.fetch("""
        SELECT DISTINCT owner::regrole::text FROM (
            SELECT relowner FROM pg_class WHERE relnamespace = 'mailslot'::regnamespace
            UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace = 'mailslot'::regnamespace
            UNION ALL SELECT nspowner FROM pg_namespace WHERE nspname = 'mailslot') AS object (owner)""")
    assert [row["owner"] for row in owners] == ["mailslot_owner"]
    assert await database.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0


async def test_of_many_at_once_one_creates_and_the_others_find_it(empty: Database) -> None:
    """They queue up behind an advisory lock; nobody fails."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(migrate(settings_for(empty.dsn))) for _ in range(5)]
    done = [task.result() for task in tasks]
    assert done.count(CREATED) == 1
    assert done.count(Migrated(SCHEMA_VERSION, SCHEMA_VERSION, ())) == 4


async def test_two_databases_of_one_server_don_t_trip_over_the_roles(private_server: Server) -> None:
    """Roles belong to the server, and the lock to a database: whoever comes second finds them there."""
    admin = Database("postgres", private_server.dsn)
    for name in ("one", "two", "three"):
        await admin.execute(f"CREATE DATABASE {name}")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(migrate(settings_for(private_server.dsn_of(name)))) for name in ("one", "two", "three")]
    assert [task.result() for task in tasks] == [CREATED] * 3


async def test_a_newer_schema_is_refused_and_left_alone(database: Database) -> None:
    """An older program doesn't know what the newer schema means."""
    await database.execute("UPDATE mailslot.meta SET schema_version = $1", SCHEMA_VERSION + 1)
    before = await database.fetchrow("SELECT * FROM mailslot.meta")
    with pytest.raises(SchemaMismatch, match="newer"):
        await migrate(settings_for(database.dsn))
    assert await database.fetchrow("SELECT * FROM mailslot.meta") == before


async def test_a_foreign_schema_of_the_same_name_is_refused(empty: Database) -> None:
    """What somebody else has made isn't overwritten, nor taken for ours."""
    await empty.execute("CREATE SCHEMA mailslot; CREATE TABLE mailslot.jobs (id integer)")
    with pytest.raises(SchemaMismatch, match="isn't of this program"):
        await migrate(settings_for(empty.dsn))
    assert await empty.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'mailslot'::regnamespace") == 1


async def test_a_schema_that_fails_leaves_nothing(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction: half a schema would be refused as foreign ever after."""
    broken = resources.text("schema.sql") + "SELECT 1/0;"
    monkeypatch.setattr(resources, "text", lambda name: broken if name == "schema.sql" else name)
    with pytest.raises(StoreRefused, match="division by zero"):
        await migrate(settings_for(empty.dsn))
    assert not await empty.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'mailslot')")


async def test_steps_bring_an_older_database_up_in_order(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is applied once, by mailslot_owner, however many versions lie between."""
    monkeypatch.setattr(db, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(resources, "steps", lambda: [FIRST, SECOND])
    assert await migrate(settings_for(database.dsn)) == Migrated(1, 3, ("0002_add_colour", "0003_add_table"))
    assert await version(database) == 3
    owner = await database.fetchval("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'colours'")
    assert owner == "mailslot_owner"
    assert await migrate(settings_for(database.dsn)) == Migrated(3, 3, ())


async def test_a_step_that_fails_takes_those_before_it_back(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is as it was, and the next try begins from there."""
    monkeypatch.setattr(db, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(resources, "steps", lambda: [FIRST, BROKEN])
    with pytest.raises(StoreRefused, match=r"break.*division by zero"):
        await migrate(settings_for(database.dsn))
    assert await version(database) == 1
    assert not await database.fetchval("SELECT EXISTS (SELECT FROM pg_attribute WHERE attname = 'colour')")


async def test_steps_of_many_at_once_are_applied_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step isn't idempotent, and needn't be."""
    monkeypatch.setattr(db, "SCHEMA_VERSION", 2)
    monkeypatch.setattr(resources, "steps", lambda: [FIRST])
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(migrate(settings_for(database.dsn))) for _ in range(4)]
    assert sorted(len(task.result().applied) for task in tasks) == [0, 0, 0, 1]


async def test_a_missing_step_is_refused_before_anything_is_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program wasn't installed whole."""
    monkeypatch.setattr(db, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(resources, "steps", lambda: [FIRST])
    with pytest.raises(SchemaMismatch, match="version 3"):
        await migrate(settings_for(database.dsn))
    assert await version(database) == 1


def test_every_version_has_its_step() -> None:
    """A change of schema.sql comes with the step that does the same to an older database."""
    assert [step.version for step in resources.steps()] == list(range(2, SCHEMA_VERSION + 1))


async def test_a_superuser_isn_t_needed(private_server: Server) -> None:
    """A user with CREATEROLE who owns the database is enough, also where creating a role doesn't make one its member."""
    admin = Database("postgres", private_server.dsn)
    await admin.execute("CREATE ROLE admin LOGIN CREATEROLE PASSWORD 'x'")
    await admin.execute("CREATE DATABASE owned OWNER admin")
    settings = settings_for(as_user(private_server.dsn_of("owned"), "admin"))
    assert await migrate(settings) == CREATED
    assert await migrate(settings) == Migrated(SCHEMA_VERSION, SCHEMA_VERSION, ())
    owned = Database("owned", private_server.dsn_of("owned"))
    assert await owned.fetchval("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'mailslot'") == "mailslot_owner"


async def test_a_user_without_rights_is_refused_and_nothing_is_left(private_server: Server) -> None:
    """No schema, no role."""
    admin = Database("postgres", private_server.dsn)
    await admin.execute("CREATE ROLE nobody LOGIN PASSWORD 'x'")
    with pytest.raises(StoreRefused) as refused:
        await migrate(settings_for(as_user(private_server.dsn, "nobody")))
    assert refused.value.sqlstate == "42501"
    assert await admin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'mailslot%'") == 0


def as_user(dsn: str, user: str) -> str:
    """Return the address for another user, whose password is x."""
    parts = urlsplit(dsn)
    _, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:x@{host}"))
