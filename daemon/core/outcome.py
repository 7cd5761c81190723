"""What an attempt means for its job: recipients' verdicts in, one record or release out.

A job is one message to one envelope, and each recipient has a verdict of its own:

    later      still to be sent to            dead       refused for good
    sent       a relay answered 2xx           in_doubt   the answer to a dot is missing and nobody will ask again
    marked     covered by a dot that may be on its way (only while the job is marked)

The job goes on while anybody is `later`. When nobody is, it ends as in_doubt if anybody is, else as sent if anybody is, else as
dead; `partial` says that they differ. Whoever was once in doubt never ends as dead: a refusal of the second copy says nothing
about the first.

Nothing here does I/O. The SQL repeats one rule, in `mailslot.ending`, because cancel requests and earlier doubts are only known
for certain under the row's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import force_setattr

from daemon.core.job import Job
from daemon.core.reply import clean
from daemon.core.smtp import Stage
from daemon.core.verdicts import Decision, Verdict

EVERYBODY = "*"
"""The one recipient of a job that isn't mail."""
REASON_LENGTH, REPLY_LENGTH = 200, 500
"""What the columns hold, in characters; the CHECKs of schema.sql say the same."""
RELEASED_S = 1.0
"""Pause before a job is tried again that went back through no fault of its own, so that nothing spins."""


def storable(text: str | None, length: int) -> str | None:
    """Return the text as a column can hold it: without controls, in UTF-8, cut to `length` characters."""
    if text is None or (len(text) <= length and text.isascii() and text.isprintable()):
        return text
    return clean(text)[:length]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one recipient stands."""

    verdict: str = "later"
    reply: str | None = None
    doubted: bool = False
    """Whether the answer to a dot that covered this recipient was ever missing."""
    assumed: bool = False
    """Whether `sent` rests on `on_doubt = 'assume_sent'` and not on an answer."""


Entries = Mapping[str, Entry]
_decoder = msgspec.json.Decoder(dict[str, Entry])


class Record(msgspec.Struct, frozen=True):
    """An outcome (or back to ready with a delay) that is written under the job's token. Field by field: `sql/record.sql`."""

    verdict: str
    outcome: str | None = None
    delay_s: float = 0.0
    doubts: int = 0
    reason: str | None = None
    relay: str | None = None
    reply: str | None = None
    recipients: str | None = None
    assumed: bool = False
    stage: Stage | None = None
    accepted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Cut and clean what others wrote, so that the row can hold it."""
        force_setattr(self, "reason", storable(self.reason, REASON_LENGTH))
        force_setattr(self, "reply", storable(self.reply, REPLY_LENGTH))


class Release(msgspec.Struct, frozen=True):
    """The job goes back unharmed, its attempt given back: nothing was sent, nothing was learnt about the message."""

    reason: str
    delay_s: float = 0.0
    relay: str | None = None
    reply: str | None = None

    def __post_init__(self) -> None:
        """Cut and clean what others wrote, so that the row can hold it."""
        force_setattr(self, "reason", storable(self.reason, REASON_LENGTH))
        force_setattr(self, "reply", storable(self.reply, REPLY_LENGTH))


Conclusion = Record | Release


class Answer(msgspec.Struct, frozen=True):
    """What was decided for one recipient, and the reply that decided it."""

    decision: Decision
    reply: str | None = None


class Exchange(msgspec.Struct, frozen=True):
    """What an attempt got for whom, and how far it came."""

    stage: Stage
    relay: str | None
    last: Answer
    answers: Mapping[str, Answer]


def known(job: Job) -> dict[str, Entry]:
    """Return the recipients that the row tells apart; empty when it doesn't."""
    return _decoder.decode(job.recipients) if job.recipients is not None else {}


def standing(job: Job, addresses: Iterable[str]) -> dict[str, Entry]:
    """Return where each recipient of the envelope stands before this attempt, in the envelope's order."""
    if job.recipients is None:
        return {address: Entry(doubted=job.doubts > 0) for address in addresses}
    stored = known(job)
    entries = {address: stored.get(address, Entry()) for address in addresses}
    return {a: replace_verdict(entry, "later") if entry.verdict == "marked" else entry for a, entry in entries.items()}


def replace_verdict(entry: Entry, verdict: str, reply: str | None = None) -> Entry:
    """Return the entry with another verdict, and with the reply if there is one."""
    return Entry(verdict, reply or entry.reply, entry.doubted)


def remaining(entries: Entries) -> tuple[str, ...]:
    """Return the recipients that are still to be sent to."""
    return tuple([address for address, entry in entries.items() if entry.verdict == "later"])


def written(entries: Entries, doubts: int) -> str | None:
    """Return the entries as the row stores them: JSON, or None when all are alike and the row's own columns say it all."""
    verdict = None
    for entry in entries.values():
        if entry.doubted != (doubts > 0) or entry.verdict != (verdict := verdict or entry.verdict):
            return msgspec.json.encode(entries).decode()
    return None


def marked(job: Job, entries: Entries, answers: Mapping[str, Answer], sending: Iterable[str]) -> str | None:
    """Return the recipients as they stand while the dot is on its way: those it covers are marked, refusals are kept."""
    covered = set(sending)
    standing_now = {
        address: replace_verdict(entry, "marked") if address in covered else _judged(entry, answers.get(address))
        for address, entry in entries.items()
    }
    return written(standing_now, job.doubts)


