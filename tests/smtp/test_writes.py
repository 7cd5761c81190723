"""How a mail leaves: in how many writes, with how many waits, and what of it may still be here when the dot is written."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any

import pytest

from daemon.core.settings import Tls
from daemon.core.smtp import Fault, Reply, stuff
from daemon.smtp import opening
from daemon.smtp.connection import Connection
from daemon.smtp.opening import tls_context
from daemon.smtp.wire import BLOCK_BYTES, Wire
from tests.support.certificates import Authority
from tests.support.exchange import (
    ANN,
    BOB,
    CONTENT,
    ONE_BY_ONE,
    PIPELINING,
    SENDER,
    SHORT_S,
    opened,
    relay_settings,
    sent,
    up_to_the_dot,
)
from tests.support.loops import on_both_loops
from tests.support.relay import ScriptedRelay

SMALL_BUFFER = 8192
GOOD = b"250 ok\r\n250 ok\r\n354 go\r\n"


class Counted:
    """A transport that remembers what is written to it."""

    def __init__(self, transport: Any) -> None:  # noqa: ANN401 - uvloop's have no class in common with asyncio's
        self._transport = transport
        self.writes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write and remember."""
        self.writes.append(bytes(data))
        self._transport.write(data)


class Suspended:
    """Counts how often a coroutine has to wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self.times = 0

    def __await__(self) -> Generator[Any, Any, None]:
        """Run it to its end."""
        for waited in self._coroutine.__await__():
            self.times += 1
            yield waited


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """Return the transports of the connections that are opened from now on."""
    made: list[Counted] = []

    def wire_on(transport: asyncio.Transport) -> Wire:
        made.append(Counted(transport))
        return Wire(made[-1])  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "Wire", wire_on)
    return made


@on_both_loops
@pytest.mark.parametrize("tls", list(Tls))
async def test_pipelined_mail_is_three_writes(tls: Tls, authority: Authority, transports: list[Counted]) -> None:
    """Envelope, body, and the dot by itself; a connection that is used again needs nothing in between."""
    extensions = [*PIPELINING, *(["STARTTLS"] if tls is Tls.STARTTLS else [])]
    async with ScriptedRelay({"ehlo": extensions}, tls=authority.server(), implicit_tls=tls is Tls.IMPLICIT) as server:
        connection = await opened(server, tls=tls, ca_file=authority.ca_file)
        for _ in range(3):
            assert isinstance(await sent(connection, ANN, BOB), Reply)
        envelope = f"MAIL FROM:<{SENDER}> SIZE={len(CONTENT)}\r\nRCPT TO:<{ANN}>\r\nRCPT TO:<{BOB}>\r\nDATA\r\n"
        assert transports[0].writes == 3 * [envelope.encode(), stuff(CONTENT), b".\r\n"]
        connection.abort()


@on_both_loops
async def test_mail_is_a_write_for_each_command_where_they_go_one_by_one(transports: list[Counted]) -> None:
    """MAIL, RCPT, DATA, body, dot."""
    async with ScriptedRelay({"ehlo": ONE_BY_ONE}) as server:
        connection = await opened(server)
        await sent(connection)
        assert len(transports[0].writes) == 5
        connection.abort()


@on_both_loops
async def test_mail_waits_twice() -> None:
    """Once for all replies to the envelope, though each of them comes by itself, and once for the answer to the dot."""
    async with ScriptedRelay({"ehlo": PIPELINING}) as server:
        connection = await opened(server)
        for _ in range(3):
            suspended = Suspended(sent(connection, ANN, BOB))
            await suspended
            assert suspended.times == 2
        assert len(server.messages) == 3
        connection.abort()


@contextlib.asynccontextmanager
async def in_body(content: bytes = CONTENT, **values: Any) -> AsyncIterator[tuple[Connection, socket.socket]]:  # noqa: ANN401 - settings
    """Give a connection whose body has left, and the socket of a relay that does nothing by itself."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport, _ = await loop.create_connection(asyncio.Protocol, *listening.getsockname())
        peer, _ = listening.accept()
    with peer:
        connection = Connection(relay_settings(25, **values), Wire(transport), {"pipelining": ""})
        async with asyncio.TaskGroup() as tasks:
            envelope = tasks.create_task(connection.envelope(SENDER, [ANN], size=1, smtputf8=False))
            await asyncio.sleep(0)
            peer.sendall(GOOD)
        assert envelope.result().ready
        connection.send_body(content)
        assert await connection.drained() is None
        yield connection, peer
        connection.abort()
        await asyncio.sleep(0)


