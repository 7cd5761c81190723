"""The plans of the hot path, and what a claim reads, by size of the table: counts of pages and rows, never time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from daemon.cursors import LEVELS_A_CLAIM, Cursors
from daemon.store import FIRST, LAST, PRIORITIES, Level
from tests.store.plans import (
    HOLDERS,
    LEVELS,
    SCANS,
    cached,
    claiming,
    claiming_from,
    given,
    nodes,
    on_jobs,
    pages,
    plan_of,
    removed,
)
from tests.store.queue import NO, YES, quiet
from tests.support.database import Database, Databases

BATCH = 50
FILL = """
INSERT INTO mailslot.jobs (queue, priority, payload, expires_at, available_at, completed_at, outcome,
                           lease_token, lease_expires_at)
SELECT {queue}, 1, '{{}}', now() + interval '2 days', {available_at}, {completed_at}, {outcome}, {lease}
FROM generate_series(1, {number}) AS g
"""
DUE: dict[str, str] = {
    "queue": "'default'",
    "available_at": "now() - interval '1 hour' + g * interval '1 ms'",
    "completed_at": "NULL",
    "outcome": "NULL",
    "lease": "NULL, NULL",
}
LATER = {**DUE, "available_at": "now() - interval '1 minute' + g * interval '1 ms'"}
FUTURE = {**DUE, "available_at": "now() + interval '1 hour' + g * interval '1 ms'"}
FINISHED = {**DUE, "completed_at": "now()", "outcome": "'sent'"}
BEFORE = "now() - interval '1 day' + g * interval '1 ms'"
LEASED = {**DUE, "available_at": BEFORE, "lease": "gen_random_uuid(), now() + interval '50 seconds'"}
ELSEWHERE = {**DUE, "queue": "'q' || g"}
DEAD = {**DUE, "available_at": BEFORE}
END = "UPDATE mailslot.jobs SET completed_at = now(), outcome = 'sent' WHERE available_at < now() - interval '2 hours'"
BEHIND = (
    "SELECT available_at, id FROM mailslot.jobs WHERE available_at < now() - interval '2 hours' ORDER BY 1 DESC, 2 DESC LIMIT 1"
)


async def fill(database: Database, number: int, **columns: str) -> None:
    """Write so many jobs."""
    await database.execute(FILL.format(number=number, **columns))


# ---------------------------------------------------------------- plans


@pytest.fixture(scope="module")
async def stale(databases: Databases) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection like a worker's to 20,000 jobs, of which the planner believes that they are 300."""
    async with databases.fresh() as database:
        connection = await database.connect()
        await connection.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await fill(database, 300, **DUE)
        await connection.execute("ANALYZE mailslot.jobs")
        await fill(database, 20_000, **DUE)
        await connection.execute(
            "UPDATE mailslot.jobs SET lease_token = gen_random_uuid(), leased_at = now(), lease_owner = 'me',"
            " lease_expires_at = now() + interval '30 seconds' WHERE id <= $1",
            BATCH,
        )
        await quiet(connection)
        yield connection


async def held(connection: asyncpg.Connection, *columns: str) -> tuple[list[Any], ...]:
    """Return columns of the leased jobs."""
    rows = await connection.fetch("SELECT * FROM mailslot.jobs WHERE id <= $1 ORDER BY id", BATCH)
    return tuple([row[column] for row in rows] for column in columns)


@cached
@pytest.mark.parametrize("name", HOLDERS)
async def test_a_holders_statement_reads_a_few_pages_for_each_job(stale: asyncpg.Connection, name: str, cached: str) -> None:
    """The primary key and nothing else: a probe to lock, a probe to write; nothing is read in vain, nothing twice."""
    plan = await plan_of(stale, name, cached, *given(name, *await held(stale, "id", "lease_token", "uid")))
    assert plan["Actual Rows"] == BATCH
    assert {index for _, index in on_jobs(plan)} == {"jobs_pkey"}
    assert {node for node, _ in on_jobs(plan)} <= SCANS
    assert pages(plan) <= 16 * BATCH
    assert removed(plan) == 0


