"""What lies behind a cursor is found again: the real claimer on the real statements, one test for each cause.

Each begins with a claimer whose cursor has passed every place in the table. A job that nobody finds fails its test by time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from daemon.allowance import Allowance
from daemon.batch import Turn
from daemon.bell import Bell
from daemon.claimer import Claimer
from daemon.core.job import Job
from daemon.core.outcome import Release
from daemon.core.settings import Settings, Worker
from daemon.cursors import NEAR_S
from daemon.ports import Ports
from daemon.store import FIRST, FRONT_AGE_S, LAST, NOTHING_CLOSED, Level
from tests.store.queue import AGO, EXPIRED, HELD, SOON, Queue, settings_for
from tests.support.database import Database

PATIENCE_S = 10.0
NEVER_S = 3_600.0
SOON_S = 0.02


class Everything:
    """Allows all, and stands in for the relays. `claimed` is set after each claim."""

    def __init__(self) -> None:
        self.claimed = asyncio.Event()

    async def allow(self, wanted: int) -> Allowance:
        """Allow as many as are wanted."""
        return Allowance(wanted, NOTHING_CLOSED, ("default",))

    async def settle(self, _allowance: Allowance, _claimed: int) -> None:
        """Need nothing back."""
        self.claimed.set()


class Bench:
    """A claimer with one slot."""

    def __init__(self, queue: Queue, dsn: str, *, rescan_s: float, poll_s: float) -> None:
        self.queue = queue
        self.allowances = Everything()
        settings = settings_for(dsn)
        worker = Worker(concurrency=2, poll_interval_s=poll_s, rescan_interval_s=rescan_s)
        self.claimer = Claimer(
            Settings(database=settings.database, lease=settings.lease, worker=worker),
            queue.store,
            Ports(),
            may_claim=lambda: True,
            allowances=self.allowances,  # type: ignore[arg-type]
            turn=Turn(),
            bell=Bell(queue.store.arm, Ports().boottime_s, listens=False),
        )

    async def next(self) -> Job:
        """Return the job that the slot gets."""
        async with asyncio.timeout(PATIENCE_S):
            claimed = await self.claimer.next()
        assert claimed is not None
        return claimed.job

    async def pass_by(self) -> Job:
        """Let the cursor pass everything: claim a job whose place is the last of all that are due."""
        saved = await self.queue.save()
        job = await self.next()
        assert job.id == saved
        return job


@asynccontextmanager
async def claiming(
    queue: Queue, database: Database, *, rescan_s: float = NEVER_S, poll_s: float = NEVER_S
) -> AsyncIterator[Bench]:
    """Run a claimer that looks at everything only so often, and polls only so often."""
    bench = Bench(queue, database.dsn, rescan_s=rescan_s, poll_s=poll_s)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bench.claimer.run())
        yield bench
        bench.claimer.stop()
        await running


async def test_what_this_worker_released_is_found_by_its_next_claim(queue: Queue, shared_database: Database) -> None:
    """Without any full look."""
    async with claiming(queue, shared_database) as bench:
        job = await bench.pass_by()
        await bench.pass_by()
        await queue.conclude(job, Release("draining"))
        bench.claimer.released(job)
        assert (await bench.next()).id == job.id


async def test_what_another_worker_released_is_found_by_the_next_full_look(queue: Queue, shared_database: Database) -> None:
    """Nobody tells us."""
    held = await queue.save(**HELD, available_at=AGO)
    async with claiming(queue, shared_database, rescan_s=SOON_S, poll_s=SOON_S) as bench:
        await bench.pass_by()
        await queue.change(
            held,
            lease_token="NULL",
            lease_owner="NULL",
            lease_expires_at="NULL",
            leased_at="NULL",
        )
        assert (await bench.next()).id == held


async def test_a_lease_that_expires_is_taken_over_by_the_next_full_look(queue: Queue, shared_database: Database) -> None:
    """Its holder is gone."""
    held = await queue.save(**HELD, available_at=AGO)
    async with claiming(queue, shared_database, rescan_s=SOON_S, poll_s=SOON_S) as bench:
        await bench.pass_by()
        await queue.change(held, lease_expires_at="now() - interval '1 second'")
        job = await bench.next()
        assert (job.id, job.taken_over) == (held, True)


@pytest.mark.parametrize("found_by", ["wake-up", "poll"])
async def test_a_late_commit_is_found(queue: Queue, shared_database: Database, other: asyncpg.Connection, found_by: str) -> None:
    """Its place is the start of its transaction, which a claim has passed; a near look goes back that far."""
    transaction = other.transaction()
    await transaction.start()
    saved = await other.fetchval('SELECT id FROM mailslot.enqueue(\'{"to": ["ann@example.org"]}\'::jsonb)')
    async with claiming(queue, shared_database, poll_s=SOON_S if found_by == "poll" else NEVER_S) as bench:
        passed = await bench.pass_by()
        await transaction.commit()
        if found_by == "wake-up":
            bench.claimer.wake()
        job = await bench.next()
        assert job.id == saved
        assert job.available_at < passed.available_at


async def test_a_commit_that_came_very_late_is_found_by_the_next_full_look(queue: Queue, shared_database: Database) -> None:
    """It lies further behind than a near look goes."""
    async with claiming(queue, shared_database, rescan_s=SOON_S, poll_s=SOON_S) as bench:
        await bench.pass_by()
        saved = await queue.save(available_at=f"now() - interval '{10 * NEAR_S} seconds'")
        assert (await bench.next()).id == saved


async def test_what_a_person_retried_is_found_by_its_wake_up(queue: Queue, shared_database: Database) -> None:
    """Its new place is the moment of the retry."""
    dead = await queue.save(available_at=AGO, completed_at=AGO, outcome="'dead'")
    async with claiming(queue, shared_database) as bench:
        await bench.pass_by()
        await queue.change(dead, completed_at="NULL", outcome="NULL", available_at="clock_timestamp()")
        bench.claimer.wake()
        assert (await bench.next()).id == dead


async def test_a_row_that_was_locked_when_it_was_passed_is_found_by_the_next_full_look(
    queue: Queue, shared_database: Database, other: asyncpg.Connection
) -> None:
    """An application had begun to cancel it, and then didn't."""
    locked = await queue.save(available_at=AGO)
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT mailslot.cancel($1)", locked)
    async with claiming(queue, shared_database, rescan_s=SOON_S, poll_s=SOON_S) as bench:
        await bench.pass_by()
        await transaction.rollback()
        assert (await bench.next()).id == locked


