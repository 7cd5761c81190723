"""The story: one job, one attempt to hand its message to a relay.

    compose          the bytes, proven against the payload; what can't be built is dead, and no connection is used
    check out        a connection of the first relay that works
    MAIL RCPT DATA   who is accepted, who is refused
    body             everything but the final dot
    mark             in parallel with the body: the fenced write without which no dot is written
    dot              in one synchronous step: lease trusted, outcomes recordable, connection alive -> write
    answer           waited for, never cancelled
    conclusion       a value; the slot records it, and only then is the connection used again

Until the dot everything may be interrupted at any await, by the end of the trust window, by a lost lease, by a drain: the
connection is aborted (no QUIT, no RSET) and the job handed back, because without the dot nothing was sent (RFC 5321 4.1.1.10).
From the dot on nothing interrupts, because only the answer tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

import structlog

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.message import Message, Unbuildable
from daemon.core.outcome import (
    RELEASED_S,
    Answer,
    Conclusion,
    Entries,
    Entry,
    Exchange,
    Release,
    given_up,
    known,
    marked,
    remaining,
    settle,
    standing,
)
from daemon.core.rate import NoToken, Permit
from daemon.core.retry import backoff_s, dropped_s
from daemon.core.rules import table
from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import Decision, Verdict, decide, stale
from daemon.fence import Means, ask_mark, forbidden, handed_back, instead_of_go, payload_of
from daemon.slots import Lease
from daemon.smtp.commands import Notify
from daemon.smtp.connection import Connection
from daemon.smtp.drops import Drops
from daemon.store import MarkRequest

RELAY_UNKNOWN_S = 60.0
"""How long a job waits that asks for a relay which doesn't serve its queue here; another worker's configuration may have it."""

log = structlog.get_logger("mailslot.attempt")


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything but the dot is with the relay, and the mark said go; `refused` are those that RCPT turned away."""

    connection: Connection
    entries: Entries
    refused: Mapping[str, Answer]


@dataclass(frozen=True, slots=True)
class Ended:
    """The exchange ended before the dot; `refused` are those that RCPT had turned away by then."""

    report: Report
    refused: Mapping[str, Answer]


