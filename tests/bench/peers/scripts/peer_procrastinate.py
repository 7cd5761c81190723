"""procrastinate at work: on psycopg, one or several of its workers in the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import procrastinate

BULK = 1_000


def app_of(dsn: str, connections: int, handle: Callable[[dict[str, Any]], Awaitable[None]] | None = None) -> tuple[Any, Any]:
    """Return an application with one task, and the task."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=connections))

    async def mail(payload: dict[str, Any]) -> None:
        if handle is not None:
            await handle(payload)

    return app, app.task(name="mail", queue="mail")(mail)


async def install(dsn: str) -> None:
    """Make its tables."""
    app, _ = app_of(dsn, 1)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(dsn: str, payloads: list[dict[str, Any]]) -> None:
    """Enqueue a thousand with each statement."""
    app, mail = app_of(dsn, 1)
    async with app.open_async():
        for start in range(0, len(payloads), BULK):
            await mail.batch_defer_async(*({"payload": payload} for payload in payloads[start : start + BULK]))


async def enqueuer(dsn: str, payloads: Iterable[dict[str, Any]]) -> AsyncIterator[None]:
    """Enqueue one at a time."""
    app, mail = app_of(dsn, 1)
    async with app.open_async():
        for payload in payloads:
            await mail.defer_async(payload=payload)
            yield


async def work(dsn: str, handle: Callable[[dict[str, Any]], Awaitable[None]], settings: dict[str, Any]) -> None:
    """Run `workers` workers with `slots` slots each. `delete` removes finished jobs in place of keeping them."""
    app, _ = app_of(dsn, settings["connections"], handle)
    async with app.open_async(), asyncio.TaskGroup() as group:
        for number in range(settings["workers"]):
            group.create_task(
                app.run_worker_async(
                    name=f"worker {number}",
                    queues=["mail"],
                    concurrency=settings["slots"],
                    delete_jobs="successful" if settings["delete"] else "never",
                    install_signal_handlers=False,
                )
            )
