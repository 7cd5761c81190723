"""Our end of an open connection: bytes out, replies in, in order.

Answers: what did the relay say to the commands that were written, and is the connection still good? It owns the transport from
the moment `opening` hands it over.

Promises:
- A reply belongs to the command it answers. Replies that nobody asked for, replies that can't be read, and a 421 spend the
  connection: nothing is written to it any more, and it is never mistaken for the answer to a later command.
- A reply that arrived is kept until it is read: cancelling a wait, or running out of time, loses none.
- What arrived before a close counts: a 250 followed by a reset is a 250.
- A body leaves in blocks, each when the one before is gone, so that a relay which reads slowly fills no memory here.

Never retries, never decides, never sends what it wasn't told to.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import Final

from daemon.core.reply import Garbled, ReplyReader
from daemon.core.smtp import CLOSING, Fault, Reply

BLOCK_BYTES: Final = 64 * 1024
LAST_LOOK_S: Final = 1.0
"""How long the loop may take to read what the kernel has already."""
_NOTHING: Final = memoryview(b"")


class Wire(asyncio.Protocol):
    """The protocol of one transport, from the end of the opening to the end of the connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.spent = ""
        """Why nothing may be written any more; empty while all is well."""
        self.stray: Reply | None = None
        """The first reply that answers no command."""
        self.lost = False
        self._transport = transport
        self._reader = ReplyReader()
        self._replies: deque[Reply] = deque()
        self._owed = 0
        self._garbled = False
        self._unwritten = _NOTHING
        self._paused = False
        self._news = asyncio.Event()
        # TLS transports take "at least high" for full and plain ones "more than high": both mean one byte here.
        encrypted = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if encrypted else 0, low=0)
        transport.set_protocol(self)
        if transport.is_closing():
            self.lost = True

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        """Read replies; whatever nobody asked for spends the connection."""
        for answer in self._reader.feed(data):
            if isinstance(answer, Garbled):
                self._garbled = True
                self.spend(Fault.GARBAGE)
            elif self._owed:
                self._owed -= 1
                self._replies.append(answer)
                if answer.code == CLOSING:
                    self.spend("relay_closing")
            else:
                self.stray = self.stray or answer
                self.spend("unasked_reply")
        if not self._owed and self._reader.unfinished:
            self.spend("unasked_reply")
        self._news.set()

    def eof_received(self) -> bool:
        """Let the transport close: a relay that won't answer any more is of no use."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended says nothing about what was accepted
        """Wake whoever waits; nothing more will come."""
        self.lost = True
        self._unwritten = _NOTHING
        self._news.set()

    def pause_writing(self) -> None:
        """Stop handing over blocks: the kernel took less than all of the last one."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on with the body."""
        self._paused = False
        self._hand_over()
        self._news.set()

    # What the connection calls.

    @property
    def alive(self) -> bool:
        """Whether something may be written."""
        return not self.spent and not self.lost and not self._transport.is_closing()

    @property
    def quiet(self) -> bool:
        """Whether the kernel, which knows before the event loop does, has neither bytes nor a close for us.

        After a stall of this process the loop may run a slot before it looks at the sockets; a dot must not go into a connection
        whose end has arrived already.
        """
        descriptor = self._transport.get_extra_info("socket")
        if descriptor is None or descriptor.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(descriptor.fileno(), select.POLLIN)
        return not poll.poll(0)

    def send(self, commands: bytes, replies: int) -> None:
        """Write commands that will be answered by so many replies; nothing is written to a connection that isn't alive."""
        if self.alive:
            self._owed += replies
            self._transport.write(commands)

    def send_body(self, content: bytes) -> None:
        """Begin to write content that no reply answers yet; the rest follows by itself as the kernel takes it."""
        self._unwritten = memoryview(content)
        self._hand_over()

    @property
    def unwritten(self) -> int:
        """Bytes of the body that the kernel hasn't taken (TLS: bar the last block, which the layer below may hold)."""
        return 0 if self.lost else len(self._unwritten) + self._transport.get_write_buffer_size()

    async def news(self, timeout_s: float) -> bool:
        """Wait until something has happened; False if nothing did in that time. Cancelling is safe."""
        self._news.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def answer(self, deadline: float) -> Reply | Fault:
        """Return the next reply, or what came instead of it by this instant of the loop's clock.

        Cancelling is safe: the reply stays where it is and the next call returns it. A time-out spends the connection.
        """
        while True:
            if self._replies:
                return self._replies.popleft()
            if self._garbled:
                return Fault.GARBAGE
            if self.lost or not self._owed:
                return Fault.CLOSED
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s > 0 and await self.news(left_s):
                continue
            if not self._replies and not await self._last_look():
                self.spend(Fault.TIMEOUT)
                return Fault.TIMEOUT

    async def _last_look(self) -> bool:
        """Let the loop read what the kernel has; False if it has nothing.

        A process that was stopped past its deadline runs the timers first and the sockets after, so the time is over while the
        answer has been here all along. Calling that a doubt would be a doubt too many.
        """
        return not self.lost and not self.quiet and await self.news(LAST_LOOK_S)

    def spend(self, reason: str) -> None:
        """Let nothing more be written; the first reason stands."""
        self.spent = self.spent or reason

    def close(self) -> None:
        """Close after what was written has left."""
        self.spend("closed_here")
        if not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection and whatever of it hasn't left; safe at any time and more than once."""
        self._transport.abort()

    def _hand_over(self) -> None:
        while self._unwritten and not self._paused and self.alive:
            block, self._unwritten = self._unwritten[:BLOCK_BYTES], self._unwritten[BLOCK_BYTES:]
            self._transport.write(block)
