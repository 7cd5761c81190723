"""Many daemons on one database, with a relay that takes 50 ms: does each bring its own, and do they wait for each other?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.bench import meter, work
from tests.bench.bench import Bench
from tests.bench.row import OURS, Figures, Row
from tests.bench.sinks import own_sink
from tests.bench.worker import worker
from tests.support.database import Database

DAEMONS = (1, 2, 4, 8)
CONCURRENCY = 50
DELAY_MS = 50.0
JOBS_EACH = 8_000
SAMPLED_S = 0.02
WAITING = """
SELECT /* bench */ count(*) FILTER (WHERE wait_event_type = 'Lock') AS locks,
       count(*) FILTER (WHERE wait_event_type = 'LWLock') AS latches,
       count(*) FILTER (WHERE state = 'active') AS active
FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'mailslot %'
"""


async def rows(bench: Bench) -> list[Row]:
    """Measure each number of daemons."""
    found = []
    for daemons in DAEMONS:
        if bench.wanted(f"scale-{daemons}"):
            repeats = [await _once(bench, daemons) for _ in range(bench.repeats)]
            possible = daemons * CONCURRENCY / DELAY_MS * 1000
            row = Row(f"scale-{daemons}", OURS, repeats, f"{daemons} x {CONCURRENCY} slots", f"of {possible:,.0f} possible")
            bench.say(f"{row.scene}: {row.figures['jobs_per_s']:,.0f} jobs/s {row.note}")
            found.append(row)
    return found


async def _once(bench: Bench, daemons: int) -> Figures:
    jobs = bench.jobs(JOBS_EACH) * daemons
    async with bench.database(schema=True) as database, own_sink(DELAY_MS) as sink, AsyncExitStack() as stack:
        await work.enqueue(database, jobs)
        await work.hold(database)
        released = work.Round(database, jobs)
        workers = [
            await stack.enter_async_context(worker(bench.scratch, database.dsn, sink.port, CONCURRENCY)) for _ in range(daemons)
        ]
        pids = [each.pid for each in workers]
        before = await meter.read(bench.server, database, worker=pids, sink=sink)
        async with _sampled(database) as waiting:
            await released.run()
        after = await meter.read(bench.server, database, worker=pids, sink=sink)
        for each in workers:
            await each.stop()
        await released.check()
        assert await sink.count() == jobs
        after = await meter.settled(after, bench.server, database)
    return {**meter.spent(before, after, jobs=jobs, seconds=released.seconds), **waiting}


@asynccontextmanager
async def _sampled(database: Database) -> AsyncIterator[Figures]:
    """Look fifty times a second which of the daemons' connections wait for whom; yields the averages, right at the end."""
    sums: Figures = {"waiting_on_locks": 0.0, "waiting_on_latches": 0.0, "active": 0.0}
    samples = 0

    async def sample() -> None:
        nonlocal samples
        async with database.connection() as connection:
            while True:
                for name, value in zip(sums, (await connection.fetch(WAITING))[0], strict=True):
                    sums[name] += value
                samples += 1
                await asyncio.sleep(SAMPLED_S)

    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(sample())
        yield sums
        sampling.cancel()
    for name in sums:
        sums[name] /= max(samples, 1)
