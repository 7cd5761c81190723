"""A connection that isn't made, and what that means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from daemon.cli.exits import Exit, meaning_of
from daemon.core.errors import MailslotError, StoreRefused, StoreUnavailable
from daemon.core.settings import Database
from daemon.database import connect, statement
from tests.support.database import Database as Server

STATEMENTS = sorted(path.stem for path in (Path(__file__).parents[2] / "daemon/sql").glob("*.sql"))


async def refused(message: str) -> MailslotError:
    """Connect to what refuses every connection with 08P01 and this message, as pgbouncer does."""
    fields = b"SFATAL\0C08P01\0M" + message.encode() + b"\0\0"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        await reader.readexactly(size - 4)
        writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(MailslotError) as caught:
            await connect(Database(dsn=f"postgresql://me@127.0.0.1:{port}/x?sslmode=disable"), application_name="a test")
    return caught.value


async def test_a_pooler_is_refused_and_named() -> None:
    """Waiting for it as for a database that is away would be for ever."""
    error = await refused("unsupported startup parameter: enable_seqscan")
    assert isinstance(error, StoreRefused)
    assert "pooler" in str(error)
    assert meaning_of(error) == Exit.CONFIGURATION


async def test_another_breach_of_the_protocol_is_of_the_moment() -> None:
    """As when a proxy loses its server while it logs in."""
    assert isinstance(await refused("server login failed"), StoreUnavailable)


async def test_no_statement_makes_the_driver_ask_for_types(shared_database: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would be a query of tens of milliseconds on every new connection."""
    connection = await connect(Database(dsn=shared_database.dsn), application_name="a test")

    async def asked(*_: object, **__: object) -> None:
        raise AssertionError("the driver asks the server for a type: add it to ARRAYS")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    assert "claim" in STATEMENTS
    for name in STATEMENTS:
        await connection.prepare(statement(name))
    await connection.close()