def settle(
    job: Job, entries: Entries, exchange: Exchange, *, max_doubts: int, backoff_s: float, released_s: float = RELEASED_S
) -> Conclusion:
    """Decide what the exchange means for the job.

    `entries` is where the recipients stood before, `backoff_s` the delay for those put off without a hint of their own,
    `released_s` that of a job given back without one. Returns a Release when the relay or the configuration was at fault and
    nothing was sent, else a Record.
    """
    decision = exchange.last.decision
    if decision.verdict is Verdict.PAUSE:  # the relay's pause holds the job back; another relay may take it at once
        return Release(decision.reason, 0.0, exchange.relay, exchange.last.reply)
    if decision.verdict is Verdict.FREE:
        wait_s = released_s if decision.wait_s is None else decision.wait_s
        return Release(decision.reason, wait_s, exchange.relay, exchange.last.reply)
    doubt = decision.verdict is Verdict.DOUBT
    fate = _fate_of_doubt(job, max_doubts)
    after: Entries = {
        address: Entry(fate, entry.reply, doubted=True, assumed=fate == "sent")
        if (answer := exchange.answers.get(address)) and answer.decision.verdict is Verdict.DOUBT
        else _judged(entry, answer)
        for address, entry in entries.items()
    }
    if job.attempt >= job.max_attempts:
        after = _ended(after)
    outcome, partial, assumed = _outcome(after)
    return Record(
        verdict=decision.verdict.value,
        outcome=outcome,
        delay_s=_delay(after, exchange.answers, backoff_s) if outcome is None else 0.0,
        doubts=int(doubt),
        reason="partial" if partial else decision.reason,
        relay=exchange.relay,
        reply=exchange.last.reply,
        recipients=written(after, job.doubts + doubt),
        assumed=assumed,
        stage=exchange.stage,
        accepted=tuple([a for a, answer in exchange.answers.items() if answer.decision.verdict is Verdict.SENT]),
    )


def by_evidence(job: Job, entries: Entries, accepted: Iterable[str]) -> Record:
    """Record what an earlier lease's evidence says: those recipients have it. The others are tried again at once."""
    known = set(accepted)
    after = {a: replace_verdict(entry, "sent") if a in known else entry for a, entry in entries.items()}
    outcome, partial, assumed = _outcome(after)
    return Record(
        verdict=Verdict.SENT.value,
        outcome=outcome,
        reason="partial" if partial else "evidence",
        recipients=written(after, job.doubts),
        assumed=assumed,
    )


def given_up(job: Job, entries: Entries, outcome: str, reason: str, detail: str | None = None) -> Record:
    """End the job for those who remain, as dead or cancelled; who is in doubt or has it keeps that."""
    after = _ended(entries)
    found, partial, assumed = _outcome(after)
    return Record(
        verdict=Verdict.REJECTED.value,
        outcome=outcome if found == "dead" else found,
        reason="partial" if partial and found != "dead" else reason,
        reply=detail,
        recipients=written(after, job.doubts),
        assumed=assumed,
        stage=Stage.BUILD,
    )


def broken(job: Job, error: str, *, in_doubt: bool, backoff_s: float) -> Record:
    """Conclude for an attempt that ended in a surprise of our own making: tried again until the attempts are used up.

    `in_doubt` when the dot had been written; then nobody knows.
    """
    if in_doubt:
        after = {a: Entry("in_doubt", e.reply, doubted=True) if e.verdict == "later" else e for a, e in known(job).items()}
        stored = written(after, job.doubts + 1)
        return Record(Verdict.DOUBT.value, "in_doubt", doubts=1, reason="internal_error", reply=error, recipients=stored)
    outcome = "dead" if job.attempt >= job.max_attempts else None
    return Record(Verdict.LATER.value, outcome, backoff_s, reason="internal_error", reply=error, recipients=job.recipients)


def _judged(entry: Entry, answer: Answer | None) -> Entry:
    if answer is None:
        return entry
    verdict = answer.decision.verdict
    if verdict is Verdict.SENT:
        return replace_verdict(entry, "sent", answer.reply)
    if verdict is Verdict.REJECTED:
        return replace_verdict(entry, "in_doubt" if entry.doubted else "dead", answer.reply)
    return replace_verdict(entry, "later", answer.reply)


def _fate_of_doubt(job: Job, max_doubts: int) -> str:
    if job.on_doubt == "assume_sent":
        return "sent"
    resend = job.on_doubt == "resend" and job.doubts + 1 <= max_doubts and job.attempt < job.max_attempts
    return "later" if resend else "in_doubt"


def _delay(after: Entries, answers: Mapping[str, Answer], backoff_s: float) -> float:
    waits = [answers[a].decision.wait_s for a in remaining(after) if a in answers]
    if not any(answer.decision.verdict is Verdict.SENT for answer in answers.values()):
        # "At once" is for those who wait their turn behind others that were accepted; where nobody was, it would spin.
        waits = [wait or None for wait in waits]
    return max((backoff_s if wait is None else wait for wait in waits), default=0.0)


def _ended(entries: Entries) -> Entries:
    """Return the entries when nobody is tried again: who was to be sent to is dead, or in doubt if he ever was."""
    return {
        address: replace_verdict(entry, "in_doubt" if entry.doubted else "dead") if entry.verdict == "later" else entry
        for address, entry in entries.items()
    }


def _outcome(after: Entries) -> tuple[str | None, bool, bool]:
    """Return the job's outcome, None while anybody is to be sent to; whether its recipients differ; whether it is assumed."""
    verdicts = {entry.verdict for entry in after.values()}
    if "later" in verdicts:
        return None, False, False
    outcome = next((verdict for verdict in ("in_doubt", "sent") if verdict in verdicts), "dead")
    return outcome, len(verdicts) > 1, outcome == "sent" and any(entry.assumed for entry in after.values())
