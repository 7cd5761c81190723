"""One connection for one command: statements by name, rows as dictionaries, errors translated.

Owns the command's connection from `opened` to its end. Never retries: a command that met an outage says so (exit 69) and is
repeated by whoever called it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from daemon.core.settings import Database
from daemon.database import Connection, connect, statement, translated

Row = dict[str, Any]
"""Column -> value, as PostgreSQL's types come out of the driver."""


class Session:
    """A connection that knows the statements of `daemon/sql`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, name: str, *arguments: object) -> list[Row]:
        """Run the statement `name`; the empty list if it returned nothing."""
        with translated(name):
            return [dict(record) for record in await self._connection.fetch(statement(name), *arguments)]

    async def row(self, name: str, *arguments: object) -> Row | None:
        """Run a statement that returns one row or none."""
        rows = await self.rows(name, *arguments)
        return rows[0] if rows else None

    async def script(self, name: str, sql: str) -> None:
        """Run several statements of plain SQL; `name` says in errors what they were for."""
        with translated(name):
            await self._connection.execute(sql)

    @asynccontextmanager
    async def transaction(self, name: str) -> AsyncIterator[None]:
        """Commit at the end, roll back on an exception; inside another transaction this is a savepoint."""
        with translated(name):
            transaction = self._connection.transaction()
            await transaction.start()
        try:
            yield
        except BaseException:
            if not self._connection.is_closed():
                with translated(name):
                    await transaction.rollback()
            raise
        with translated(name):
            await transaction.commit()


@asynccontextmanager
async def opened(database: Database, *, limit_s: float = 60.0) -> AsyncIterator[Session]:
    """Connect for one command, whose every statement may take `limit_s`; the connection is closed on the way out.

    Raises StoreUnavailable or StoreRefused. Cancelling is safe: an open transaction is rolled back.
    """
    patient = msgspec.structs.replace(database, command_timeout_s=limit_s)
    connection = await connect(patient, application_name="mailslot-cli")
    try:
        yield Session(connection)
    except BaseException:
        connection.terminate()
        raise
    with translated("disconnect"):
        await connection.close()
