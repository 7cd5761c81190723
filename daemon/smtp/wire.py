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

What `write` means, on asyncio's loop and on uvloop's:
- In clear, with limits of zero and nothing waiting before it, it reaches the kernel before it returns, or else the rest of it is
  in `unwritten` and the transport has paused us.
- Encrypted, it becomes TLS records, which an inner transport takes: to the kernel at once, with uvloop before 0.23 at the end of
  the loop's round. What that inner transport keeps, because the kernel is full, is seen from here only when it is more than
  64 KiB: `unwritten` may be 0 with up to two blocks of the body still in this process. Neither loop lets us ask. So a dot may
  stand behind the end of its body. What leaves, leaves in order, and `abort` drops the rest: so before the dot it leaves
  no message, and after the dot only the answer tells, as ever. The other promises don't rest on it.
- A transport whose socket is closed says so by `is_closing` before the number of that socket can become another's; one that has
  failed may say so later than the kernel, which is why the dot asks both.
"""

from __future__ import annotations

import asyncio
import select
from typing import Final

from daemon.core.reply import Garbled, ReplyReader
from daemon.core.smtp import CLOSING, Fault, Reply
from daemon.deadline import Deadline

BLOCK_BYTES: Final = 64 * 1024
LAST_LOOK_S: Final = 1.0
"""How long the loop may take to read what the kernel has already."""
_REFUSED: Final = 400
"""From here on a reply says that something was refused."""
_NOTHING: Final = memoryview(b"")


class Wire(asyncio.Protocol):
    """The protocol of one transport, from the end of the opening to the end of the connection. One coroutine waits at a time."""

    __slots__ = (
        "_deadline",
        "_garbled",
        "_kernel",
        "_loop",
        "_owed",
        "_paused",
        "_reader",
        "_transport",
        "_unwritten",
        "_waiter",
        "_wanted",
        "lost",
        "moved_at",
        "replies",
        "spent",
        "stray",
    )

    def __init__(self, transport: asyncio.Transport) -> None:
        self.spent = ""
        """Why nothing may be written any more; empty while all is well."""
        self.stray: Reply | None = None
        """The first reply that answers no command."""
        self.lost = False
        self.replies: list[Reply] = []
        """What was answered and hasn't been read, in the order of the commands."""
        self.moved_at = 0.0
        """The loop's second at which commands were last written, or a whole reply last came."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._reader = ReplyReader()
        self._owed = 0
        self._garbled = False
        self._unwritten = _NOTHING
        self._paused = False
        self._waiter: asyncio.Future[bool] | None = None
        self._wanted = 1
        self._deadline = Deadline(self._too_late)
        self._kernel = _ear(transport)
        # TLS transports take "at least high" for full and plain ones "more than high": both mean one byte here.
        encrypted = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if encrypted else 0, low=0)
        transport.set_protocol(self)
        if transport.is_closing():
            self.lost = True

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        """Read replies; whatever nobody asked for spends the connection."""
        enough = self._wanted
        answers = self._reader.feed(data)
        if answers:
            self.moved_at = self._loop.time()
        for answer in answers:
            if isinstance(answer, Garbled):
                self._garbled = True
                self.spend(Fault.GARBAGE)
            elif self._owed:
                self._owed -= 1
                self.replies.append(answer)
                if answer.code >= _REFUSED:
                    enough = 1
                    if answer.code == CLOSING:
                        self.spend("relay_closing")
            else:
                self.stray = self.stray or answer
                self.spend("unasked_reply")
        if not self._owed and self._reader.unfinished:
            self.spend("unasked_reply")
        if len(self.replies) >= enough or self.spent:
            self._wake()

    def eof_received(self) -> bool:
        """Let the transport close: a relay that won't answer any more is of no use."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended says nothing about what was accepted
        """Wake whoever waits; nothing more will come."""
        self.lost = True
        self._unwritten = _NOTHING
        self._deadline.close()
        self._wake()

    def pause_writing(self) -> None:
        """Stop handing over blocks: the kernel took less than all of the last one."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on with the body."""
        self._paused = False
        self._hand_over()
        self._wake()

    # What the connection calls.

    @property
    def alive(self) -> bool:
        """Whether something may be written."""
        return not self.spent and not self.lost and not self._transport.is_closing()

    @property
    def quiet(self) -> bool:
        """Whether the kernel, which knows before the event loop does, has neither bytes nor a close for us. Ask it while `alive`.

        After a stall of this process the loop may run a slot before it looks at the sockets; a dot must not go into a connection
        whose end has arrived already. The socket is registered once: its number can't belong to another one before the
        transport is closing. A look costs 0.4 microseconds; one by `recv` with MSG_PEEK took 1.8, since silence is an exception
        there, and needs a second descriptor that would keep an aborted connection open.
        """
        return self._kernel is not None and not self._kernel.poll(0)

    def send(self, commands: bytes, replies: int) -> None:
        """Write commands that will be answered by so many replies; nothing is written to a connection that isn't alive."""
        if self.alive:
            self._owed += replies
            self.moved_at = self._loop.time()
            self._transport.write(commands)

    def send_body(self, content: bytes) -> None:
        """Begin to write content that no reply answers yet; the rest follows by itself as the kernel takes it."""
        if len(content) <= BLOCK_BYTES and not self._paused and self.alive:
            self._transport.write(content)
        else:
            self._unwritten = memoryview(content)
            self._hand_over()

    @property
    def unwritten(self) -> int:
        """Bytes of the body that the kernel hasn't taken; encrypted: as far as can be seen from here, see above."""
        return 0 if self.lost else len(self._unwritten) + self._transport.get_write_buffer_size()

    async def news(self, deadline: float, replies: int = 1) -> bool:
        """Wait until something has happened; False if nothing did by this instant of the loop's clock. Cancelling is safe.

        Of replies, so many unread ones are news, or a refusal, or what spends the connection.
        """
        self._wanted = replies
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        self._deadline.set(deadline)
        try:
            return await waiter
        finally:
            self._waiter = None
            self._deadline.clear()

    async def answer(self, deadline: float) -> Reply | Fault:
        """Return the next reply, or what came instead of it by this instant of the loop's clock.

        Cancelling is safe: the reply stays where it is and the next call returns it. A time-out spends the connection.
        """
        while True:
            if self.replies:
                return self.replies.pop(0)
            if self._garbled:
                return Fault.GARBAGE
            if self.lost or not self._owed:
                return Fault.CLOSED
            if deadline > self._loop.time() and await self.news(deadline):
                continue
            if not self.replies and not await self._last_look():
                self.spend(Fault.TIMEOUT)
                return Fault.TIMEOUT

    async def _last_look(self) -> bool:
        """Let the loop read what the kernel has; False if it has nothing.

        A process that was stopped past its deadline runs the timers first and the sockets after, so the time is over while the
        answer has been here all along. Calling that a doubt would be a doubt too many.
        """
        return not self.lost and not self.quiet and await self.news(self._loop.time() + LAST_LOOK_S)

    def spend(self, reason: str) -> None:
        """Let nothing more be written; the first reason stands."""
        self.spent = self.spent or reason

    def close(self, limit_s: float) -> None:
        """Close after what was written has left, at the latest in so many seconds. Nobody may be waiting."""
        self.spend("closed_here")
        if not self._transport.is_closing():
            self._deadline.set(self._loop.time() + limit_s)
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection and whatever of it hasn't left; safe at any time and more than once."""
        self._transport.abort()

    def _hand_over(self) -> None:
        while self._unwritten and not self._paused and self.alive:
            block, self._unwritten = self._unwritten[:BLOCK_BYTES], self._unwritten[BLOCK_BYTES:]
            self._transport.write(block)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _too_late(self) -> None:
        if self._waiter is None:  # it is closing
            self.abort()
        elif not self._waiter.done():
            self._waiter.set_result(False)


def _ear(transport: asyncio.Transport) -> select.poll | None:
    """Return what asks the kernel about the transport's socket; None if it has none any more."""
    descriptor = transport.get_extra_info("socket")
    if descriptor is None or descriptor.fileno() < 0:
        return None
    kernel = select.poll()
    kernel.register(descriptor.fileno(), select.POLLIN)
    return kernel