class MailAttempt:
    """The attempt of kind `email`: called with a lease, returns its conclusion."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._rules = table(means.settings.rule, means.settings.retry)
        self._drops = Drops()

    async def __call__(self, lease: Lease) -> Conclusion:
        """Try once to send the job. Cancelling is safe before the dot; past it the answer would be lost, so nobody does."""
        block = self._means.interrupts.under(lease)
        try:
            with block:
                ready = await self._prepared(lease)
        except TimeoutError:
            if not block.interrupted:
                raise
            return handed_back(lease.given_up)
        return await self._dot(lease, ready) if isinstance(ready, Ready) else ready

    async def _prepared(self, lease: Lease) -> Ready | Conclusion:
        job = lease.job
        payload = await payload_of(job, self._means)
        if not isinstance(payload, str):
            return payload
        message = await self._means.compose(job, payload)
        await asyncio.sleep(0)  # the others of this claim compose now: one kind of work at a time, a mail costs 9 % less
        if isinstance(message, Unbuildable):
            return given_up(job, known(job), "dead", message.reason, str(message))
        entries = standing(job, message.recipients)
        if not remaining(entries):
            return given_up(job, entries, "dead", "nobody_remains")
        return await self._up_to_the_dot(lease, message, entries)

    async def _up_to_the_dot(self, lease: Lease, message: Message, entries: dict[str, Entry]) -> Ready | Conclusion:
        relays, job = self._means.relays, lease.job
        if job.relay_wanted is not None and job.relay_wanted not in (serving := relays.serving(job.queue)):
            log.error("relay.unknown", job_id=job.id, queue=job.queue, relay=job.relay_wanted, known=sorted(serving))
            return Release("relay_unknown", RELAY_UNKNOWN_S, job.relay_wanted)
        fresh = False
        while True:
            lease.stage = Stage.CONNECT
            renew = partial(self._renewed, lease)
            connection = await relays.check_out(job.queue, job.relay_wanted, lease.permit, renew, fresh=fresh)
            if isinstance(connection, NoToken):
                return Release("no_token", connection.wait_s, connection.relay)
            if isinstance(connection, Report):
                return self._conclude(lease, entries, connection, {})
            try:
                ready = await self._transaction(lease, connection, message, entries)
            except BaseException:
                connection.abort()
                relays.check_in(connection)
                raise
            if isinstance(ready, Ended) and stale(ready.report):
                # The connection had aged, which says nothing about the job: once more on a fresh one.
                connection.abort()
                relays.check_in(connection)
                fresh = True
                continue
            lease.afterwards = partial(relays.check_in, connection)
            if isinstance(ready, Ended):
                return self._conclude(lease, entries, ready.report, ready.refused, connection)
            return ready

    async def _renewed(self, lease: Lease, relay: str) -> Permit | NoToken:
        """Take another token; the lease keeps it, in case the connection turns out to be too old to be used."""
        try:
            permit = await self._means.permit(relay)
        except (StoreUnavailable, StoreRefused):
            return NoToken(relay, RELEASED_S)
        if isinstance(permit, Permit):
            lease.permit = permit
        return permit

    async def _transaction(
        self, lease: Lease, connection: Connection, message: Message, entries: dict[str, Entry]
    ) -> Ready | Ended | Conclusion:
        lease.stage = Stage.MAIL
        to = remaining(entries)
        envelope = await connection.envelope(
            message.envelope_from,
            to,
            size=len(message.content),
            smtputf8=message.needs_smtputf8,
            notify=self._notify(lease.job),
        )
        refused = {
            address: Answer(self._decide(Report(connection.relay, Stage.RCPT, reply, connection.reused)), str(reply))
            for address, reply in envelope.replies.items()
            if not reply.positive
        }
        if envelope.failure is not None:
            return Ended(envelope.failure, refused)
        lease.stage = Stage.BODY
        connection.send_body(message.content)
        instead = await self._mark(lease, entries, refused, envelope.accepted)
        if instead is not None:
            connection.abort()
            return instead
        early = await connection.drained()
        if early is not None:
            return Ended(connection.report(early), refused)
        return Ready(connection, entries, refused)

    def _notify(self, job: Job) -> Notify | None:
        when = self._means.settings.mail.dsn_notify
        return Notify(when, str(job.uid)) if when else None

    async def _mark(
        self, lease: Lease, entries: dict[str, Entry], refused: Mapping[str, Answer], sending: tuple[str, ...]
    ) -> Conclusion | None:
        """Ask for the mark; returns None for go, else what the job's conclusion is instead of a dot."""
        request = MarkRequest(lease.job, marked(lease.job, entries, refused, sending), sending)
        return instead_of_go(lease, entries, await ask_mark(lease, self._means, request))

    async def _dot(self, lease: Lease, ready: Ready) -> Conclusion:
        means, connection = self._means, ready.connection
        reason = forbidden(lease, means.ports.boottime_s, sick=means.recorder_sick())
        if reason is not None:
            connection.abort()
            return handed_back(reason, connection.relay)
        if not connection.write_dot():  # something has come that the loop hasn't read yet: a reply, or the end
            early = await connection.drained() or Fault.CLOSED
            connection.abort()
            return self._conclude(lease, ready.entries, connection.report(early), ready.refused, connection)
        lease.begin(inf)  # the connection has a limit of its own for the answer
        lease.hang_up = connection.abort
        report = connection.report(await connection.dot_reply())
        lease.hang_up = None
        return self._conclude(lease, ready.entries, report, ready.refused, None if lease.hung_up else connection)

    def _conclude(
        self,
        lease: Lease,
        entries: Entries,
        report: Report,
        refused: Mapping[str, Answer],
        connection: Connection | None = None,
    ) -> Conclusion:
        """Turn the end of an exchange into the job's conclusion: who was refused at RCPT keeps that, the others share the end."""
        settings = self._means.settings
        to = remaining(entries)
        if len(refused) == len(to):  # nobody was accepted; what is the relay's fault outweighs what is a recipient's
            last = max(refused.values(), key=lambda answer: answer.decision.verdict in {Verdict.FREE, Verdict.PAUSE})
        else:
            last = Answer(self._decide(report), str(report.answer))
        dropped = self._drops.count(lease.job.id, report, last.decision)
        if connection is not None and dropped <= 1:
            self._means.relays.note(connection.relay, last.decision)
        answers = {address: refused.get(address, last) for address in to}
        return settle(
            lease.job,
            entries,
            Exchange(report.stage, report.relay, last, answers),
            max_doubts=settings.lease.max_doubts,
            backoff_s=backoff_s(lease.job.attempt, settings.retry, self._means.ports.number()),
            released_s=dropped_s(max(dropped, 1)),
        )

    def _decide(self, report: Report) -> Decision:
        return decide(report, configured_sender=bool(self._means.settings.mail.envelope_from), rules=self._rules)