@on_both_loops
@pytest.mark.parametrize("news", [b"552 5.3.4 too big\r\n", b"5", b""], ids=["reply", "half a reply", "close"])
async def test_dot_is_withheld_for_what_the_loop_has_not_read(news: bytes) -> None:
    """On a real connection too: between the relay's words and the dot the loop didn't get to look."""
    async with in_body() as (connection, peer):
        if news:
            peer.sendall(news)
        else:
            peer.shutdown(socket.SHUT_WR)
        assert connection.alive
        assert not connection.write_dot()
        assert not connection.reusable


@on_both_loops
async def test_dot_is_on_its_way_when_write_dot_returns() -> None:
    """Nothing has to run before the kernel has it: whoever is stopped right then has sent."""
    async with in_body() as (connection, peer):
        peer.setblocking(False)  # noqa: FBT003 - the method has no other way
        while not peer.recv(BLOCK_BYTES).endswith(stuff(CONTENT)):
            pass
        assert connection.write_dot()
        assert peer.recv(BLOCK_BYTES) == b".\r\n"


@on_both_loops
@pytest.mark.parametrize("waits", [True, False], ids=["inside the wait", "before the wait"])
async def test_answer_that_came_while_the_process_stood_still_counts(waits: bool) -> None:  # noqa: FBT001 - a table
    """The limit is over and the answer is here: it was given in time, and only read late."""
    async with in_body(dot_timeout_s=SHORT_S) as (connection, peer):
        assert connection.write_dot()
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(connection.dot_reply())
            if waits:
                await asyncio.sleep(0)
            peer.sendall(b"250 2.0.0 queued\r\n")
            time.sleep(2 * SHORT_S)  # noqa: ASYNC251 - this is a process that stands still
        assert answer.result() == Reply(250, "2.0.0", "queued")
        assert connection.reusable


@on_both_loops
async def test_limit_of_a_wait_that_is_over_ends_nothing() -> None:
    """The connection stays good however long ago its last answer should have come."""
    async with in_body(dot_timeout_s=SHORT_S) as (connection, peer):
        assert connection.write_dot()
        peer.sendall(b"250 2.0.0 queued\r\n")
        assert isinstance(await connection.dot_reply(), Reply)
        await asyncio.sleep(2 * SHORT_S)
        assert connection.reusable


@on_both_loops
async def test_lost_connection_leaves_no_timer() -> None:
    """The answer to a dot may take ten minutes; a connection that is gone isn't kept in memory for them."""
    loop = asyncio.get_running_loop()
    async with in_body() as (connection, peer):
        assert connection.write_dot()
        peer.close()
        assert await connection.dot_reply() is Fault.CLOSED
    timers = getattr(loop, "_scheduled", None)  # asyncio's own list; uvloop shows none
    assert not [timer for timer in timers or () if not timer.cancelled()]


