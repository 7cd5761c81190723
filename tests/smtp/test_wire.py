"""Replies and bytes at the very edge, without a network: what no server can be made to do at the right moment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.core.smtp import Fault, Reply, Stage
from daemon.smtp.connection import Connection
from daemon.smtp.wire import BLOCK_BYTES, Wire
from tests.support.exchange import SHORT_S, relay_settings
from tests.support.loops import on_both_loops

OK = Reply(250, None, "ok")


class _Line(asyncio.Transport):
    """A transport that keeps what is written; the kernel behind it takes as much as the test says."""

    def __init__(self, *, buffered: int = 0) -> None:
        super().__init__()
        self.written = b""
        self.buffered = buffered
        self.drains_by = 0
        self.full = False
        self.aborted = False
        self.ends = socket.socketpair()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        if self.full:
            self.protocol.pause_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        return self.ends[0] if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (0, 0)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        self.buffered = max(0, self.buffered - self.drains_by)
        return self.buffered

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def hang_up(self) -> None:
        for end in self.ends:
            end.close()


@pytest.fixture
def line() -> Iterator[_Line]:
    """Return a fake transport."""
    made = _Line()
    yield made
    made.hang_up()


def soon() -> float:
    """Return a deadline that isn't meant to be reached."""
    return asyncio.get_running_loop().time() + 10.0


@on_both_loops
async def test_reply_and_cancel_in_the_same_step_lose_nothing(line: _Line) -> None:
    """The reply arrives, the wait is cancelled before it can run: the next wait has the reply."""
    wire = Wire(line)
    wire.send(b".\r\n", replies=1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wire.answer(soon()))
        await asyncio.sleep(0)
        wire.data_received(b"250 ok\r\n")
        waiting.cancel()
    assert waiting.cancelled()
    assert await wire.answer(soon()) == OK


@on_both_loops
async def test_reply_that_is_there_beats_the_limit(line: _Line) -> None:
    """A deadline that has passed doesn't hide an answer that has come."""
    wire = Wire(line)
    wire.send(b"NOOP\r\n", replies=1)
    wire.data_received(b"250 ok\r\n")
    assert await wire.answer(0.0) == OK


@on_both_loops
async def test_reply_counts_though_the_connection_is_lost(line: _Line) -> None:
    """Answers in order, then the loss."""
    wire = Wire(line)
    wire.send(b"A\r\nB\r\n", replies=2)
    wire.data_received(b"250 ok\r\n")
    wire.connection_lost(ConnectionResetError())
    assert await wire.answer(soon()) == OK
    assert await wire.answer(soon()) is Fault.CLOSED


@on_both_loops
async def test_nonsense_after_a_good_reply_is_nobodys_answer(line: _Line) -> None:
    """The first command keeps its answer, the second gets none, and no later line is taken for one."""
    wire = Wire(line)
    wire.send(b"A\r\nB\r\n", replies=2)
    wire.data_received(b"250 ok\r\nwhat?\r\n250 ok\r\n")
    assert await wire.answer(soon()) == OK
    assert await wire.answer(soon()) is Fault.GARBAGE
    assert not wire.alive


@on_both_loops
async def test_nothing_is_written_to_a_spent_connection(line: _Line) -> None:
    """Not even a command that would be answered."""
    wire = Wire(line)
    wire.data_received(b"421 4.4.2 idle\r\n")
    assert (wire.alive, wire.spent) == (False, "unasked_reply")
    wire.send(b"MAIL\r\n", replies=1)
    assert line.written == b""
    assert await wire.answer(soon()) is Fault.CLOSED


@on_both_loops
async def test_time_counts_from_the_last_whole_reply(line: _Line) -> None:
    """Each reply has its limit for itself; a relay that lets bytes drip gains no time."""
    wire = Wire(line)
    wire.send(b"A\r\nB\r\n", replies=2)
    written_at = wire.moved_at
    assert written_at == pytest.approx(asyncio.get_running_loop().time(), abs=1.0)
    await asyncio.sleep(SHORT_S)
    wire.data_received(b"250-o")
    assert wire.moved_at == written_at
    wire.data_received(b"k\r\n250 ok\r\n")
    assert wire.moved_at > written_at


@on_both_loops
async def test_all_replies_of_an_envelope_are_one_piece_of_news(line: _Line) -> None:
    """Who waits for three sleeps through the first two."""
    wire = Wire(line)
    wire.send(b"A\r\nB\r\nC\r\n", replies=3)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wire.news(soon(), replies=3))
        for _ in range(2):
            await asyncio.sleep(0)
            wire.data_received(b"250 ok\r\n")
        await asyncio.sleep(0)
        assert not waiting.done()
        wire.data_received(b"250 ok\r\n")
    assert waiting.result()


