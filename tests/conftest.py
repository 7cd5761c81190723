"""Fixtures for everything that needs a real server, a real database or a real daemon."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from daemon.dev.postgres import Server
from tests.support.database import Database, Databases, dsn_with, name_in
from tests.support.process import Daemon, agree, configuration

StartDaemon = Callable[..., Awaitable[Daemon]]


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """Return a folder for servers' data that the account of the server can enter, which pytest's own can't be for root."""
    folder = Path(tempfile.mkdtemp(prefix="mailslot-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
async def databases(server_folder: Path) -> AsyncIterator[Databases]:
    """Make databases on the session's one server: ours, or the one of TEST_DATABASE_URL."""
    async with AsyncExitStack() as stack:
        if url := os.environ.get("TEST_DATABASE_URL"):
            made = Databases(dsn_with(url), name_in(url))
        else:
            server = stack.enter_context(Server.start(server_folder / "shared", settings={"max_connections": "200"}))
            made = Databases(server.dsn_of, "postgres")
        await stack.enter_async_context(made.prepared())
        yield made


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """Return a fresh database with the schema."""
    async with databases.fresh() as fresh:
        yield fresh


@pytest.fixture
def private_server(server_folder: Path) -> Iterator[Server]:
    """Return a server that the test may stop, crash and start again."""
    data = Path(tempfile.mkdtemp(dir=server_folder))
    data.chmod(0o711)
    with Server.start(data / "data") as server:
        yield server
    shutil.rmtree(data)


@pytest.fixture
async def private_database(private_server: Server) -> AsyncIterator[Database]:
    """Return a database with the schema on the private server."""
    database = Database("postgres", private_server.dsn)
    await database.apply_schema()
    yield database
    database.close()


@pytest.fixture
async def start_daemon(tmp_path: Path) -> AsyncIterator[StartDaemon]:
    """Return a function that starts a daemon; what still runs when the test ends is killed.

    `await start_daemon(database, relay_port, "--once", worker={"concurrency": 2}, environment={..})`: flags of `mailslot run`
    after the port, sections of the configuration by name. The database's settings are made to agree unless `agrees=False`.
    """
    async with AsyncExitStack() as stack:

        async def start(
            database: Database,
            relay_port: int,
            *arguments: str,
            environment: Mapping[str, str] = MappingProxyType({}),
            agrees: bool = True,
            **sections: Any,  # noqa: ANN401  one table or a list of them
        ) -> Daemon:
            merged = configuration(database.dsn, relay_port, sections)
            if agrees:
                await agree(database, merged)
            daemon = await Daemon.start(tmp_path, merged, arguments, environment)
            stack.push_async_callback(daemon.close)
            return daemon

        yield start