@cached
@pytest.mark.parametrize("name", HOLDERS)
async def test_a_batch_is_joined_with_nothing_of_its_own_size(stale: asyncpg.Connection, name: str, cached: str) -> None:
    """Twice the batch is twice the work: rows that are compared in vain would make it four times."""
    plan = await plan_of(stale, name, cached, *given(name, *await held(stale, "id", "lease_token", "uid")))
    assert sum(node.get("Rows Removed by Join Filter", 0) for node in nodes(plan)) == 0
    loops = max(node["Actual Loops"] for node in nodes(plan) if node["Node Type"] == "CTE Scan")
    assert (
        loops <= 1
        or max(node["Actual Rows"] for node in nodes(plan) if node["Node Type"] == "CTE Scan" and node["Actual Loops"] > 1) <= 1
    )


@cached
async def test_a_claim_reads_a_few_pages_for_each_job(stale: asyncpg.Connection, cached: str) -> None:
    """It steps over the leased rows in front, and over nothing else."""
    plan = await plan_of(stale, "claim", cached, *claiming(BATCH))
    assert plan["Actual Rows"] == BATCH
    assert {index for _, index in on_jobs(plan)} == {"jobs_unfinished", "jobs_pkey"}
    assert {node for node, _ in on_jobs(plan)} <= SCANS
    assert removed(plan) == BATCH
    assert pages(plan) <= 14 * BATCH


@cached
async def test_a_cursor_is_a_bound_of_the_index_and_no_filter(stale: asyncpg.Connection, cached: str) -> None:
    """What lies before it isn't read; nor is it where a level was found empty."""
    (before,) = await held(stale, "available_at")
    behind = Level("default", 1, before[-1], BATCH)
    for levels in ([behind], [Level("default", 1, LAST, 0, 3_700.0 - 0.05)]):
        plan = await plan_of(stale, "claim", cached, *claiming_from(levels))
        assert plan["Actual Rows"] == 10
        (scan,) = [node for node in nodes(plan) if node.get("Index Name") == "jobs_unfinished"]
        assert "ROW(" in scan["Index Cond"]
    plan = await plan_of(stale, "claim", cached, *claiming_from([behind]))
    assert removed(plan) == 0
    plan = await plan_of(stale, "claim", cached, *claiming_from([Level("default", 1, LAST, 0, 60.0)]))
    assert plan["Actual Rows"] == 0
    assert pages(plan) < 10


@cached
@pytest.mark.parametrize(
    ("name", "arguments", "most"),
    [
        ("abandon", (*claiming()[:4], [uuid4()], 500, [None] * 4), 1_000),
        ("sweep", (*LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO, [FIRST] * 4), 1_000),
        ("front", (*LEVELS, [FIRST] * 4, 500, 3, 10.0), 1_000),
        ("queues", (), 50),
    ],
)
async def test_a_look_at_the_front_is_bounded(
    stale: asyncpg.Connection, cached: str, name: str, arguments: tuple[object, ...], most: int
) -> None:
    """By its window, not by what waits."""
    plan = await plan_of(stale, name, cached, *arguments)
    assert {node for node, _ in on_jobs(plan)} <= SCANS
    assert {index for _, index in on_jobs(plan)} <= {"jobs_unfinished", "jobs_pkey"}
    assert pages(plan) < most


@cached
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("claim", claiming()),
        ("abandon", (*claiming()[:4], [uuid4()], 500, [None] * 4)),
        *[(name, given(name, [1], [uuid4()], [uuid4()])) for name in HOLDERS],
        ("sweep", (*LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO, [FIRST] * 4)),
        ("front", (*LEVELS, [FIRST] * 4, 500, 3, 10.0)),
    ],
)
async def test_the_plan_of_a_table_that_was_vacuumed_while_empty_is_the_plan_of_a_large_one(
    databases: Databases, cached: str, name: str, arguments: tuple[object, ...]
) -> None:
    """A queue that was drained and pruned looks like one page to the planner; the plan that it makes then is kept under load."""
    async with databases.fresh() as database, database.connection() as connection:
        await fill(database, 100, **DUE)
        await database.execute("DELETE FROM mailslot.jobs")
        await database.execute("VACUUM (ANALYZE) mailslot.jobs")
        await quiet(connection)
        plan = await plan_of(connection, name, cached, *arguments)
        scans = [node for node in nodes(plan) if node.get("Relation Name") == "jobs" and node["Node Type"] != "ModifyTable"]
        assert {node["Node Type"] for node in scans} <= SCANS
        for node in scans:
            assert ("id" if node["Index Name"] == "jobs_pkey" else "queue") in node.get("Index Cond", ""), node