@on_both_loops
@pytest.mark.parametrize("early", [b"550 5.7.1 no\r\n", b"421 4.3.2 bye\r\n", b"what?\r\n"])
async def test_relay_that_says_no_need_not_say_more(line: _Line, early: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies that don't matter any more are waited for briefly, not as long as those that do."""
    monkeypatch.setattr("daemon.smtp.connection._CATCH_UP_S", SHORT_S)
    connection = Connection(relay_settings(25), Wire(line), {"pipelining": ""})
    async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
        envelope = tasks.create_task(connection.envelope("a@x.org", ["b@x.org"], size=1, smtputf8=False))
        await asyncio.sleep(0)
        assert isinstance(line.protocol, Wire)
        line.protocol.data_received(early)
    failure = envelope.result().failure
    assert failure is not None
    assert failure.stage is Stage.MAIL
    assert not connection.alive


@on_both_loops
async def test_reply_too_many_does_not_pass_for_a_good_envelope(line: _Line) -> None:
    """All commands are answered well, and then comes more: no body is written into that."""
    connection = Connection(relay_settings(25), Wire(line), {"pipelining": ""})
    async with asyncio.TaskGroup() as tasks:
        envelope = tasks.create_task(connection.envelope("a@x.org", ["b@x.org"], size=1, smtputf8=False))
        await asyncio.sleep(0)
        assert isinstance(line.protocol, Wire)
        line.written = b""
        line.protocol.data_received(b"250 ok\r\n250 ok\r\n354 go\r\n250 ok\r\n")
    assert envelope.result().ready
    connection.send_body(b"hello")
    assert await connection.drained() == OK
    assert not connection.write_dot()
    assert line.written == b""


@on_both_loops
async def test_first_reason_stands(line: _Line) -> None:
    """What spent the connection isn't overwritten by what followed from it."""
    wire = Wire(line)
    wire.spend("first")
    wire.close(SHORT_S)
    assert wire.spent == "first"


@on_both_loops
async def test_body_leaves_in_blocks_as_the_kernel_takes_them(line: _Line) -> None:
    """While the transport is full nothing more is put into it."""
    wire = Wire(line)
    line.full = True
    content = b"x" * (2 * BLOCK_BYTES + 1)
    wire.send_body(content)
    for blocks in (1, 2):
        assert len(line.written) == blocks * BLOCK_BYTES
        assert wire.unwritten == len(content) - len(line.written)
        wire.resume_writing()
    assert line.written == content
    assert wire.unwritten == 0


@on_both_loops
async def test_abort_forgets_the_rest_of_the_body(line: _Line) -> None:
    """After an abort a transport that becomes free gets nothing more."""
    wire = Wire(line)
    wire.pause_writing()
    wire.send_body(b"x")
    wire.abort()
    wire.resume_writing()
    assert line.written == b""


async def in_body(line: _Line, **values: Any) -> Connection:  # noqa: ANN401 - settings
    """Return a connection whose body has been handed to the transport."""
    connection = Connection(relay_settings(25, **values), Wire(line), {"pipelining": ""})
    async with asyncio.TaskGroup() as tasks:
        envelope = tasks.create_task(connection.envelope("a@x.org", ["b@x.org"], size=1, smtputf8=False))
        await asyncio.sleep(0)
        assert isinstance(line.protocol, Wire)
        line.protocol.data_received(b"250 ok\r\n250 ok\r\n354 go\r\n")
    assert envelope.result().ready
    line.written = b""
    connection.send_body(b"hello")
    return connection


@on_both_loops
async def test_body_that_moves_is_not_timed_out(line: _Line) -> None:
    """Each pause has the limit for itself: a slow relay gets its message."""
    connection = await in_body(line, body_timeout_s=0.001)
    line.buffered, line.drains_by = 10, 1
    assert await connection.drained() is None
    assert connection.write_dot()
    assert line.written == b"hello\r\n.\r\n"


@on_both_loops
async def test_body_that_stands_still_is_timed_out(line: _Line) -> None:
    """A relay that takes nothing for the whole limit has gone; no dot follows."""
    connection = await in_body(line, body_timeout_s=SHORT_S)
    line.buffered = 10
    assert await connection.drained() is Fault.TIMEOUT
    line.buffered = 0
    assert not connection.write_dot()
    assert line.written == b"hello\r\n"


@on_both_loops
@pytest.mark.parametrize("early", [b"552 5.3.4 too big\r\n", b"5", b"250 ok\r\n"])
async def test_any_byte_before_the_dot_withholds_it(line: _Line, early: bytes) -> None:
    """What came before the dot can't be the answer to it, so there is none; half a reply is enough."""
    connection = await in_body(line)
    assert isinstance(line.protocol, Wire)
    line.protocol.data_received(early)
    assert not connection.write_dot()
    assert b".\r\n" not in line.written


@on_both_loops
@pytest.mark.parametrize("news", [b"552 5.3.4 too big\r\n", b""])
async def test_dot_is_withheld_for_what_only_the_kernel_knows(line: _Line, news: bytes) -> None:
    """A reply or a close that the event loop hasn't read yet stops the dot: a stalled process wakes up to such."""
    connection = await in_body(line)
    if news:
        line.ends[1].send(news)
    else:
        line.ends[1].close()
    assert connection.alive
    assert not connection.write_dot()
    assert line.written == b"hello\r\n"
    assert connection.stage is Stage.BODY


@on_both_loops
async def test_limit_of_the_dot_counts_from_the_dot(line: _Line) -> None:
    """Asking again doesn't give the relay more time, and what it says then is too late."""
    connection = await in_body(line)
    assert isinstance(line.protocol, Wire)
    assert connection.write_dot()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT_S):
            await connection.dot_reply()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(connection.dot_reply(timeout_s=SHORT_S / 2))  # uvloop's clock is in milliseconds
        await asyncio.sleep(0)
        line.protocol.data_received(b"250 ok\r\n")
    assert waiting.result() is Fault.TIMEOUT
    assert await connection.dot_reply() is Fault.TIMEOUT
    assert not connection.reusable