class Encrypted(threading.Thread):
    """A relay behind TLS that accepts an envelope and then reads nothing before it is told to."""

    def __init__(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(daemon=True)
        self._listening = listening
        self._context = context
        self.reads = threading.Event()
        self.content = b""

    def run(self) -> None:
        """Serve one connection to its end."""
        plain, _ = self._listening.accept()
        with self._context.wrap_socket(plain, server_side=True) as peer:
            peer.recv(BLOCK_BYTES)
            peer.sendall(GOOD)
            self.reads.wait()
            with contextlib.suppress(OSError):
                while not self.content.endswith(b"\r\n.\r\n") and (data := peer.recv(BLOCK_BYTES)):
                    self.content += data


@contextlib.asynccontextmanager
async def in_encrypted_body(content: bytes, authority: Authority) -> AsyncIterator[tuple[Connection, Encrypted]]:
    """Give a connection that is handing over its body to a relay which doesn't read; the kernel takes a few kilobytes."""
    context = tls_context(relay_settings(25, tls=Tls.IMPLICIT, ca_file=authority.ca_file))
    with socket.socket() as listening, socket.socket() as plain:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        plain.connect(listening.getsockname())
        plain.setblocking(False)  # noqa: FBT003 - the method has no other way
        relay = Encrypted(listening, authority.server())
        relay.start()
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, sock=plain.dup(), ssl=context, server_hostname="localhost"
        )
    connection = Connection(relay_settings(25), Wire(transport), {"pipelining": ""})
    try:
        assert (await connection.envelope(SENDER, [ANN], size=1, smtputf8=False)).ready
        connection.send_body(content)
        yield connection, relay
    finally:
        connection.abort()
        relay.reads.set()
        await asyncio.to_thread(relay.join)


@on_both_loops
async def test_encrypted_body_stays_here_but_for_two_blocks(authority: Authority) -> None:
    """A relay that reads nothing gets no dot behind a large body, and fills no memory."""
    content = b"x" * (4 * BLOCK_BYTES)
    async with in_encrypted_body(content, authority) as (connection, relay):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await connection.drained()
        assert not connection.write_dot()
        connection.abort()
        relay.reads.set()
        await asyncio.to_thread(relay.join)
        assert not relay.content.endswith(b"\r\n")


@on_both_loops
async def test_encrypted_dot_may_wait_behind_the_end_of_its_body(authority: Authority) -> None:
    """What the layer below holds leaves in order when the relay reads: the message arrives whole, its dot last."""
    content = b"x" * BLOCK_BYTES + b"\r\n"
    async with in_encrypted_body(content, authority) as (connection, relay):
        assert await connection.drained() is None
        assert connection.write_dot()
        relay.reads.set()
        answer = await connection.dot_reply(timeout_s=10.0)
        assert answer is Fault.CLOSED  # this relay answers nothing
        assert relay.content == content + b".\r\n"


@on_both_loops
@pytest.mark.parametrize("length", [100, BLOCK_BYTES])
async def test_encrypted_connection_that_is_aborted_has_sent_no_dot(length: int, authority: Authority) -> None:
    """Whatever of the body was on its way, its end has no dot."""
    content = b"x" * length + b"\r\n"
    async with in_encrypted_body(content, authority) as (connection, relay):
        assert await connection.drained() is None
        connection.abort()
        assert not connection.write_dot()
        relay.reads.set()
        await asyncio.to_thread(relay.join)
        assert content.startswith(relay.content)


@on_both_loops
@pytest.mark.parametrize("tls", list(Tls))
async def test_abort_before_the_dot_is_no_message(tls: Tls, authority: Authority) -> None:
    """The relay sees the end of the connection and nothing that it could take for the end of the message."""
    extensions = [*PIPELINING, *(["STARTTLS"] if tls is Tls.STARTTLS else [])]
    async with ScriptedRelay({"ehlo": extensions}, tls=authority.server(), implicit_tls=tls is Tls.IMPLICIT) as server:
        connection = await opened(server, tls=tls, ca_file=authority.ca_file)
        await up_to_the_dot(connection)
        connection.abort()
        await server.events.wait(1, "closed")
        assert server.messages == []
        assert server.events.of("command", stage="dot") == []
