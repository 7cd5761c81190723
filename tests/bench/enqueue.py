"""What does it cost to save jobs: many from a file by the operator's command, and one at a time by applications?"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg

from tests.bench import meter, work
from tests.bench.bench import Bench
from tests.bench.processes import fine_cpu_s
from tests.bench.row import OURS, Figures, Row
from tests.bench.worker import mailslot, sections, worker
from tests.support.database import Database
from tests.support.process import write_configuration

LINES = 50_000
CALLS = 20_000
PRODUCERS = 8
WARM = 100
LISTENERS = 8
ENQUEUE = "SELECT /* bench */ id FROM mailslot.enqueue($1::jsonb)"
EXECUTED = "SELECT mean_exec_time FROM pg_stat_statements WHERE query LIKE '%mailslot.enqueue(%' ORDER BY calls DESC LIMIT 1"
"""The call alone, without reading the message from the client and without the commit."""
ELSEWHERE = {"worker": {"queues": ["elsewhere"]}}
"""The daemons that listen are woken by each commit, and find nothing: what is measured is saving, not working."""


async def rows(bench: Bench) -> list[Row]:
    """Measure both ways of saving, and single saves also while daemons listen."""
    found = []
    if bench.wanted("enqueue-bulk"):
        found.append(
            await _row(bench, "enqueue-bulk", [await _bulk(bench) for _ in range(bench.repeats)], "mailslot enqueue --json")
        )
    for producers in (1, PRODUCERS):
        for listeners in (0, LISTENERS):
            name = f"enqueue-{producers}" + (f"-{listeners}-listen" if listeners else "")
            if bench.wanted(name):
                repeats = [await _single(bench, producers, listeners) for _ in range(bench.repeats)]
                found.append(await _row(bench, name, repeats, f"{producers} connections, {listeners} daemons listen"))
    return found


async def _row(bench: Bench, name: str, repeats: list[Figures], how: str) -> Row:
    row = Row(name, OURS, repeats, how)
    bench.say(f"{name}: {row.figures['jobs_per_s']:,.0f} jobs/s")
    return row


async def _bulk(bench: Bench) -> Figures:
    lines, source = bench.jobs(LINES), bench.scratch / "jobs.jsonl"
    source.write_text("".join(json.dumps(work.payload(number)) + "\n" for number in range(lines)))
    async with bench.database(schema=True) as database:
        config = write_configuration(bench.scratch, sections(database.dsn, 9, 1, {}))
        before = await meter.read(bench.server, database, worker=[])
        begun, used = time.perf_counter(), _children_cpu_s()
        process = await asyncio.create_subprocess_exec(
            *mailslot(), *("enqueue", "--config", str(config), "--json", str(source)), stdout=DEVNULL, cwd=bench.scratch
        )
        assert await process.wait() == 0, "mailslot enqueue has failed"
        seconds, used = time.perf_counter() - begun, _children_cpu_s() - used
        after = await meter.read(bench.server, database, worker=[])
        saved = await database.fetchval("SELECT /* bench */ count(*) FROM mailslot.jobs")
        assert saved == lines, f"{saved} jobs were saved of {lines}"
    figures = meter.spent(before, after, jobs=lines, seconds=seconds)
    return {name: figures[name] for name in ("jobs_per_s", "postgres_cpu_ms", "wal_bytes")} | {
        "worker_cpu_ms": used * 1000 / lines
    }


async def _single(bench: Bench, producers: int, listeners: int) -> Figures:
    calls = bench.jobs(CALLS)
    async with bench.database(schema=True) as database, _listening(bench, database, listeners):
        connections = [await database.connect() for _ in range(producers)]
        for connection in connections:
            await _save(connection, WARM)
        backends = [connection.get_server_pid() for connection in connections]
        begun, used = time.perf_counter(), sum(fine_cpu_s(pid) for pid in backends)
        async with asyncio.TaskGroup() as tasks:
            for connection in connections:
                tasks.create_task(_save(connection, calls // producers))
        seconds, used = time.perf_counter() - begun, sum(fine_cpu_s(pid) for pid in backends) - used
        executed_ms = await database.fetchval(EXECUTED) if bench.server.counts_statements else 0.0
    return {"jobs_per_s": calls / seconds, "call_us": used / calls * 1e6, "executed_us": executed_ms * 1000}


async def _save(connection: asyncpg.Connection, times: int) -> None:
    enqueue = await connection.prepare(ENQUEUE)
    payload = json.dumps(work.payload(1))
    for _ in range(times):
        await enqueue.fetchval(payload)


@asynccontextmanager
async def _listening(bench: Bench, database: Database, daemons: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(daemons):
            await stack.enter_async_context(worker(bench.scratch, database.dsn, 9, 10, changes=ELSEWHERE))
        yield


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
