"""Claims, extensions and marks stay on their page (HOT): they touch no index. Counted by PostgreSQL, not timed."""

from __future__ import annotations

import json

import asyncpg
import pytest

from daemon.database import statement
from tests.store.plans import claiming
from tests.store.queue import quiet
from tests.support.database import Databases

COUNTS = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE schemaname = 'mailslot' AND relname = 'jobs'"
MAIL = """
INSERT INTO mailslot.jobs (payload, expires_at)
SELECT jsonb_build_object('to', jsonb_build_array('ann' || g || '@example.org'), 'subject', 'Hello', 'text', repeat('x', $1)),
       now() + interval '1 day'
FROM generate_series(1, 2000) AS g
"""


@pytest.mark.parametrize("vacuum", ["off", "on", "in vain"])
@pytest.mark.parametrize("length", [300, 600, 900])
async def test_claims_extensions_and_marks_touch_no_index(databases: Databases, length: int, vacuum: str) -> None:
    """At least 99 of 100 such updates stay on their page (HOT): two thirds were left free, and no index has them."""
    totals = {name: [0, 0] for name in ("claim", "extend", "mark")}
    async with databases.fresh() as database:
        connections = {name: await database.connect() for name in totals}
        for connection in connections.values():
            await quiet(connection)
        await database.execute("ALTER TABLE mailslot.jobs SET (autovacuum_enabled = false)")
        await database.execute(MAIL, length)
        if vacuum == "in vain":  # somebody's snapshot needs every version before
            pinned = await database.connect()
            await pinned.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await pinned.fetchval("SELECT count(*) FROM mailslot.jobs")

        async def counted(name: str, *arguments: object) -> list[asyncpg.Record]:
            connection = connections[name]
            async with connection.transaction():
                before = await connection.fetchrow(COUNTS)
                rows: list[asyncpg.Record] = await connection.fetch(statement(name), *arguments)
                after = await connection.fetchrow(COUNTS)
            assert before is not None
            assert after is not None
            totals[name] = [total + a - b for total, a, b in zip(totals[name], after, before, strict=True)]
            return rows

        for number in range(20):
            if vacuum != "off" and number % 5 == 4:
                await database.execute("VACUUM mailslot.jobs")
            rows = await counted("claim", *claiming(100))
            pairs = ([row["id"] for row in rows], [row["token"] for row in rows])
            if vacuum != "in vain":
                await counted("extend", *pairs, 60.0, 1_200.0)
            marks = [{"id": row["id"], "token": str(row["token"]), "sending": ["ann@example.org"]} for row in rows]
            await counted("mark", json.dumps(marks), 30.0)
    for name, (updated, stayed) in totals.items():
        assert updated == (0 if vacuum == "in vain" and name == "extend" else 2_000)
        assert stayed >= 0.99 * updated
