"""The bench's own PostgreSQL: fsync on, a cache as on a small server, and every statement counted."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from daemon.core.errors import MailslotError
from daemon.dev.postgres import Server
from tests.bench import work
from tests.support.database import Database

SETTINGS: Mapping[str, str] = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",  # no checkpoint falls into a scene, and so no full page image that the next one hasn't
    "max_connections": "300",
    "log_line_prefix": "[%p] ",
}
COUNTING: Mapping[str, str] = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "10000"}
POSTMASTER = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::integer"


class Postgres:
    """The running server, and the databases on it."""

    def __init__(self, server: Server, log: Path, *, counts_statements: bool) -> None:
        self.log = log
        self.counts_statements = counts_statements
        self.programs = server.programs
        self.socket_dir = server.socket_dir
        self.postmaster = 0
        self.version = ""
        self._server = server
        self._numbers = itertools.count(1)

    def dsn_of(self, name: str) -> str:
        """Return the address of a database, for the superuser."""
        return self._server.dsn_of(name)

    async def look(self) -> None:
        """Find out who the server is."""
        admin = Database("postgres", self.dsn_of("postgres"))
        self.postmaster = await admin.fetchval(POSTMASTER)
        self.version = await admin.fetchval("SHOW server_version")

    @asynccontextmanager
    async def database(self, *, schema: bool) -> AsyncIterator[Database]:
        """Hold a fresh database, with mailslot's schema or empty, and statements counted from nought."""
        name, admin = f"bench_{os.getpid()}_{next(self._numbers)}", Database("postgres", self.dsn_of("postgres"))
        await admin.execute(f"CREATE DATABASE {name}")
        database = Database(name, self.dsn_of(name))
        try:
            if schema:
                await database.apply_schema()
            if self.counts_statements:
                await database.execute("CREATE EXTENSION pg_stat_statements")
                await database.fetchval("SELECT pg_stat_statements_reset() IS NULL")
            await admin.execute("CHECKPOINT")
            yield database
        finally:
            database.close()
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running(folder: Path) -> Iterator[Postgres]:
    """Run the server on data in the folder; where pg_stat_statements isn't there, statements aren't counted."""
    data = folder / "postgres"
    try:
        server, counts = Server.start(data, settings={**SETTINGS, **COUNTING}), True
    except MailslotError:
        server, counts = Server.start(data, settings=SETTINGS), False
    with server:
        yield Postgres(server, data.with_name(f"{data.name}.log"), counts_statements=counts)


async def vacuumed(database: Database) -> None:
    """Tell the planner about rows that were just made."""
    async with database.connection() as connection:
        await connection.execute("VACUUM (ANALYZE) /* bench */ mailslot.jobs", timeout=work.LONG_S)
