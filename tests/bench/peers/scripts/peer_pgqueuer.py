"""pgqueuer at work: on asyncpg, with payloads as JSON in its bytes column."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

BULK = 1_000
ENTRYPOINT = "mail"


async def install(dsn: str) -> None:
    """Make its tables."""
    await Queries(AsyncpgDriver(await asyncpg.connect(dsn))).install()


async def enqueue(dsn: str, payloads: list[dict[str, Any]]) -> None:
    """Enqueue a thousand with each statement."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    for start in range(0, len(payloads), BULK):
        bulk = [json.dumps(payload).encode() for payload in payloads[start : start + BULK]]
        await queries.enqueue([ENTRYPOINT] * len(bulk), bulk, [0] * len(bulk))


async def enqueuer(dsn: str, payloads: Iterable[dict[str, Any]]) -> AsyncIterator[None]:
    """Enqueue one at a time."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    for payload in payloads:
        await queries.enqueue(ENTRYPOINT, json.dumps(payload).encode())
        yield


async def work(dsn: str, handle: Callable[[dict[str, Any]], Awaitable[None]], settings: dict[str, Any]) -> None:
    """Run what `pgq run` runs. `limit` 0 is no limit, `connections` 0 one connection in place of a pool."""
    if settings["connections"]:
        pool = await asyncpg.create_pool(dsn, min_size=settings["connections"], max_size=settings["connections"])
        driver = AsyncpgPoolDriver(pool)
    else:
        driver = AsyncpgDriver(await asyncpg.connect(dsn))
    queuer = PgQueuer(driver)

    async def mail(job: Job) -> None:
        await handle(json.loads(job.payload))

    queuer.entrypoint(ENTRYPOINT)(mail)
    await queuer.run(
        batch_size=settings["batch"],
        max_concurrent_tasks=settings["limit"] or None,
        dequeue_timeout=timedelta(seconds=30),
    )