# ---------------------------------------------------------------- flat, whatever is in the table

Measure = Callable[[Database], Awaitable[int]]
FEW, MANY = 500, 10_000


async def cost_of(database: Database, *levels: Level) -> int:
    """Return how many pages a claim of ten jobs reads."""
    async with database.connection() as connection:
        await quiet(connection)
        plan = await plan_of(connection, "claim", "generic", *claiming_from(levels or everywhere("default")))
    assert plan["Actual Rows"] == 10
    return pages(plan)


def everywhere(queue: str) -> list[Level]:
    """Return a queue's levels, from the front."""
    return [Level(queue, priority) for priority in PRIORITIES]


@pytest.mark.parametrize(
    "columns", [LATER, FUTURE, FINISHED, ELSEWHERE], ids=["due", "in the future", "finished", "in other queues"]
)
async def test_a_claim_costs_the_same_with_twenty_times_as_much_in_the_table(
    databases: Databases, columns: dict[str, str]
) -> None:
    """From the front; one more level of an index is all that may be added to each probe."""
    async with databases.fresh() as database:
        await database.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await fill(database, FEW, **DUE)
        await fill(database, FEW, **columns)
        few = await cost_of(database)
        await fill(database, MANY, **columns)
        assert await cost_of(database) <= few + 30


async def behind(database: Database) -> Level:
    """Return the cursor behind everything that lies in front."""
    row = await database.fetchrow(BEHIND)
    assert row is not None
    at: datetime = row["available_at"]
    return Level("default", 1, at, row["id"])


async def test_leased_jobs_in_front_cost_nothing_behind_the_cursor(databases: Databases) -> None:
    """A full look steps over them once; the claims after it begin behind them."""
    async with databases.fresh() as database:
        await database.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await fill(database, FEW, **DUE)
        await fill(database, FEW, **LEASED)
        few = await cost_of(database, await behind(database))
        await fill(database, MANY, **LEASED)
        assert await cost_of(database, await behind(database)) <= few + 30
        assert await cost_of(database) > few + 200, "without a cursor it would step over them each time"


async def test_dead_entries_that_nothing_can_remove_cost_nothing_behind_the_cursor(databases: Databases) -> None:
    """Another session's snapshot keeps every finished job's entry in the index of unfinished ones."""
    async with databases.fresh() as database, database.connection() as old:
        await database.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await fill(database, FEW, **DUE)
        await old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.fetchval("SELECT count(*) FROM mailslot.jobs")
        costs = []
        for number in (FEW, MANY):
            await fill(database, number, **DEAD)
            cursor = await behind(database)
            await database.execute(END)
            await database.execute("VACUUM mailslot.jobs")
            costs.append(await cost_of(database, cursor))
        assert costs[1] <= costs[0] + 30
        assert await cost_of(database) > costs[1] + 1_000, "without a cursor it would read them each time"


@pytest.mark.parametrize("served", [1, 1_000])
async def test_a_claim_costs_the_same_with_a_thousand_queues(databases: Databases, served: int) -> None:
    """For a worker that serves one of them, and for one that serves all: it names a bounded number of levels."""
    async with databases.fresh() as database:
        await database.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        for number in range(20):
            await fill(database, 1_000, **{**ELSEWHERE, "available_at": f"now() - interval '{60 - number} minutes'"})
        queues = [f"q{number + 1}" for number in range(served)]
        cursors = Cursors(queues, rescan_interval_s=2.0, now_mono=0.0)
        levels = [level for level in cursors.next(0.0, queues) if level.priority == 1] or everywhere("q1")
        assert len(levels) <= LEVELS_A_CLAIM
        assert await cost_of(database, *levels) <= 300
