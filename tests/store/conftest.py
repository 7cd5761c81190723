"""One database for all tests of the statements: emptied before each, so that none waits for a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.store.queue import Queue, opened, settings_for
from tests.support.database import Database, Databases

TABLES = ("attempts", "jobs", "queues", "workers", "audit")


@pytest.fixture(scope="session")
async def shared_database(databases: Databases) -> AsyncIterator[Database]:
    """Return the database of this folder's tests."""
    async with databases.fresh() as database:
        yield database


@pytest.fixture(scope="session")
async def shared_queue(shared_database: Database) -> AsyncIterator[Queue]:
    """Return the queue over that database."""
    store = await opened(settings_for(shared_database.dsn))
    yield Queue(await shared_database.connect(), store)
    store.close()


@pytest.fixture
async def queue(shared_queue: Queue) -> Queue:
    """Return a queue without jobs."""
    for table in TABLES:
        await shared_queue.connection.execute(f"DELETE FROM mailslot.{table}")  # noqa: S608  our own names
    return shared_queue


@pytest.fixture
async def other(shared_database: Database) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection of somebody else: an application, or another worker."""
    async with shared_database.connection() as connection:
        yield connection
