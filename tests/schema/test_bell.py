"""Who notifies idle workers, and when: one producer for each time that somebody armed the bell, as he commits.

Counts, never times: a listener counts notifications up to one that the test sends itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from daemon.database import statement
from tests.schema.conftest import RoleConnection
from tests.support.database import Database

SAVE = "SELECT mailslot.enqueue('{}')"
LATER = "SELECT mailslot.enqueue('{}', available_at => now() + interval '1 hour')"
CALLS = "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'ring'"


class Ear:
    """A worker that waits: arms the bell, and counts what it hears."""

    def __init__(self, database: Database, connection: asyncpg.Connection) -> None:
        self._database = database
        self._connection = connection
        self._notes: list[str] = []
        self.notes: list[str] = []
        """What was said in the notifications that `heard` counted."""
        self._done = asyncio.Event()

    @classmethod
    async def listening(cls, database: Database) -> Ear:
        """Listen, with the bell disarmed: a new one is armed."""
        ear = cls(database, await database.connect())
        await ear._connection.add_listener("mailslot", ear._hear)
        await ear._connection.add_listener("done", lambda *_: ear._done.set())
        await database.execute("SELECT nextval('mailslot.bell')")
        return ear

    def _hear(self, _connection: object, _pid: int, _channel: str, note: object) -> None:
        self._notes.append(str(note))

    async def arm(self, heard: int | None = None) -> bool:
        """Arm the bell, as a worker does that has heard this number; returns whether this did it."""
        return bool(await self._database.fetchval(statement("bell_arm"), heard))

    async def number(self) -> int:
        """Return the number of the last arming."""
        return int(await self._database.fetchval("SELECT last_value / 1000000 FROM mailslot.bell"))

    async def heard(self) -> int:
        """Return how many notifications have been committed since the last call."""
        self._done.clear()
        await self._database.execute("NOTIFY done")
        async with asyncio.timeout(30):
            await self._done.wait()
        self.notes, self._notes = self._notes, []
        return len(self.notes)


@pytest.fixture
async def ear(database: Database) -> Ear:
    """Return the only worker, which has armed nothing yet."""
    return await Ear.listening(database)


@pytest.fixture
async def producer(database: Database) -> asyncpg.Connection:
    """Return a connection that is told step by step what to do in its transaction."""
    return await database.connect()


async def test_while_all_workers_are_busy_nobody_notifies(database: Database, ear: Ear) -> None:
    """Notifying commits are one after the other in all of the server, so a loaded one has none."""
    connection = await database.connect()
    before = await database.fetch("SELECT * FROM mailslot.bell")
    for _ in range(20):
        await connection.execute(SAVE)
    assert await ear.heard() == 0
    assert await database.fetch("SELECT * FROM mailslot.bell") == before, "and nobody writes to the page that all read"


async def test_a_worker_that_armed_the_bell_hears_one_producer(database: Database, ear: Ear) -> None:
    """However many come before it looks, and again each time that it arms."""
    connection = await database.connect()
    for _ in range(2):
        assert await ear.arm()
        for _ in range(20):
            await connection.execute(SAVE)
        assert await ear.heard() == 1


async def test_arming_says_who_did_it(ear: Ear) -> None:
    """Of many idle workers one has to look again, the others needn't."""
    assert [await ear.arm(), await ear.arm()] == [True, False]


async def test_workers_that_one_ring_has_woken_arm_once(database: Database, ear: Ear) -> None:
    """Also when the next producer has rung by then: they will hear him, and his commit may not be done."""
    await ear.arm()
    await database.execute(SAVE)
    assert await ear.heard() == 1
    number = await ear.number()
    assert ear.notes == [str(number)]
    assert await ear.arm(number)
    async with database.connection() as slow, slow.transaction():
        await slow.execute(f"{SAVE}; SET CONSTRAINTS ALL IMMEDIATE")  # has rung, and isn't committed
        assert not await ear.arm(number)
    assert await ear.heard() == 1
    assert ear.notes == [str(number + 1)]
    assert await ear.arm(number + 1)


async def test_a_worker_that_may_have_missed_a_ring_arms_whatever_the_number(database: Database, ear: Ear) -> None:
    """After an outage, and when it has heard nothing for long."""
    await ear.arm()
    await database.execute(SAVE)
    assert await ear.arm(None)


async def test_producers_that_commit_at_the_same_moment_ring_once(database: Database, ear: Ear) -> None:
    """All have seen the bell armed, and are held up at the next thing that they read; one is the first."""
    await ear.arm()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'mailslot.settings'::regclass"
    async with asyncio.timeout(30), database.connection() as gate, asyncio.TaskGroup() as producers, gate.transaction():
        await gate.execute("LOCK mailslot.settings IN ACCESS EXCLUSIVE MODE")
        for _ in range(3):
            producers.create_task(database.execute(SAVE))
        while await database.fetchval(waiting) < 3:
            pass
    assert await ear.heard() == 1


