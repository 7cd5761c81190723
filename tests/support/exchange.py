"""Short ways to talk to a scripted relay with our own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from daemon.core import settings
from daemon.core.smtp import Fault, Reply, Report
from daemon.smtp.connection import Connection, EnvelopeReport
from daemon.smtp.opening import open_connection, tls_context
from tests.support.relay import ScriptedRelay
from tests.support.relay_session import Script

CONTENT = b"Message-ID: <one@example.org>\r\nSubject: hello\r\n\r\nHello\r\n.\r\n..\r\n.end\r\n"
SENDER = "team@example.org"
ANN, BOB, CLEO = "ann@example.org", "bob@example.org", "cleo@example.org"
PIPELINING = ["SIZE 10485760", "PIPELINING"]
ONE_BY_ONE = ["SIZE 10485760"]
SHORT_S = 0.05
"""A time limit that is meant to be run into."""


def relay_settings(port: int, **values: Any) -> settings.Relay:  # noqa: ANN401 - settings
    """Return settings for a relay on this host, in clear unless said otherwise."""
    defaults: dict[str, Any] = {"name": "relay", "host": "localhost", "tls": settings.Tls.NONE, "connect_timeout_s": 10.0}
    return settings.Relay(port=port, **{**defaults, **values})


async def opening(server: ScriptedRelay, **values: Any) -> Connection | Report:  # noqa: ANN401 - settings
    """Try to open a connection."""
    relay = relay_settings(server.port, **values)
    return await open_connection(relay, tls=tls_context(relay), ehlo_name=relay.ehlo_name or "client.example.org")


async def opened(server: ScriptedRelay, **values: Any) -> Connection:  # noqa: ANN401 - settings
    """Open a connection that must be there."""
    connection = await opening(server, **values)
    assert isinstance(connection, Connection), connection
    return connection


async def failed(server: ScriptedRelay, **values: Any) -> Report:  # noqa: ANN401 - settings
    """Try to open a connection that can't be had."""
    report = await opening(server, **values)
    assert isinstance(report, Report)
    return report


async def up_to_the_dot(connection: Connection, *recipients: str, content: bytes = CONTENT) -> None:
    """Go through envelope and body, which must both succeed."""
    envelope = await connection.envelope(SENDER, recipients or (ANN,), size=len(content), smtputf8=False)
    assert envelope.ready, envelope
    connection.send_body(content)
    assert await connection.drained() is None


async def sent(connection: Connection, *recipients: str, content: bytes = CONTENT) -> Reply | Fault:
    """Send a message up to its dot's answer."""
    await up_to_the_dot(connection, *recipients, content=content)
    assert connection.write_dot()
    return await connection.dot_reply()


@asynccontextmanager
async def connected(script: Script, **values: Any) -> AsyncIterator[tuple[ScriptedRelay, Connection]]:  # noqa: ANN401 - settings
    """Open a connection to a relay with this script; nobody may have broken the protocol in the end."""
    async with ScriptedRelay(script) as server:
        connection = await opened(server, **values)
        yield server, connection
        connection.abort()
        assert server.violations == []


async def envelope(connection: Connection, *recipients: str) -> EnvelopeReport:
    """Send an envelope of usual size."""
    return await connection.envelope(SENDER, recipients or (ANN,), size=len(CONTENT), smtputf8=False)
