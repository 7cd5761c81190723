"""What the statements cost when the table is large: the plan's shape and the pages that it reads, never the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from daemon.store import FIRST
from tests.store.plans import HOLDERS, LEVELS, SCANS, cached, claiming, given, nodes, on_jobs, pages, plan_of
from tests.store.queue import NO, YES, quiet
from tests.support.database import Databases

MANY = 200_000
DUE = "now() - interval '1 hour' + g * interval '1 ms', NULL, NULL"
FUTURE = "now() + interval '1 hour' + g * interval '1 ms', NULL, NULL"
FINISHED = "now() - interval '1 day' + g * interval '1 ms', now(), 'sent'"
FILL = """
INSERT INTO mailslot.jobs (queue, priority, payload, expires_at, available_at, completed_at, outcome)
SELECT 'default', 1, '{}', now() + interval '2 days', {columns} FROM generate_series(1, {many}) AS g
"""
CHECKS = "SELECT conname FROM pg_constraint WHERE conrelid = 'mailslot.jobs'::regclass AND contype = 'c'"


@pytest.fixture(scope="module")
async def crowd(databases: Databases) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection like a worker's to a table with many jobs that are due, in the future, and finished."""
    async with databases.fresh() as database:
        connection = await database.connect()
        await connection.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        for check in await connection.fetch(CHECKS):  # they would take most of the time, and no plan looks at them
            await connection.execute(f'ALTER TABLE mailslot.jobs DROP CONSTRAINT "{check["conname"]}"')
        for columns in (DUE, FUTURE, FINISHED):
            await connection.execute(FILL.replace("{columns}", columns).replace("{many}", str(MANY)))
        await connection.execute("VACUUM ANALYZE mailslot.jobs")
        await quiet(connection)
        yield connection


@cached
async def test_a_claim_reads_a_few_pages_whatever_waits(crowd: asyncpg.Connection, cached: str) -> None:
    """One exact range of the partial index a level, and the primary key for the update; ten jobs, a few pages each."""
    plan = await plan_of(crowd, "claim", cached, *claiming())
    assert ("Index Scan", "jobs_unfinished") in on_jobs(plan)
    assert {index for _, index in on_jobs(plan)} <= {"jobs_unfinished", "jobs_pkey"}
    assert {node for node, _ in on_jobs(plan)} <= SCANS
    assert pages(plan) < 300
    assert plan["Actual Rows"] == 10


@cached
async def test_a_claim_for_one_slot_reads_next_to_nothing(crowd: asyncpg.Connection, cached: str) -> None:
    """The limit stops the scan; nothing is sorted."""
    plan = await plan_of(crowd, "claim", cached, *claiming(1))
    assert pages(plan) < 100
    (scan,) = [node for node in nodes(plan) if node.get("Index Name") == "jobs_unfinished"]
    assert scan["Actual Rows"] * scan["Actual Loops"] == pytest.approx(1)


@cached
async def test_a_claim_of_an_empty_queue_costs_next_to_nothing(crowd: asyncpg.Connection, cached: str) -> None:
    """However full the others are."""
    assert pages(await plan_of(crowd, "claim", cached, *claiming(queue="elsewhere"))) < 50


@cached
async def test_future_and_finished_jobs_cost_a_claim_nothing(crowd: asyncpg.Connection, cached: str) -> None:
    """Behind the last due job nothing is read: the scan ends where the future begins."""
    last = await crowd.fetchrow(
        "SELECT available_at, id FROM mailslot.jobs WHERE available_at < now() ORDER BY 1 DESC, 2 DESC LIMIT 1"
    )
    assert last is not None
    levels = (["default"], [1], [last["available_at"]], [last["id"]])
    plan = await plan_of(crowd, "claim", cached, *levels, *claiming()[4:-1], [None])
    assert pages(plan) < 50


@cached
async def test_a_look_at_the_front_reads_no_more_than_the_front(crowd: asyncpg.Connection, cached: str) -> None:
    """Sweep, suspects and abandon are bounded by their window, however many jobs wait behind it."""
    sweep = await plan_of(crowd, "sweep", cached, *LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO, [FIRST] * 4)
    front = await plan_of(crowd, "front", cached, *LEVELS, [FIRST] * 4, 500, 3, 10.0)
    abandon = await plan_of(crowd, "abandon", cached, *claiming()[:4], [uuid4()], 500, [None] * 4)
    for plan in (sweep, front, abandon):
        assert pages(plan) < 1_000
        assert {node for node, _ in on_jobs(plan)} <= SCANS
        assert ("Index Scan", "jobs_unfinished") in on_jobs(plan)


@cached
async def test_queues_are_found_by_skipping(crowd: asyncpg.Connection, cached: str) -> None:
    """One probe a queue, not one row a job."""
    plan = await plan_of(crowd, "queues", cached)
    assert pages(plan) < 50
    assert {index for _, index in on_jobs(plan)} == {"jobs_unfinished"}


@cached
@pytest.mark.parametrize("name", HOLDERS)
async def test_a_holders_statements_go_by_the_primary_key(crowd: asyncpg.Connection, cached: str, name: str) -> None:
    """A probe a job, at whatever size of the table."""
    plan = await plan_of(crowd, name, cached, *given(name, [1], [uuid4()], [uuid4()]))
    assert {index for _, index in on_jobs(plan)} == {"jobs_pkey"}
    assert pages(plan) < 50


@pytest.fixture(scope="module")
async def newcomer(databases: Databases) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection like a worker's to a table that is still small, and about which the planner knows nothing."""
    async with databases.fresh() as database:
        connection = await database.connect()
        await connection.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await connection.execute(FILL.replace("{columns}", DUE).replace("{many}", "300"))
        await quiet(connection)
        yield connection


@cached
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("claim", claiming()),
        ("abandon", (*claiming()[:4], [uuid4()], 500, [None] * 4)),
        *[(name, given(name, [1], [uuid4()], [uuid4()])) for name in HOLDERS],
        ("sweep", (*LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO, [FIRST] * 4)),
        ("front", (*LEVELS, [FIRST] * 4, 500, 3, 10.0)),
        ("queues", ()),
    ],
)
async def test_the_plan_of_a_small_table_is_the_plan_of_a_large_one(
    newcomer: asyncpg.Connection, cached: str, name: str, arguments: tuple[object, ...]
) -> None:
    """A plan may be kept while the table grows: it must not read all unfinished rows, not even while they are few.

    Such a plan costs more than reading: pages that the primary key would have touched one by one are not tidied, and updates
    find no room on them.
    """
    plan = await plan_of(newcomer, name, cached, *arguments)
    assert {node for node, _ in on_jobs(plan)} <= SCANS
    assert {index for _, index in on_jobs(plan)} <= {"jobs_unfinished", "jobs_pkey"}
    unfinished = [node for node in nodes(plan) if node.get("Index Name") == "jobs_unfinished"]
    assert all("queue" in node.get("Index Cond", "queue" if name == "queues" else "") for node in unfinished)
