"""How a connection to PostgreSQL is made, and what its errors mean to us.

Opens connections that notice a dead peer within about ten seconds, loads the statements of `sql/`, and translates the driver's
errors once, at this seam: what may succeed later becomes StoreUnavailable, what was answered with a no becomes StoreRefused.
Only this module and `daemon.store` import asyncpg. Never retries, never logs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import asyncpg

from daemon import resources
from daemon.core.errors import POOLER, StoreRefused, StoreUnavailable
from daemon.core.settings import Database

Connection = asyncpg.Connection

LATER = frozenset({"08", "40", "53", "55", "57", "58"})
"""SQLSTATE classes that speak of the moment: connection, rollback, resources, locks, operator, system (appendix A)."""
READ_ONLY = "25006"
"""The server is a standby, or was made read-only: another one may be the primary by now."""
QUIET = {f"enable_{way}": "off" for way in ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")} | {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Our statements always go by their index, in its order. A plan that is cached while a table is small, or that doesn't know how
few rows are asked for, would read all of it later. And they are planned once: left to itself, the server planned small batches
anew each time, which took as long as running them."""
DIRECT = "what answers there is a pooler such as pgbouncer: [database] dsn must lead to PostgreSQL itself"
ARRAYS = {
    "_bool": (1000, 16),
    "_int2": (1005, 21),
    "_int4": (1007, 23),
    "_int8": (1016, 20),
    "_float8": (1022, 701),
    "_timestamptz": (1185, 1184),
    "_uuid": (2951, 2950),
}
"""Name -> its oid and its elements', which never change. asyncpg knows only text[] by itself, and asks the server for every other
array on every new connection, with a recursive query of 10 to 50 ms."""
NOT_A_CHARACTER = "22021"
"""character_not_in_repertoire: what the server would say to a lone surrogate, which can't be written down for it."""
KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 10_000))
"""A peer that vanished is noticed within 5 + 2 x 2 s when idle, 10 s with data on the way; the kernel's defaults are hours."""


@cache
def statement(name: str) -> str:
    """Return the text of `sql/NAME.sql`."""
    return resources.text(f"sql/{name}.sql")


@contextmanager
def translated(operation: str) -> Iterator[None]:
    """Turn whatever the driver raises inside into StoreUnavailable or StoreRefused, with the operation in its text.

    Texts are the server's own; they never contain the DSN. TimeoutError counts as unavailable. Cancellation passes through.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        state = error.sqlstate or ""
        if state == POOLER and "startup parameter" in str(error):
            raise StoreRefused(f"{operation}: {error}; {DIRECT}", state) from error
        if state[:2] in LATER or state == READ_ONLY:
            raise StoreUnavailable(f"{operation}: {error.args[0] if error.args else state}") from error
        raise StoreRefused(f"{operation}: {error}", state) from error
    except UnicodeEncodeError as error:
        raise StoreRefused(f"{operation}: {error}", NOT_A_CHARACTER) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError) as error:
        raise StoreUnavailable(f"{operation}: {type(error).__name__}: {error}") from error


async def connect(settings: Database, *, application_name: str) -> Connection:
    """Open one connection, with time-outs for connecting and for every statement.

    Raises StoreUnavailable when nobody answers in `connect_timeout_s`, StoreRefused for a wrong password, role or database.
    """
    with translated("connect"):
        connection: Connection = await asyncpg.connect(
            settings.dsn,
            password=settings.password.reveal() if settings.password else None,
            timeout=settings.connect_timeout_s,
            command_timeout=settings.command_timeout_s,
            server_settings={"application_name": application_name, **QUIET},
        )
    know_arrays(connection)
    keep_alive(connection)
    return connection


def know_arrays(connection: Connection) -> None:
    """Tell the driver what it would ask the server for."""
    unknown = ("basetype", "range_subtype", "attrtypoids", "attrnames", "basetype_name", "elemtype_name", "range_subtype_name")
    kinds = [
        {"oid": oid, "ns": "pg_catalog", "name": name, "kind": "b", "elemtype": element, "elemdelim": ",", "depth": 0}
        | dict.fromkeys(unknown)
        for name, (oid, element) in ARRAYS.items()
    ]
    connection._protocol.get_settings().register_data_types(kinds)  # type: ignore[attr-defined]  # noqa: SLF001  no public way


def keep_alive(connection: Connection) -> None:
    """Make the kernel notice a peer that is gone; a unix socket needs nothing."""
    transport: asyncio.BaseTransport = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001  no public way
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family == socket.AF_UNIX:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
