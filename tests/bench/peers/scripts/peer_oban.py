"""Oban for Python at work: on psycopg, with orjson for JSON as its own command line does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import orjson
import psycopg
from oban import Oban, worker
from oban.schema import install_sql
from psycopg.types.json import set_json_dumps, set_json_loads

BULK = 1_000
set_json_dumps(orjson.dumps)
set_json_loads(orjson.loads)

_handlers: list[Callable[[dict[str, Any]], Awaitable[None]]] = []


class Mail:
    """The worker class of the queue."""

    async def process(self, job: Any) -> None:  # noqa: ANN401  its type is the peer's
        """Do one job."""
        await _handlers[0](job.args)


WORKER: Any = worker(queue="mail")(Mail)


async def install(dsn: str) -> None:
    """Make its tables."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute(install_sql())


async def enqueue(dsn: str, payloads: list[dict[str, Any]]) -> None:
    """Enqueue a thousand in each transaction."""
    pool = await Oban.create_pool(dsn=dsn)
    oban = Oban(pool=pool)
    for start in range(0, len(payloads), BULK):
        await oban.enqueue_many([WORKER.new(payload) for payload in payloads[start : start + BULK]])
    await pool.close()


async def enqueuer(dsn: str, payloads: Iterable[dict[str, Any]]) -> AsyncIterator[None]:
    """Enqueue one at a time."""
    pool = await Oban.create_pool(dsn=dsn)
    oban = Oban(pool=pool)
    for payload in payloads:
        await oban.enqueue(WORKER.new(payload))
        yield
    await pool.close()


async def work(dsn: str, handle: Callable[[dict[str, Any]], Awaitable[None]], settings: dict[str, Any]) -> None:
    """Work on a queue of `slots` slots, with at least about `debounce_s` seconds between two fetches."""
    _handlers.append(handle)
    pool = await Oban.create_pool(dsn=dsn, max_size=settings["connections"])
    queue = {"limit": settings["slots"], "debounce_interval": settings["debounce_s"]}
    await Oban(pool=pool, queues={"mail": queue}).start()
    await asyncio.Event().wait()
