"""One open connection to a relay, and the transactions on it: envelope, body, dot, answer.

Answers: how far has this message come, and what did the relay say? The stage is a field, set before the bytes of that stage
leave, so that whoever is interrupted anywhere knows it. The order that callers keep:

    envelope -> send_body -> drained -> write_dot -> dot_reply        (abort at any point before write_dot: nothing was sent)

Promises:
- The dot is a write of its own, made by `write_dot` and by nothing else, synchronously, and only into a connection which is
  alive, whose body has left completely (encrypted: as far as `wire` can see), for at least one accepted recipient. So there is
  never an empty message, and an aborted connection was never a sent one.
- `dot_reply` can be cancelled and called again: the reply is kept.
- A connection that got out of step (cancelled wait, time-out, unreadable reply, unasked reply, 421) is never reusable.

Never decides what a reply means, never retries, never raises for what a relay does.

Where the relay offers PIPELINING a mail is three writes and two waits: envelope, body, dot; the replies to the envelope, the
answer to the dot. Measured on uvloop with 50 connections to Postfix's smtp-sink, from check-out to check-in of a reused
connection: 38 microseconds of CPU for a mail of 1 kB, 10 of them the kernel's; it was 110 (on asyncio's loop 80, after 155).
The same three writes by hand, without any of these promises, take 13. What counted most: one timer for all waits of a
connection (`deadline`) and a bare future for each, one wait for all replies of an envelope, replies that are remembered
(`core.reply`), and idle connections that are looked at one by one (`pool`). What is left is spread thin; the largest pieces are
the search for dots and bare line ends in the body (3), the choice of the connection (3), and the building of the commands (1).
Rejected: body and dot in one write, which would save 2, for what the dot promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from daemon.core import settings
from daemon.core.smtp import CLOSING, GO_AHEAD, Fault, Reply, Report, Stage, stuff
from daemon.smtp.commands import PARAMETER_REFUSED, Notify, Offer
from daemon.smtp.wire import Wire

_RSET_TIMEOUT_S: Final = 5.0
_CATCH_UP_S: Final = 5.0
"""How long replies that no longer matter are waited for, to keep a connection in step, before it is dropped instead."""


class EnvelopeReport(msgspec.Struct, frozen=True):
    """What the relay said to MAIL, RCPT and DATA."""

    replies: Mapping[str, Reply]
    """Address -> answer to its RCPT, as far as it came to that; `Reply.positive` means accepted."""
    failure: Report | None = None
    """Why no body may follow; it concerns those accepted and those without an answer. None: ready for the body."""
    all_refused: bool = False
    """Whether everybody was answered and nobody accepted: then the answers say it all, and `failure` repeats the last."""

    @property
    def ready(self) -> bool:
        """Whether the relay waits for the body, on behalf of at least one accepted recipient."""
        return self.failure is None

    @property
    def accepted(self) -> tuple[str, ...]:
        """The recipients that the relay took, in the order they were named."""
        return tuple(address for address, reply in self.replies.items() if reply.positive)


class Connection:
    """A connection past its opening; used by one transaction at a time, which the pool sees to."""

    __slots__ = (
        "_dot_answer",
        "_dot_written_at",
        "_limits",
        "_look_s",
        "_loop",
        "_needs_reset",
        "_offer",
        "_plain",
        "_wire",
        "extensions",
        "opened_mono",
        "relay",
        "reused",
        "stage",
        "transactions",
    )

    def __init__(self, relay: settings.Relay, wire: Wire, extensions: Mapping[str, str]) -> None:
        self.relay: Final = relay.name
        self.stage: Stage | None = None
        """Where the present transaction is; None between transactions."""
        self.reused = False
        """Whether it has waited in the pool after a transaction: then its age may explain a failure."""
        self.transactions = 0
        """How many were begun on it."""
        self.opened_mono = 0.0
        """When the pool got it, by the pool's clock."""
        self.extensions: Final = extensions
        """What EHLO offered: keyword in lower case -> parameters."""
        self._offer = Offer(extensions)
        self._limits = relay
        self._look_s = min(relay.command_timeout_s, relay.data_timeout_s)
        """When to look at each reply by itself, where all of an envelope's are waited for together."""
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._plain = False
        """Whether parameters that are only useful are left out, since the relay refused one."""
        self._needs_reset = False
        self._dot_written_at = 0.0
        self._dot_answer: Reply | Fault | None = None

    @property
    def alive(self) -> bool:
        """Whether something may be written to it."""
        return self._wire.alive

    @property
    def reusable(self) -> bool:
        """Whether another transaction may begin: alive, none under way. What is out of step is one of the two."""
        return self.alive and self.stage is None

    def spent(self, reason: str) -> None:
        """Let this be its last transaction."""
        self._wire.spend(reason)

    def abort(self) -> None:
        """Drop the connection and all that hasn't left. Before the dot this means: not sent. Safe at any time."""
        self._wire.abort()

    def quit(self) -> None:
        """Say goodbye without waiting for the answer; the transport is gone `quit_timeout_s` later at the latest."""
        if not self.reusable:
            self.abort()
            return
        self._wire.send(b"QUIT\r\n", replies=1)
        self._wire.close(self._limits.quit_timeout_s)

    async def envelope(
        self, sender: str, recipients: Sequence[str], *, size: int, smtputf8: bool, notify: Notify | None = None
    ) -> EnvelopeReport:
        """Open a transaction: MAIL, RCPT for each recipient, DATA; in one write where the relay offers PIPELINING.

        A relay that refuses a parameter which it could do without (504, 555) is asked once more, without any such.
        Cancelling leaves a connection that isn't reusable; nothing was sent.

        Args:
            sender: The reverse path, bare; empty for a notice about mail.
            recipients: Bare addresses, at least one, each once.
            size: Octets of the message.
            smtputf8: Whether an address or a header isn't ASCII.
            notify: What the relay is to report, if it offers that; None leaves it to the relay.

        Raises:
            ValueError: An address can't stand in a command; the message that carries it should never have been built.
        """
        refused = self._offer.refusal(size, smtputf8=smtputf8)
        if refused is not None:
            return EnvelopeReport({}, self._report(Stage.MAIL, refused))
        offer = self._offer
        words = offer.envelope(sender, recipients, size=size, smtputf8=smtputf8, notify=notify, plain=self._plain)
        report = await self._envelope(recipients, words)
        if report.failure is None or not _refuses_parameters(report) or not self.reusable:
            return report
        bare = offer.envelope(sender, recipients, size=size, smtputf8=smtputf8, notify=notify, plain=True)
        if bare == words:
            return report
        self._plain = True
        return await self._envelope(recipients, bare)

    async def _envelope(self, recipients: Sequence[str], words: Sequence[bytes]) -> EnvelopeReport:
        self.stage = Stage.MAIL
        self.transactions += 1
        if self._needs_reset and (fault := await self._reset()) is not None:
            return EnvelopeReport({}, self._report(Stage.MAIL, fault))
        if self._offer.pipelining and (report := await self._in_one_go(recipients, words)) is not None:
            return report
        mail, *rcpt = words
        answer = await self._answer_to(mail, self._limits.command_timeout_s)
        if not _positive(answer):
            return await self._failed(Stage.MAIL, answer, {}, unread=len(rcpt) + 1)
        return await self._recipients(recipients, rcpt)

    async def _in_one_go(self, recipients: Sequence[str], words: Sequence[bytes]) -> EnvelopeReport | None:
        """Write all commands at once and wait once for all replies; None unless every one is good: then they are still unread."""
        wire = self._wire
        wire.send(b"".join((*words, b"DATA\r\n")), replies=len(words) + 1)
        if wire.alive:
            await wire.news(wire.moved_at + self._look_s, replies=len(words) + 1)
        *accepted, last = wire.replies or (None,)
        if last is None or len(accepted) < len(words) or last.code != GO_AHEAD:
            return None
        for reply in accepted:
            if not reply.positive:
                return None
        wire.replies.clear()
        self.stage = Stage.BODY
        return EnvelopeReport(dict(zip(recipients, accepted[1:], strict=True)))

    def send_body(self, content: bytes) -> None:
        """Begin to send the message, everything but the dot. Returns at once; `drained` tells when it has left."""
        self._wire.send_body(stuff(content))

    async def drained(self) -> Fault | Reply | None:
        """Wait until the body has left; None if it has and the relay still listens.

        Otherwise what came first: a reply that the relay didn't wait with, CLOSED, GARBAGE, or TIMEOUT when it took nothing for
        `body_timeout_s` (RFC 5321 4.5.3.2.5 gives each block its own time). Cancelling is safe.
        """
        wire = self._wire
        while wire.alive:
            if not (before := wire.unwritten):
                return None
            if not await wire.news(self._loop.time() + self._limits.body_timeout_s) and wire.unwritten >= before:
                wire.spend(Fault.TIMEOUT)
                return Fault.TIMEOUT
        if wire.stray is not None:
            return wire.stray
        return Fault.GARBAGE if wire.spent == Fault.GARBAGE else Fault.CLOSED

    def write_dot(self) -> bool:
        """Write the final dot, if everything before it is as it must be; False means that nothing was written.

        Synchronous, so that nothing comes between the caller's last look at its lease and the write.
        """
        wire = self._wire
        if self.stage is not Stage.BODY or not wire.alive or wire.unwritten or not wire.quiet:
            wire.spend("dot_withheld")
            return False
        self.stage = Stage.DOT
        self._dot_answer = None
        wire.send(b".\r\n", replies=1)
        self._dot_written_at = wire.moved_at
        return True

    async def dot_reply(self, timeout_s: float | None = None) -> Reply | Fault:
        """Wait for the answer to the dot, up to `timeout_s` (default: the relay's `dot_timeout_s`) after it was written.

        Returns the reply, or CLOSED, TIMEOUT, GARBAGE: then nobody knows. A cancelled wait loses nothing: the next call returns
        the same answer, or waits on under the same limit; whoever is cancelled here has to come back.
        """
        if self._dot_answer is None:
            limit_s = self._limits.dot_timeout_s if timeout_s is None else timeout_s
            answer = await self._wire.answer(self._dot_written_at + limit_s)
            self._dot_answer = answer
            self.stage = None
            self._needs_reset = not _positive(answer)
        return self._dot_answer

    def report(self, answer: Reply | Fault) -> Report:
        """Return what ended the body or the dot, with the stage it ended at."""
        return self._report(self.stage or Stage.DOT, answer)

    async def _recipients(self, recipients: Sequence[str], rcpt: Sequence[bytes]) -> EnvelopeReport:
        self.stage = Stage.RCPT
        replies: dict[str, Reply] = {}
        for done, (address, command) in enumerate(zip(recipients, rcpt, strict=True), start=1):
            answer = await self._answer_to(command, self._limits.command_timeout_s)
            if isinstance(answer, Fault) or answer.code == CLOSING:
                return await self._failed(Stage.RCPT, answer, replies, unread=len(rcpt) - done + 1)
            replies[address] = answer
        if not any(reply.positive for reply in replies.values()):
            failed = await self._failed(Stage.RCPT, replies[recipients[-1]], replies, unread=1)
            return msgspec.structs.replace(failed, all_refused=True)
        self.stage = Stage.DATA
        answer = await self._answer_to(b"DATA\r\n", self._limits.data_timeout_s)
        if isinstance(answer, Fault) or answer.code != GO_AHEAD:
            return await self._failed(Stage.DATA, answer, replies, unread=0)
        self.stage = Stage.BODY
        return EnvelopeReport(replies)

    async def _answer_to(self, command: bytes, timeout_s: float) -> Reply | Fault:
        """Return the answer to a command; its time counts from when it was written, or from the reply to the one before it."""
        if not self._offer.pipelining:
            self._wire.send(command, replies=1)
        return await self._wire.answer(self._wire.moved_at + timeout_s)

    async def _failed(self, stage: Stage, answer: Reply | Fault, replies: dict[str, Reply], *, unread: int) -> EnvelopeReport:
        """End the transaction; keep the connection only if every command that was written gets its reply."""
        report = self._report(stage, answer)
        if isinstance(answer, Fault) or answer.code == CLOSING or answer.positive:
            self.abort()
        elif self._offer.pipelining:
            await self._catch_up(unread)
        if self.alive:
            self.stage = None
            self._needs_reset = True
        return EnvelopeReport(replies, report)

    async def _catch_up(self, unread: int) -> None:
        deadline = self._loop.time() + _CATCH_UP_S
        for _ in range(unread):
            answer = await self._wire.answer(deadline)
            # A relay that wants a body for nobody would take our next command for one, and a bare dot for an empty message.
            if isinstance(answer, Fault) or answer.code == GO_AHEAD:
                self.abort()
                return

    async def _reset(self) -> Reply | Fault | None:
        self._wire.send(b"RSET\r\n", replies=1)
        answer = await self._wire.answer(self._wire.moved_at + _RSET_TIMEOUT_S)
        if _positive(answer):
            self._needs_reset = False
            return None
        self.abort()
        return answer

    def _report(self, stage: Stage, answer: Reply | Fault) -> Report:
        return Report(self.relay, stage, answer, reused=self.reused)


def _refuses_parameters(report: EnvelopeReport) -> bool:
    """Tell whether 504 or 555 turned the whole envelope away, at MAIL or at every RCPT."""
    failure = report.failure
    if failure is None or not (report.all_refused or failure.stage is Stage.MAIL):
        return False
    answers: list[Reply | Fault] = [*report.replies.values()] or [failure.answer]
    return all(isinstance(answer, Reply) and answer.code in PARAMETER_REFUSED for answer in answers)


def _positive(answer: Reply | Fault) -> bool:
    return isinstance(answer, Reply) and answer.positive
