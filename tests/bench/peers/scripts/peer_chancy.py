"""chancy at work: on psycopg, with its executor for coroutines.

Of its default plugins those that keep promises are on: leadership, recovery of the jobs of lost workers, pruning. Metrics and
workflows, which look at each finished job, are off unless asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from chancy import Chancy, Queue, Worker, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery

LOG = logging.getLogger("chancy.quiet")
LOG.setLevel(logging.WARNING)
"""Its default logger writes a line for each job."""

_handlers: list[Callable[[dict[str, Any]], Awaitable[None]]] = []


async def mail(*, payload: dict[str, Any]) -> None:
    """Be the job; chancy finds it by its importable name."""
    await _handlers[0](payload)


MAIL: Any = job(queue="mail")(mail)


async def install(dsn: str) -> None:
    """Make its tables."""
    async with Chancy(dsn, log=LOG) as chancy:
        await chancy.migrate()


async def enqueue(dsn: str, payloads: list[dict[str, Any]]) -> None:
    """Enqueue a thousand in each transaction."""
    async with Chancy(dsn, log=LOG) as chancy:
        async for _ in chancy.push_many([MAIL.job.with_kwargs(payload=payload) for payload in payloads]):
            pass


async def enqueuer(dsn: str, payloads: Iterable[dict[str, Any]]) -> AsyncIterator[None]:
    """Enqueue one at a time."""
    async with Chancy(dsn, log=LOG) as chancy:
        for payload in payloads:
            await chancy.push(MAIL.job.with_kwargs(payload=payload))
            yield


async def work(dsn: str, handle: Callable[[dict[str, Any]], Awaitable[None]], settings: dict[str, Any]) -> None:
    """Work on a queue of `slots` slots. Outcomes are written each `flush_s` seconds."""
    _handlers.append(handle)
    plugins = None if settings["all_plugins"] else [Leadership(), Recovery(), Pruner()]
    async with Chancy(dsn, log=LOG, plugins=plugins, no_default_plugins=plugins is not None) as chancy:
        queue = Queue(
            "mail",
            concurrency=settings["slots"],
            executor=Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=settings["eager"],
        )
        await chancy.declare(queue, upsert=True)
        # A worker declares this one if nobody has, with an executor that starts processes.
        await chancy.declare(Queue("default", concurrency=1, executor=Chancy.Executor.Async), upsert=True)
        worker = Worker(chancy, register_signal_handlers=False)
        worker.send_outgoing_interval = settings["flush_s"]
        await worker.start()
        await asyncio.Event().wait()
