"""How long does a new job wait for an idle daemon? From the acknowledged commit to the function's start, and to the relay.

One job at a time, so the n-th stamp is the n-th job's. All clocks are the wall clock of one machine. A daemon may well be faster
than the news of the commit is to its client, so a figure near nought means: as soon as the application knows.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence

from tests.bench import work
from tests.bench.bench import Bench
from tests.bench.figures import percentile
from tests.bench.handlers import STAMPS
from tests.bench.row import OURS, Figures, Row
from tests.bench.sinks import own_sink
from tests.bench.worker import worker
from tests.support.database import Database

JOBS = 200
APART_S = (0.05, 0.1)
CONCURRENCY = 50
STAMP = {"handlers": {"stamp": "tests.bench.handlers:stamp"}}
ENQUEUE = "SELECT /* bench */ id FROM mailslot.enqueue($1::jsonb, kind => $2)"
MOST_S = 10.0


async def rows(bench: Bench) -> list[Row]:
    """Measure functions and mails."""
    if not bench.wanted("pickup"):
        return []
    found: dict[tuple[str, str], list[Figures]] = {}
    for number in range(1, bench.repeats + 1):
        measured = {("pickup", "until the function begins"): await _functions(bench)} | await _mails(bench)
        for key, waits_s in measured.items():
            found.setdefault(key, []).append(_percentiles(waits_s))
        p50, p99 = (found["pickup", "until the function begins"][-1][name] for name in ("p50_ms", "p99_ms"))
        bench.say(f"pickup, {number} of {bench.repeats}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return [Row(scene, OURS, repeats, how) for (scene, how), repeats in found.items()]


async def _functions(bench: Bench) -> list[float]:
    stamps = bench.scratch / STAMPS
    stamps.unlink(missing_ok=True)
    async with (
        bench.database(schema=True) as database,
        worker(bench.scratch, database.dsn, 9, CONCURRENCY, changes=STAMP) as daemon,
    ):
        saved_at = await _one_by_one(bench, database, "stamp")
        await daemon.stop()
    begun_at = [float(line.split()[1]) for line in stamps.read_text().splitlines()]
    return _waits(saved_at, begun_at)


async def _mails(bench: Bench) -> dict[tuple[str, str], list[float]]:
    async with bench.database(schema=True) as database, own_sink(0, stamps=True) as sink:
        async with worker(bench.scratch, database.dsn, sink.port, CONCURRENCY) as daemon:
            saved_at = await _one_by_one(bench, database, "email")
            await daemon.stop()
        came = await sink.ask()
    return {
        ("pickup-mail", "until MAIL is at the relay"): _waits(saved_at, came["mail_at"]),
        ("pickup-dot", "until the dot is at the relay"): _waits(saved_at, came["dot_at"]),
    }


async def _one_by_one(bench: Bench, database: Database, kind: str) -> list[float]:
    """Enqueue jobs, each when the one before is long done; returns when each commit was acknowledged."""
    chance, jobs, saved_at = random.Random(1), JOBS // 2 if bench.quick else JOBS, []  # noqa: S311  the same pauses each time
    async with database.connection() as connection:
        enqueue = await connection.prepare(ENQUEUE)
        await asyncio.sleep(1)
        for number in range(jobs):
            payload = json.dumps({"number": number} if kind == "stamp" else work.payload(number))
            await enqueue.fetchval(payload, kind)
            saved_at.append(time.time())
            await asyncio.sleep(chance.uniform(*APART_S))
        async with asyncio.timeout(MOST_S):
            await work.finished(connection)
    return saved_at


def _waits(saved_at: Sequence[float], begun_at: Sequence[float]) -> list[float]:
    assert len(saved_at) == len(begun_at), f"{len(begun_at)} of {len(saved_at)} jobs were begun"
    return [begun - saved for saved, begun in zip(saved_at, begun_at, strict=True)]


def _percentiles(waits_s: Sequence[float]) -> Figures:
    names = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "most_ms": 1.0}
    return {name: percentile(waits_s, share) * 1000 for name, share in names.items()}
