"""Does it stay as fast when the table grows and vacuum can't clean? The same work on each kind of table, and on an empty one.

The work is the no-op function at concurrency 50, which asks more of the queue than any mail: what slows the claim down shows here
first. One daemon works through a window of some seconds; jobs are counted by when they were recorded, and the claim's times are
the server's own, each execution in the window, full rescans included (`log_min_duration_statement`, on for the window).
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from daemon.database import statement
from tests.bench import work
from tests.bench.bench import Bench
from tests.bench.figures import durations_ms, percentile
from tests.bench.grounds import GROUNDS, Ground
from tests.bench.processes import cpu_s, others_cpu_s
from tests.bench.row import OURS, Figures, Row
from tests.bench.scenes import NOOP
from tests.bench.server import vacuumed
from tests.bench.worker import worker
from tests.support.database import Database

CONCURRENCY = 50
WORK = 250_000
"""More than a window can take."""
WARM_S = 2.0
WINDOW_S = 6.0
AGED_TIMEOUT_S = 1800.0
QUICKER = 10
"""By how much the tables are smaller when it has to be quick."""
LOGGING = ("ALTER SYSTEM SET log_min_duration_statement = '{}'", "SELECT pg_reload_conf()")
SENT = """
SELECT /* bench */ count(*)::float8 FROM mailslot.jobs WHERE kind = 'noop' AND outcome = 'sent' AND completed_at BETWEEN $1 AND $2
"""
LEFT = "SELECT /* bench */ EXISTS (SELECT FROM mailslot.jobs WHERE kind = 'noop' AND outcome IS NULL)"
FINISHED = "SELECT /* bench */ completed_at IS NOT NULL FROM mailslot.jobs WHERE id = $1"
NOW = "SELECT /* bench */ clock_timestamp()"


async def rows(bench: Bench) -> list[Row]:
    """Measure every kind of table, in turn, so that whatever else the machine does meanwhile comes over all of them."""
    grounds = [ground for ground in GROUNDS if bench.wanted(f"flat-{ground.name}")]
    repeats: dict[str, list[Figures]] = {ground.name: [] for ground in grounds}
    for _ in range(bench.repeats):
        for ground in grounds:
            figures = await _once(bench, ground)
            repeats[ground.name].append(figures)
            bench.say(
                f"flat-{ground.name}: {figures['jobs_per_s']:,.0f} jobs/s, claim p50 {figures['claim_p50_ms']:.2f} ms,"
                f" p99 {figures['claim_p99_ms']:.2f} ms"
            )
    divided = QUICKER if bench.quick else 1
    return _beside_empty([Row(f"flat-{each.name}", OURS, repeats[each.name], each.about(divided)) for each in grounds])


async def _once(bench: Bench, ground: Ground) -> Figures:
    divided = QUICKER if bench.quick else 1
    aged = ground.aged // divided
    changes: dict[str, dict[str, Any]] = {**NOOP, "worker": {"name": "bench", "queues": list(ground.queues)}}
    async with bench.database(schema=True) as database:
        await ground.lay(database, divided)
        await vacuumed(database)
        first = 1 + (await database.fetchval("SELECT /* bench */ max(id) FROM mailslot.jobs") or 0)
        async with ground.meanwhile(database):
            for queue in ground.queues:
                await work.hold(database, queue)
            async with worker(bench.scratch, database.dsn, 9, CONCURRENCY, changes=changes) as daemon:
                await work.enqueue(database, WORK + aged, kind="noop")
                if ground.just_before is not None:
                    await ground.just_before(database)
                await database.execute("UPDATE /* bench */ mailslot.queues SET paused = false")
                await database.execute("NOTIFY mailslot")
                if aged:
                    await _until_finished(database, first + aged)
                await asyncio.sleep(WARM_S)
                figures = await _window(bench, database, daemon.pid)
                await daemon.stop()
                daemon.log.unlink()
    return figures


async def _window(bench: Bench, database: Database, pid: int) -> Figures:
    """Measure what is done from now on for some seconds."""
    log = bench.server.log
    skipped = log.stat().st_size
    await _log_statements(database, "0")
    begun_at: datetime = await database.fetchval(NOW)
    used, used_there, others = cpu_s([pid]), cpu_s([bench.server.postmaster]), others_cpu_s()
    await asyncio.sleep(WINDOW_S)
    used, used_there, others = cpu_s([pid]) - used, cpu_s([bench.server.postmaster]) - used_there, others_cpu_s() - others
    ended_at: datetime = await database.fetchval(NOW)
    await _log_statements(database, "-1")
    assert await database.fetchval(LEFT), "the work ran out within the window"
    sent = await database.fetchval(SENT, begun_at, ended_at)
    claims = durations_ms(_lines(log, skipped), _beginning("claim"))
    assert claims, "no claim in the server's log"
    return {
        "jobs_per_s": sent / (ended_at - begun_at).total_seconds(),
        "worker_cpu_ms": used * 1000 / sent,
        "postgres_cpu_ms": used_there * 1000 / sent,
        "claim_p50_ms": percentile(claims, 0.5),
        "claim_p99_ms": percentile(claims, 0.99),
        "claims": len(claims),
        "other_cores": others / WINDOW_S,
    }


async def _until_finished(database: Database, job_id: int) -> None:
    async with asyncio.timeout(AGED_TIMEOUT_S):
        await work.until(lambda: database.fetchval(FINISHED, job_id), every_s=0.5)


async def _log_statements(database: Database, least_ms: str) -> None:
    for command in LOGGING:
        await database.execute(command.format(least_ms))
    await asyncio.sleep(0.1)  # until every backend has heard of it


def _beginning(name: str) -> str:
    """Return the first line of a statement, which the log has in the line of its time."""
    return re.split(r"\n", statement(name), maxsplit=1)[0]


def _lines(log: Path, skipped: int) -> list[str]:
    with log.open("rb") as source:
        source.seek(skipped)
        return source.read().decode(errors="replace").splitlines()


def _beside_empty(rows: list[Row]) -> list[Row]:
    """Say in each row's note how it stands to the empty table."""
    empty = next((row.figures for row in rows if row.scene == "flat-empty"), None)
    if empty is None:
        return rows
    return [
        row if row.figures is empty else Row(row.scene, row.by, row.repeats, row.how, _times(row.figures, empty)) for row in rows
    ]


def _times(figures: Figures, empty: Figures) -> str:
    speed, claim, slowest = (figures[name] / empty[name] for name in ("jobs_per_s", "claim_p50_ms", "claim_p99_ms"))
    cpu = (figures["worker_cpu_ms"] + figures["postgres_cpu_ms"]) / (empty["worker_cpu_ms"] + empty["postgres_cpu_ms"])
    return f"x {speed:.2f}; CPU x {cpu:.2f}; claim x {claim:.2f}, p99 x {slowest:.2f}"