async def test_a_queue_that_goes_on_is_found_by_the_next_full_look(queue: Queue, shared_database: Database) -> None:
    """While it was paused its levels counted as empty."""
    saved = await queue.save(available_at=AGO)
    await queue.connection.execute("INSERT INTO mailslot.queues VALUES ('default', true)")
    async with claiming(queue, shared_database, rescan_s=SOON_S, poll_s=SOON_S) as bench:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(bench.next())
            bench.allowances.claimed.clear()
            await bench.allowances.claimed.wait()
            assert not waiting.done()
            await queue.connection.execute("UPDATE mailslot.queues SET paused = false")
        assert waiting.result().id == saved


# ---------------------------------------------------------------- the statement's part


async def test_a_claim_looks_back_the_seconds_that_it_is_told(queue: Queue) -> None:
    """Whatever the cursor says: behind it in time, and from an emptied level."""
    old, young = (
        await queue.save(available_at="now() - interval '90 seconds'"),
        await queue.save(available_at="now() - interval '30 seconds'"),
    )
    at = (await queue.row(young))["available_at"]

    async def found(level: Level) -> list[int]:
        jobs = await queue.claim(levels=[level])
        await queue.store.abandon([Level("default", 1)], [job.token for job in jobs])
        return [job.id for job in jobs]

    assert await found(Level("default", 1, at, young)) == []
    assert await found(Level("default", 1, at, young, 60.0)) == [young]
    assert await found(Level("default", 1, at, young, 5.0)) == [], "a cursor that lies further back stays there"
    assert await found(Level("default", 1, at - timedelta(days=1), 0, 5.0)) == [old, young]
    assert await found(Level("default", 1, LAST)) == []
    assert await found(Level("default", 1, LAST, 0, 60.0)) == [young]
    assert await found(Level("default", 1, FIRST, 0, 60.0)) == [old, young]


async def test_abandoning_looks_back_the_seconds_that_it_is_told(queue: Queue) -> None:
    """As the claim did."""
    await queue.save(available_at="now() - interval '30 seconds'")
    (job,) = await queue.claim(levels=[Level("default", 1, LAST, 0, 60.0)])
    assert await queue.store.abandon([Level("default", 1, LAST, 0, 5.0)], [job.token]) == 0
    assert await queue.store.abandon([Level("default", 1, LAST, 0, 62.0)], [job.token]) == 1
    assert (await queue.row(job.id))["state"] == "ready"


async def test_an_expired_lease_lies_where_its_job_lies(queue: Queue) -> None:
    """So only a full look takes it over, and no cursor hides it from that."""
    saved = await queue.save(**EXPIRED, available_at=AGO)
    assert await queue.claim(levels=[Level("default", 1, LAST, 0, 60.0)]) == []
    assert [job.id for job in await queue.claim(levels=[Level("default", 1)])] == [saved]


# ---------------------------------------------------------------- the front


async def front_of(queue: Queue) -> Level:
    """Return the front of the usual level."""
    (level,) = [level for level in (await queue.store.front()).levels if level.priority == 1]
    return level


@pytest.mark.parametrize("columns", [{}, HELD, EXPIRED, {"crashes": "1"}, {"expires_at": AGO}], ids=str)
async def test_no_unfinished_job_lies_before_the_front(queue: Queue, columns: dict[str, str]) -> None:
    """Whatever its state: it may be due again there."""
    await queue.save(available_at="now() - interval '3 hours'", completed_at=AGO, outcome="'sent'")
    first = await queue.save(**{**columns, "available_at": AGO})
    await queue.save()
    assert await front_of(queue) == Level("default", 1, (await queue.row(first))["available_at"])


async def test_a_front_is_never_young(queue: Queue) -> None:
    """Jobs of transactions that began before it may yet be committed: with nothing there, and with something."""
    now = await queue.connection.fetchval("SELECT now()")
    assert (await front_of(queue)).after_at < now - timedelta(seconds=FRONT_AGE_S - 5)
    await queue.save(available_at=SOON)
    assert (await front_of(queue)).after_at < now - timedelta(seconds=FRONT_AGE_S - 5)


async def test_sweep_and_front_begin_where_they_are_told(queue: Queue) -> None:
    """Before that nothing unfinished was, so nothing is passed by."""
    saved = await queue.save(**EXPIRED, crashes="1", available_at=AGO)
    fronts = (await queue.store.front()).levels
    later = [Level(level.queue, level.priority, level.after_at + timedelta(hours=2)) for level in fronts]
    assert await queue.store.sweep(fronts=later) == []
    assert not (await queue.store.front(later)).suspect_is_due
    assert (await queue.store.front(fronts)).suspect_is_due
    assert [job.id for job in await queue.store.sweep(fronts=fronts)] == [saved]
