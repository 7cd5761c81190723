"""What does a daemon cost that has nothing to do?"""

from __future__ import annotations

import asyncio
import time

from tests.bench import meter
from tests.bench.bench import Bench
from tests.bench.processes import cpu_s, fine_cpu_s, peak_rss_mb
from tests.bench.row import OURS, Figures, Row
from tests.bench.worker import worker

CONCURRENCY = 50
CALM_S = 3.0
WATCHED_S, WATCHED_QUICKLY_S = 20.0, 8.0


async def rows(bench: Bench) -> list[Row]:
    """Watch an idle daemon."""
    if not bench.wanted("idle"):
        return []
    repeats = [await _once(bench) for _ in range(bench.repeats)]
    row = Row("idle", OURS, repeats, how=f"concurrency {CONCURRENCY}")
    bench.say(f"idle: {row.figures['cpu_percent']:.3f} % CPU")
    return [row]


async def _once(bench: Bench) -> Figures:
    async with bench.database(schema=True) as database, worker(bench.scratch, database.dsn, 9, CONCURRENCY) as daemon:
        await asyncio.sleep(CALM_S)
        before = await meter.read(bench.server, database, worker=[])
        begun, used, used_there = time.perf_counter(), fine_cpu_s(daemon.pid), cpu_s([bench.server.postmaster])
        await asyncio.sleep(WATCHED_QUICKLY_S if bench.quick else WATCHED_S)
        seconds = time.perf_counter() - begun
        used, used_there = fine_cpu_s(daemon.pid) - used, cpu_s([bench.server.postmaster]) - used_there
        after = await meter.read(bench.server, database, worker=[])
        memory = peak_rss_mb(daemon.pid)
        await daemon.stop()
    figures = {
        "cpu_percent": used / seconds * 100,
        "postgres_cpu_percent": used_there / seconds * 100,
        "peak_rss_mb": memory,
        "ready_s": daemon.ready_s,
    }
    if "all" in after.calls:
        figures["statements_per_s"] = (after.calls["all"][0] - before.calls["all"][0]) / seconds
    return figures
