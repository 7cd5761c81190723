"""What we rely on in aiosmtplib and asyncio, so that a release which changes it fails here and not in the field."""

from __future__ import annotations

import asyncio
import socket
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import cast

import aiosmtplib
import pytest

from daemon.core.settings import Tls
from daemon.smtp.opening import tls_context
from tests.support.certificates import Authority
from tests.support.exchange import relay_settings
from tests.support.loops import on_both_loops
from tests.support.relay import ScriptedRelay


@asynccontextmanager
async def client_of(server: ScriptedRelay, **options: object) -> AsyncIterator[aiosmtplib.SMTP]:
    """Connect as `opening` does, and close in the end."""
    client = aiosmtplib.SMTP(hostname="localhost", port=server.port, local_hostname="x.example", start_tls=False, **options)  # type: ignore[arg-type]
    await client.connect(timeout=10.0)
    yield client
    transport = client.transport
    client.close()
    assert transport is not None
    cast("asyncio.Transport", transport).abort()


def test_release_is_one_that_was_looked_at() -> None:
    """5.1.3 drops unasked lines, 6 may do anything."""
    major, minor, patch = (int(part) for part in version("aiosmtplib").split(".")[:3])
    assert (5, 1, 3) <= (major, minor, patch) < (6, 0, 0)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "aiosmtplib>=5.1.3,<6" in project["dependencies"]


@on_both_loops
async def test_connect_greets_and_does_no_more() -> None:
    """With start_tls off and no user name, EHLO, TLS and AUTH are ours to order."""
    async with ScriptedRelay() as server, client_of(server):
        assert [event["stage"] for event in server.events.of("command")] == ["greeting"]


async def test_extensions_are_known_in_lower_case() -> None:
    """Keyword -> parameters, and the AUTH mechanisms by themselves."""
    async with ScriptedRelay({"ehlo": ["SIZE 1000", "Pipelining", "AUTH PLAIN Login"]}) as server, client_of(server) as client:
        await client.ehlo()
        assert client.esmtp_extensions == {"size": "1000", "pipelining": "", "auth": "PLAIN Login"}
        assert client.server_auth_methods == ["plain", "login"]


@on_both_loops
@pytest.mark.parametrize("tls", list(Tls))
async def test_transport_can_be_taken_over(tls: Tls, authority: Authority) -> None:
    """After the opening, `client.transport` is the outermost transport, and what arrives goes to the protocol that we set."""
    implicit = tls is Tls.IMPLICIT
    context = tls_context(relay_settings(25, tls=tls, ca_file=authority.ca_file))
    async with (
        ScriptedRelay({"ehlo": ["STARTTLS"]}, tls=authority.server(), implicit_tls=implicit) as server,
        client_of(server, use_tls=implicit, tls_context=context) as client,
    ):
        await client.ehlo()
        if tls is Tls.STARTTLS:
            await client.starttls()
            await client.ehlo()
        transport = cast("asyncio.Transport", client.transport)
        assert (transport.get_extra_info("sslcontext") is not None) is (tls is not Tls.NONE)
        reader = asyncio.StreamReader()
        transport.set_protocol(asyncio.StreamReaderProtocol(reader))
        transport.write(b"RSET\r\n")
        assert await reader.readline() == b"250 2.0.0 ok\r\n"


@on_both_loops
async def test_small_writes_leave_at_once() -> None:
    """The loop sets TCP_NODELAY: the dot doesn't wait for the body's acknowledgement."""
    async with ScriptedRelay() as server, client_of(server) as client:
        connection = client.get_transport_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_authentication_is_one_command() -> None:
    """`auth_plain` doesn't go on to other mechanisms when it is refused."""
    script = {"ehlo": ["AUTH PLAIN LOGIN"], "auth": "535 5.7.8 no"}
    async with ScriptedRelay(script) as server, client_of(server) as client:
        await client.ehlo()
        with pytest.raises(aiosmtplib.SMTPAuthenticationError) as refused:
            await client.auth_plain("maya", "secret")
        assert (refused.value.code, server.log_ins) == (535, 1)


async def test_malformed_reply_has_the_code_minus_one() -> None:
    """That is how nonsense is told from a reply."""
    async with ScriptedRelay({"ehlo": "what?"}) as server, client_of(server) as client:
        with pytest.raises(aiosmtplib.SMTPResponseException) as malformed:
            await client.ehlo()
        assert malformed.value.code == -1


@on_both_loops
async def test_greeting_that_fails_names_its_cause() -> None:
    """An error of aiosmtplib's own behind a connect error means that the network had already connected."""
    async with ScriptedRelay({"greeting": {"reply": None, "then": "close"}}) as server:
        with pytest.raises(aiosmtplib.SMTPConnectError) as closed:
            async with client_of(server):
                pass
        assert isinstance(closed.value.__cause__, aiosmtplib.SMTPServerDisconnected)


@on_both_loops
async def test_network_that_fails_names_its_cause() -> None:
    """The operating system's error stands behind a connect error."""
    async with ScriptedRelay() as server:
        pass
    with pytest.raises(aiosmtplib.SMTPConnectError) as refused:
        async with client_of(server):
            pass
    assert isinstance(refused.value.__cause__, OSError)
    assert not isinstance(refused.value.__cause__, aiosmtplib.SMTPException)