async def test_one_transaction_asks_once_however_many_jobs_it_saves(ear: Ear, producer: asyncpg.Connection) -> None:
    """In one statement or in many, by a loop of savepoints too: a million rows queue one event, not a million."""
    await ear.arm()
    await producer.execute("SET track_functions = 'all'")
    async with producer.transaction():
        await producer.execute(f"{SAVE} FROM generate_series(1, 5000)")
        await producer.execute(SAVE)
        async with producer.transaction():
            await producer.execute(SAVE)
        await producer.execute(SAVE)
        await producer.execute("SET CONSTRAINTS ALL IMMEDIATE")
        assert await producer.fetchval(CALLS) == 1
    assert await ear.heard() == 1
    await producer.execute(SAVE)
    assert await ear.arm()
    await producer.execute(SAVE)
    assert await ear.heard() == 1, "the next transaction of the same session asks again"


async def test_jobs_that_are_copied_in_ring_too(ear: Ear, producer: asyncpg.Connection) -> None:
    """Whoever restores jobs goes past mailslot.enqueue()."""
    await ear.arm()
    lines = b"".join(b"{}\t2999-01-01Z\n" for _ in range(100))
    await producer.copy_to_table("jobs", schema_name="mailslot", columns=("payload", "expires_at"), source=_source(lines))
    assert await ear.heard() == 1


async def _source(lines: bytes) -> AsyncIterator[bytes]:
    yield lines


async def test_what_is_rolled_back_rings_nobody_and_leaves_the_bell_armed(ear: Ear, producer: asyncpg.Connection) -> None:
    """The next producer rings instead."""
    await ear.arm()
    await producer.execute(f"BEGIN; {SAVE}; ROLLBACK")
    await producer.execute(f"BEGIN; SAVEPOINT a; {SAVE}; ROLLBACK TO a; COMMIT")
    assert await ear.heard() == 0
    assert not await ear.arm()
    await producer.execute(SAVE)
    assert await ear.heard() == 1


async def test_a_job_after_a_savepoint_that_was_rolled_back_rings(ear: Ear, producer: asyncpg.Connection) -> None:
    """The event went with the savepoint, and so does the note that there is one."""
    await ear.arm()
    await producer.execute(f"BEGIN; SAVEPOINT a; {SAVE}; ROLLBACK TO a; {SAVE}; COMMIT")
    assert await ear.heard() == 1


async def test_a_transaction_that_stays_open_doesnt_use_the_bell_up(
    database: Database, ear: Ear, producer: asyncpg.Connection
) -> None:
    """It rings when it commits; those who commit before it ring for themselves."""
    await ear.arm()
    async with producer.transaction():
        await producer.execute(SAVE)
        await database.execute(SAVE)
        assert await ear.heard() == 1
        assert await ear.arm(), "it was armed after the open transaction's insert"
    assert await ear.heard() == 1


async def test_a_job_for_later_rings_nobody(ear: Ear, producer: asyncpg.Connection) -> None:
    """There would be nothing to claim; a due one in the same transaction rings all the same."""
    await ear.arm()
    await producer.execute(LATER)
    assert await ear.heard() == 0
    await producer.execute(f"BEGIN; {LATER}; {SAVE}; COMMIT")
    assert await ear.heard() == 1


async def test_notifications_can_be_switched_off(database: Database, ear: Ear) -> None:
    """For all workers; then nobody can arm either, and an armed bell stays silent."""
    await ear.arm()
    await database.execute("UPDATE mailslot.settings SET notify = false")
    await database.execute(SAVE)
    assert await ear.heard() == 0
    await database.execute("SELECT nextval('mailslot.bell')")
    assert not await ear.arm()
    await database.execute("UPDATE mailslot.settings SET notify = true")
    await database.execute(SAVE)
    assert await ear.heard() == 0
    assert await ear.arm()


async def test_a_ring_whose_transaction_fails_as_it_commits_is_lost_until_somebody_arms(database: Database, ear: Ear) -> None:
    """A sequence isn't rolled back; workers ask again after a while, and poll."""
    await database.execute("""
        CREATE TABLE public.unlucky (id integer);
        CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'too late'; END $$;
        CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON public.unlucky DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.fail();
    """)
    await ear.arm()
    with pytest.raises(asyncpg.RaiseError):
        await database.execute(f"BEGIN; {SAVE}; INSERT INTO public.unlucky VALUES (1); COMMIT")  # noqa: S608 - ours
    await database.execute(SAVE)
    assert await ear.heard() == 0
    assert await ear.arm()


async def test_only_workers_touch_the_bell_and_producers_ring_without_a_right_to(ear: Ear, connect_as: RoleConnection) -> None:
    """A producer needs EXECUTE on mailslot.enqueue() and nothing else, whoever he is when he commits."""
    worker, producer, monitor = [await connect_as(f"mailslot_{role}") for role in ("worker", "producer", "monitor")]
    assert await worker.fetchval(statement("bell_arm"), None)
    for stranger in (producer, monitor):
        for touch in ("SELECT nextval('mailslot.bell')", "SELECT setval('mailslot.bell', 1)", "TABLE mailslot.bell"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await stranger.execute(touch)
    await producer.execute(f"BEGIN; {SAVE}; RESET ROLE; SET LOCAL ROLE mailslot_monitor; COMMIT")
    assert await ear.heard() == 1
