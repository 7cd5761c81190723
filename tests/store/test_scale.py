"""What the statements cost when the table is large: the plan's shape and the pages that it reads, never the time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from daemon.database import statement
from daemon.store import FIRST, PRIORITIES
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
LEVELS = (["default"] * 4, list(PRIORITIES))
SCANS = {"Index Scan", "Index Only Scan"}


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


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def plan_of(connection: asyncpg.Connection, name: str, cached: str, *arguments: object) -> dict[str, Any]:
    """Run a statement and roll it back; returns its plan with the pages that it read."""
    await connection.execute(f"SET plan_cache_mode = force_{cached}_plan")
    prepared = await connection.prepare(statement(name))
    types = ", ".join(
        f"{parameter.name}[]" if parameter.kind == "array" else parameter.name for parameter in prepared.get_parameters()
    )
    types = types.replace("[][]", "[]")
    handle = f"explained_{uuid4().hex}"
    await connection.execute(
        f"PREPARE {handle} ({types}) AS {statement(name)}" if types else f"PREPARE {handle} AS {statement(name)}"
    )
    literals = [await connection.fetchval("SELECT quote_nullable($1::text)", as_text(argument)) for argument in arguments]
    call = f"({', '.join(literals)})" if literals else ""
    transaction = connection.transaction()
    await transaction.start()
    found = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {handle}{call}")
    await transaction.rollback()
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


def as_text(argument: object) -> str | None:
    """Return a value as PostgreSQL reads it."""
    if isinstance(argument, list):
        return "{" + ",".join(str(as_text(item)) for item in argument) + "}"
    if argument is FIRST:
        return "-infinity"
    return None if argument is None else str(argument)


def pages(plan: dict[str, Any]) -> int:
    """Return how many pages a plan touched."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def on_jobs(plan: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return how the jobs are looked for: node type and index."""
    return [
        (node["Node Type"], node.get("Index Name"))
        for node in nodes(plan)
        if node.get("Relation Name") == "jobs" and node["Node Type"] != "ModifyTable"
    ]


def claiming(count: int = 10, *, suspects: bool = False, queue: str = "default") -> tuple[object, ...]:
    """Return the arguments of a claim that looks at everything."""
    levels = ([queue] * 4, LEVELS[1], [FIRST] * 4, [0] * 4)
    return (*levels, count, [uuid4() for _ in range(count)], "me", 30.0, True, 0.0, suspects, [], 1_000, 3, [])


cached = pytest.mark.parametrize("cached", ["custom", "generic"])


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
    plan = await plan_of(crowd, "claim", cached, *levels, *claiming()[4:])
    assert pages(plan) < 50


@cached
async def test_a_look_at_the_front_reads_no_more_than_the_front(crowd: asyncpg.Connection, cached: str) -> None:
    """Sweep, suspects and abandon are bounded by their window, however many jobs wait behind it."""
    sweep = await plan_of(crowd, "sweep", cached, *LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO)
    suspects = await plan_of(crowd, "suspects", cached, *LEVELS, 500, 3)
    abandon = await plan_of(crowd, "abandon", cached, *claiming()[:4], [uuid4()], 500)
    for plan in (sweep, suspects, abandon):
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
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("extend", (30.0, 1_200.0)),
        ("mark", (["{}"], ['"[]"'], 30.0)),
        ("release", ([0.0], ["x"], ["x"], ["x"], ["{}"])),
    ],
)
async def test_a_holders_statements_go_by_the_primary_key(
    crowd: asyncpg.Connection, cached: str, name: str, more: tuple[object, ...]
) -> None:
    """A probe a job, at whatever size of the table."""
    plan = await plan_of(crowd, name, cached, [1], [uuid4()], *more)
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


RECORD = ([1], [uuid4()], [uuid4()], ["sent"], [0.0], [0], ["x"], ["x"], ["x"], ["{}"], [False], ["dot"], ["sent"], ['"[]"'])


@cached
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("claim", claiming()),
        ("abandon", (*claiming()[:4], [uuid4()], 500)),
        ("extend", ([1], [uuid4()], 30.0, 1_200.0)),
        ("mark", ([1], [uuid4()], ["{}"], ['"[]"'], 30.0)),
        ("record", RECORD),
        ("release", ([1], [uuid4()], [0.0], ["x"], ["x"], ["x"], ["{}"])),
        ("sweep", (*LEVELS, 500, 500, YES, 0.0, 660.0, 3, 2, 30.0, NO)),
        ("suspects", (*LEVELS, 500, 3)),
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


@pytest.mark.parametrize("length", [300, 600, 900])
async def test_claims_extensions_and_marks_touch_no_index(databases: Databases, length: int) -> None:
    """At least 95 of 100 such updates stay on their page (HOT): more than half was left free, and no index has them."""
    hot = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE schemaname = 'mailslot' AND relname = 'jobs'"
    totals = {name: [0, 0] for name in ("claim", "extend", "mark")}
    async with databases.fresh() as database:
        connections = {name: await database.connect() for name in totals}
        for connection in connections.values():
            await quiet(connection)
        await database.execute(
            "INSERT INTO mailslot.jobs (payload, expires_at) SELECT jsonb_build_object('to', 'ann@example.org', 'text',"
            " repeat('x', $1)), now() + interval '1 day' FROM generate_series(1, 2000)",
            length,
        )

        async def counted(name: str, *arguments: object) -> list[asyncpg.Record]:
            connection = connections[name]
            async with connection.transaction():
                before = await connection.fetchrow(hot)
                rows: list[asyncpg.Record] = await connection.fetch(statement(name), *arguments)
                after = await connection.fetchrow(hot)
            assert before is not None
            assert after is not None
            totals[name] = [total + a - b for total, a, b in zip(totals[name], after, before, strict=True)]
            return rows

        for _ in range(20):
            rows = await counted("claim", *claiming(100))
            pairs = ([row["id"] for row in rows], [row["token"] for row in rows])
            await counted("extend", *pairs, 60.0, 1_200.0)
            await counted("mark", *pairs, [None] * 100, ['["ann@example.org"]'] * 100, 30.0)
    for updated, stayed in totals.values():
        assert updated == 2_000
        assert stayed >= 0.95 * updated
