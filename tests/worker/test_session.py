"""The worker's own session, on a real server: what it tells, hears, and notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from daemon.core.errors import StoreUnavailable
from daemon.core.settings import Database as DatabaseSettings
from daemon.core.settings import Lease as LeaseSettings
from daemon.core.settings import Settings, Worker
from daemon.database import statement
from daemon.session import Identity, Session
from daemon.slots import Lease
from tests.support.database import Database, Databases
from tests.worker.fakes import PATIENCE_S, made

ME = Identity(7, "me:1", "host", 1, "1.0", 10)
SAVE = "SELECT mailslot.enqueue('{}') FROM generate_series(1, 3)"
HOLD = (
    "INSERT INTO mailslot.jobs (payload, expires_at, lease_token, leased_at, lease_expires_at)"
    " VALUES ('{}', now() + interval '1 day', gen_random_uuid(), now(), now()) RETURNING id, lease_token"
)
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name LIKE '%session' AND datname = current_database()"
)


class Bench:
    """A session, and what it has told its worker."""

    def __init__(self, database: Database, *, listen: bool = True) -> None:
        self.database = database
        self.woken = asyncio.Event()
        self.lost = asyncio.Event()
        self.settings = Settings(
            database=DatabaseSettings(dsn=database.dsn),
            worker=Worker(listen=listen),
            lease=LeaseSettings(heartbeat_timeout_s=2.5, hard_cap_s=60.0),
        )
        self.notes: list[str] = []
        self.session = Session(self.settings, ME, self.hear, self.lost.set)

    def hear(self, note: str) -> None:
        """Note that the worker was woken."""
        self.notes.append(note)
        self.woken.set()


@pytest.fixture(scope="module")
async def shared(databases: Databases) -> AsyncIterator[Database]:
    """Return one database for these tests."""
    async with databases.fresh() as database:
        yield database


@pytest.fixture
async def bench(shared: Database) -> AsyncIterator[Bench]:
    """Return an open session, alone in its database."""
    for table in ("attempts", "jobs", "workers"):
        await shared.execute(f"DELETE FROM mailslot.{table}")  # noqa: S608  our own names
    await shared.execute(statement("bell_arm"), None)
    bench = Bench(shared)
    await bench.session.open()
    yield bench
    bench.session.drop()


async def test_an_insert_wakes_the_worker_once_and_not_by_each_row(bench: Bench) -> None:
    """With the bell's number; and rollback wakes nobody."""
    await bench.database.execute("BEGIN; " + SAVE + "; ROLLBACK")
    await bench.session.extend([])
    assert not bench.woken.is_set()
    await bench.database.execute(SAVE)
    async with asyncio.timeout(PATIENCE_S):
        await bench.woken.wait()
    number = await bench.database.fetchval("SELECT last_value / 1000000 FROM mailslot.bell")
    assert bench.notes == [str(number)]


async def test_a_worker_that_doesnt_listen_isnt_woken(shared: Database) -> None:
    """Polling makes it correct without."""
    await shared.execute(statement("bell_arm"), None)
    bench = Bench(shared, listen=False)
    await bench.session.open()
    await shared.execute(SAVE)
    await bench.session.extend([])
    await bench.session.extend([])
    assert not bench.woken.is_set()
    bench.session.drop()


async def test_notifications_can_be_switched_off_for_all(bench: Bench) -> None:
    """Bulk inserts need none."""
    await bench.database.execute("UPDATE mailslot.settings SET notify = false")
    await bench.database.execute(SAVE)
    await bench.session.extend([])
    await bench.database.execute("UPDATE mailslot.settings SET notify = true")
    assert not bench.woken.is_set()


async def test_leases_are_extended_by_token(bench: Bench) -> None:
    """Held and lost, in one round trip."""
    row = await bench.database.fetchrow(HOLD)
    assert row is not None
    held = Lease(made(row["id"], token=row["lease_token"]), 0.0)
    lost = Lease(made(row["id"]), 0.0)
    assert await bench.session.extend([held, lost]) == {held.job.token: "held", lost.job.token: "lost"}
    left = await bench.database.fetchval("SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM mailslot.jobs")
    assert 20.0 < left <= 30.0


async def test_a_worker_is_registered_while_it_is_there(bench: Bench) -> None:
    """Seen at each heartbeat that holds nothing; gone when it leaves in good order."""
    first = await bench.database.fetchrow("SELECT * FROM mailslot.workers")
    assert first is not None
    assert (first["session_key"], first["owner"], first["host"], first["pid"]) == (7, "me:1", "host", 1)
    assert (first["version"], first["concurrency"]) == ("1.0", 10)
    await bench.session.extend([])
    second = await bench.database.fetchrow("SELECT * FROM mailslot.workers")
    assert second is not None
    assert second["seen_at"] > first["seen_at"]
    assert second["started_at"] == first["started_at"]
    await bench.session.leave()
    assert await bench.database.fetch("SELECT FROM mailslot.workers") == []
    assert not bench.session.is_open
    await bench.session.leave()


async def test_workers_that_nobody_has_seen_for_a_day_are_forgotten(bench: Bench) -> None:
    """By whoever comes next, who may itself have been away for longer."""
    await bench.database.execute(
        "UPDATE mailslot.workers SET seen_at = now() - interval '2 days';"
        "INSERT INTO mailslot.workers VALUES (8, 'gone', 'h', 1, 'v', 1, now(), now() - interval '25 hours'),"
        " (9, 'there', 'h', 1, 'v', 1, now(), now() - interval '23 hours')"
    )
    await bench.session.extend([])
    keys = await bench.database.fetch("SELECT session_key FROM mailslot.workers ORDER BY 1")
    assert [row[0] for row in keys] == [7, 9]


async def test_a_session_that_is_cut_is_noticed_between_two_heartbeats(bench: Bench) -> None:
    """And opened again it is as good as new."""
    await bench.database.execute(CUT)
    async with asyncio.timeout(PATIENCE_S):
        await bench.lost.wait()
    assert not bench.session.is_open
    with pytest.raises(StoreUnavailable):
        await bench.session.extend([])
    await bench.session.open()
    await bench.database.execute(SAVE)
    async with asyncio.timeout(PATIENCE_S):
        await bench.woken.wait()


async def test_an_extension_without_an_answer_ends_the_session(bench: Bench) -> None:
    """After the time-out nobody knows what the connection would answer next, so it is never used again."""
    bench.session._settings = replaced(bench.settings, heartbeat_timeout_s=0.01)  # noqa: SLF001
    row = await bench.database.fetchrow(HOLD)
    assert row is not None
    lease = Lease(made(row["id"], token=row["lease_token"]), 0.0)
    async with bench.database.connection() as connection, connection.transaction():
        await connection.execute("LOCK mailslot.jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable):
            await bench.session.extend([lease])
    assert not bench.session.is_open


def replaced(settings: Settings, **lease: float) -> Settings:
    """Return the settings with other values in [lease]."""
    return msgspec.structs.replace(settings, lease=msgspec.structs.replace(settings.lease, **lease))


async def test_a_dropped_session_tells_nobody(bench: Bench) -> None:
    """Whoever drops it knows."""
    bench.session.drop()
    await asyncio.sleep(0)
    assert not bench.lost.is_set()


async def test_nobody_there_is_unavailable_and_nothing_stays_open(tmp_path: object) -> None:
    """The heartbeat tries again."""
    settings = Settings(database=DatabaseSettings(dsn=f"postgresql:///nothing?host={tmp_path}"))
    session = Session(settings, ME, lambda _: None, lambda: None)
    with pytest.raises(StoreUnavailable):
        await session.open()
    assert not session.is_open
