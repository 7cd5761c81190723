"""One open connection to a relay, and the transactions on it: envelope, body, dot, answer.

Answers: how far has this message come, and what did the relay say? The stage is a field, set before the bytes of that stage
leave, so that whoever is interrupted anywhere knows it. The order that callers keep:

    envelope -> send_body -> drained -> write_dot -> dot_reply        (abort at any point before write_dot: nothing was sent)

Promises:
- The dot is a write of its own, made by `write_dot` and by nothing else, synchronously, and only into a connection which is
  alive, whose body has left completely, for at least one accepted recipient. So there is never an empty message, and an aborted
  connection was never a sent one.
- `dot_reply` can be cancelled and called again: the reply is kept.
- A connection that got out of step (cancelled wait, time-out, unreadable reply, unasked reply, 421) is never reusable.

Never decides what a reply means, never retries, never raises for what a relay does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from daemon.core import settings
from daemon.core.smtp import CLOSING, GO_AHEAD, Fault, Reply, Report, Stage, stuff
from daemon.smtp import commands
from daemon.smtp.commands import Notify
from daemon.smtp.wire import Wire

_RSET_TIMEOUT_S: Final = 5.0
_CATCH_UP_S: Final = 5.0
"""How long replies that no longer matter are waited for, to keep a connection in step, before it is dropped instead."""


@dataclass(frozen=True, slots=True)
class EnvelopeReport:
    """What the relay said to MAIL, RCPT and DATA."""

    replies: Mapping[str, Reply] = field(default_factory=dict)
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
        self._limits = relay
        self._wire = wire
        self._pipelining = "pipelining" in extensions
        self._plain = False
        """Whether parameters that are only useful are left out, since the relay refused one."""
        self._needs_reset = False
        self._dot_deadline_from = 0.0
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
        self._wire.spend("quit")
        asyncio.get_running_loop().call_later(self._limits.quit_timeout_s, self._wire.abort)
        self._wire.close()

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
        refused = commands.refused_here(size, self.extensions, smtputf8=smtputf8)
        if refused is not None:
            return EnvelopeReport(failure=self._report(Stage.MAIL, refused))
        whole, plain = (
            (
                commands.mail(sender, size, self.extensions, smtputf8=smtputf8, notify=notify, plain=is_plain),
                *(commands.rcpt(address, self.extensions, notify=notify, plain=is_plain) for address in recipients),
            )
            for is_plain in (self._plain, True)
        )
        report = await self._envelope(recipients, whole)
        if whole == plain or not _refuses_parameters(report) or not self.reusable:
            return report
        self._plain = True
        return await self._envelope(recipients, plain)

    async def _envelope(self, recipients: Sequence[str], words: Sequence[bytes]) -> EnvelopeReport:
        mail, *rcpt = words
        self.stage = Stage.MAIL
        self.transactions += 1
        if self._needs_reset and (fault := await self._reset()) is not None:
            return EnvelopeReport(failure=self._report(Stage.MAIL, fault))
        if self._pipelining:
            self._wire.send(b"".join((*words, b"DATA\r\n")), replies=len(words) + 1)
        answer = await self._answer_to(mail, self._limits.command_timeout_s)
        if not _positive(answer):
            return await self._failed(Stage.MAIL, answer, {}, unread=len(rcpt) + 1)
        return await self._recipients(recipients, rcpt)

    def send_body(self, content: bytes) -> None:
        """Begin to send the message, everything but the dot. Returns at once; `drained` tells when it has left."""
        self._wire.send_body(stuff(content))

    async def drained(self) -> Fault | Reply | None:
        """Wait until the body has left; None if it has and the relay still listens.

        Otherwise what came first: a reply that the relay didn't wait with, CLOSED, GARBAGE, or TIMEOUT when it took nothing for
        `body_timeout_s` (RFC 5321 4.5.3.2.5 gives each block its own time). Cancelling is safe.
        """
        while self._wire.alive and (before := self._wire.unwritten):
            if not await self._wire.news(self._limits.body_timeout_s) and self._wire.unwritten >= before:
                self._wire.spend(Fault.TIMEOUT)
                return Fault.TIMEOUT
        if self._wire.stray is not None:
            return self._wire.stray
        if self._wire.alive:
            return None
        return Fault.GARBAGE if self._wire.spent == Fault.GARBAGE else Fault.CLOSED

    def write_dot(self) -> bool:
        """Write the final dot, if everything before it is as it must be; False means that nothing was written.

        Synchronous, so that nothing comes between the caller's last look at its lease and the write.
        """
        if self.stage is not Stage.BODY or not self._wire.alive or self._wire.unwritten or not self._wire.quiet:
            self._wire.spend("dot_withheld")
            return False
        self.stage = Stage.DOT
        self._dot_answer = None
        self._dot_deadline_from = asyncio.get_running_loop().time()
        self._wire.send(b".\r\n", replies=1)
        return True

    async def dot_reply(self, timeout_s: float | None = None) -> Reply | Fault:
        """Wait for the answer to the dot, up to `timeout_s` (default: the relay's `dot_timeout_s`) after it was written.

        Returns the reply, or CLOSED, TIMEOUT, GARBAGE: then nobody knows. A cancelled wait loses nothing: the next call returns
        the same answer, or waits on under the same limit; whoever is cancelled here has to come back.
        """
        if self._dot_answer is None:
            limit_s = self._limits.dot_timeout_s if timeout_s is None else timeout_s
            answer = await self._wire.answer(self._dot_deadline_from + limit_s)
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
            return replace(failed, all_refused=True)
        self.stage = Stage.DATA
        answer = await self._answer_to(b"DATA\r\n", self._limits.data_timeout_s)
        if isinstance(answer, Fault) or answer.code != GO_AHEAD:
            return await self._failed(Stage.DATA, answer, replies, unread=0)
        self.stage = Stage.BODY
        return EnvelopeReport(replies)

    async def _answer_to(self, command: bytes, timeout_s: float) -> Reply | Fault:
        if not self._pipelining:
            self._wire.send(command, replies=1)
        return await self._wire.answer(asyncio.get_running_loop().time() + timeout_s)

    async def _failed(self, stage: Stage, answer: Reply | Fault, replies: dict[str, Reply], *, unread: int) -> EnvelopeReport:
        """End the transaction; keep the connection only if every command that was written gets its reply."""
        report = self._report(stage, answer)
        if isinstance(answer, Fault) or answer.code == CLOSING or answer.positive:
            self.abort()
        elif self._pipelining:
            await self._catch_up(unread)
        if self.alive:
            self.stage = None
            self._needs_reset = True
        return EnvelopeReport(replies, report)

    async def _catch_up(self, unread: int) -> None:
        deadline = asyncio.get_running_loop().time() + _CATCH_UP_S
        for _ in range(unread):
            answer = await self._wire.answer(deadline)
            # A relay that wants a body for nobody would take our next command for one, and a bare dot for an empty message.
            if isinstance(answer, Fault) or answer.code == GO_AHEAD:
                self.abort()
                return

    async def _reset(self) -> Reply | Fault | None:
        self._wire.send(b"RSET\r\n", replies=1)
        answer = await self._wire.answer(asyncio.get_running_loop().time() + _RSET_TIMEOUT_S)
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
    return all(isinstance(answer, Reply) and answer.code in commands.PARAMETER_REFUSED for answer in answers)


def _positive(answer: Reply | Fault) -> bool:
    return isinstance(answer, Reply) and answer.positive
