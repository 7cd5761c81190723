"""Databases for tests: each test gets a fresh one, copied from a template that holds the schema."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

SCHEMA = Path(__file__).parents[2] / "schema.sql"
VERSION_WITH_STRATEGY = 150_000


class Database:
    """One database that a test may do anything with."""

    def __init__(self, name: str, dsn: str) -> None:
        self.name = name
        self.dsn = dsn
        self._connections: list[asyncpg.Connection] = []

    async def connect(self, **options: Any) -> asyncpg.Connection:  # noqa: ANN401  the driver's own
        """Open a connection of the superuser, or of `user`; it is closed with the test."""
        connection: asyncpg.Connection = await asyncpg.connect(self.dsn, **options)
        self._connections.append(connection)
        return connection

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a connection for a moment."""
        connection = await asyncpg.connect(self.dsn)
        try:
            yield connection
        finally:
            connection.terminate()

    async def execute(self, statement: str, *arguments: object) -> str:
        """Run a statement on a connection of its own, and return its command tag."""
        async with self.connection() as connection:
            return await connection.execute(statement, *arguments)

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """Run a query on a connection of its own, and return its rows."""
        async with self.connection() as connection:
            return await connection.fetch(statement, *arguments)

    async def fetchrow(self, statement: str, *arguments: object) -> asyncpg.Record | None:
        """Run a query on a connection of its own, and return its first row."""
        async with self.connection() as connection:
            return await connection.fetchrow(statement, *arguments)

    async def fetchval(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401  whatever the query returns
        """Run a query on a connection of its own, and return its first value."""
        async with self.connection() as connection:
            return await connection.fetchval(statement, *arguments)

    async def apply_schema(self) -> None:
        """Apply schema.sql."""
        async with self.connection() as connection, connection.transaction():
            await connection.execute(SCHEMA.read_text())

    def close(self) -> None:
        """Cut every connection that the test opened, without waiting for a server that may be away."""
        for connection in self._connections:
            connection.terminate()


class Databases:
    """Makes databases on one server."""

    def __init__(self, dsn_of: Callable[[str], str], admin: str) -> None:
        self._dsn_of = dsn_of
        self._admin = Database(admin, dsn_of(admin))
        self._prefix = f"mailslot_test_{os.getpid()}"
        self._template = f"{self._prefix}_template"
        self._numbers = itertools.count(1)
        self._strategy = ""

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Hold a template with the schema."""
        if await self._admin.fetchval("SELECT current_setting('server_version_num')::integer") >= VERSION_WITH_STRATEGY:
            self._strategy = "STRATEGY wal_log"
        async with self._held(self._template, "") as template:
            await template.apply_schema()
            yield

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Database]:
        """Hold a new database with the schema."""
        name = f"{self._prefix}_{next(self._numbers)}"
        async with self._held(name, f"TEMPLATE {self._template} {self._strategy}") as database:
            yield database

    @asynccontextmanager
    async def _held(self, name: str, origin: str) -> AsyncIterator[Database]:
        await self._admin.execute(f"CREATE DATABASE {name} {origin}")
        database = Database(name, self._dsn_of(name))
        try:
            yield database
        finally:
            database.close()
            await self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def dsn_with(url: str) -> Callable[[str], str]:
    """Return a function from a database's name to its address on the server of this URL."""
    parts = urlsplit(url)
    return lambda name: urlunsplit(parts._replace(path=f"/{name}"))


def name_in(url: str) -> str:
    """Return the name of the database in this URL."""
    return urlsplit(url).path.removeprefix("/") or "postgres"
