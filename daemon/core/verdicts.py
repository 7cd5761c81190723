"""Decides what a report means: the outcome policy, as a table.

Answers, for one recipient or one message: sent, tried again, refused for good, or not the message's fault at all?

`RULES` is read from the top; the first rule that fits decides. A rule fits if each of its conditions does: the stage, the
beginning of the code ("4" is any 4yz), an enhanced code or its subject, words in the text, or a fault in place of a reply. The
order:
1. Single providers' words, whose codes often say something else than the standard's.
2. After the dot only a reply tells: any 2yz is sent, no valid reply is doubt, and 3yz is no answer to a dot.
3. No reply before the dot: nothing was sent (RFC 5321 4.1.1.10), so the attempt is given back. The one exception: a fresh
   connection that closes or hangs inside the body uses an attempt up, since a message that makes a relay drop must come to an
   end.
4. What the relay or our configuration is to blame for, at whatever stage it is said.
5. Stage by stage, then the first digit alone.

Promises: pure and total, every report has a decision; `reason` is one of a small set of stable words; nothing is guessed as sent.
Never decides about recipients whose RCPT was accepted (`Reply.positive`): they share what happens to the message.

The operator's own rules (`[[rule]]` of config.toml) stand in front of all of it. They speak of 4yz and 5yz replies alone, and can
only put off, refuse, give back or pause: so none of them makes a missing answer, or a 2yz, into anything else, and nothing into
sent. `rules` puts them there.

Adding a rule: name it by what happened, put it in front of what it refines, add its line to the test's table.
Sources: RFC 5321 4.2 to 4.5, RFC 3463, RFC 4954 6, RFC 3207 4, RFC 1870; the providers' published texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from daemon.core import settings
from daemon.core.reply import wait_hint_s
from daemon.core.smtp import CLOSING, Fault, Reply, Report, Stage


class Verdict(StrEnum):
    """What happens to whom or what a report is about."""

    SENT = "sent"
    """Accepted by the relay."""
    LATER = "later"
    """Put off; an attempt is used up."""
    REJECTED = "rejected"
    """Refused for good."""
    FREE = "free"
    """Not the job's fault: tried again, the attempt given back."""
    PAUSE = "pause"
    """As `free`, and the relay takes no work for a while: its configuration, or our account there, is at fault."""
    DOUBT = "doubt"
    """The dot was written and its answer is missing."""


class Scope(StrEnum):
    """Whom or what a decision is about."""

    RECIPIENT = "recipient"
    MESSAGE = "message"
    RELAY = "relay"


class Decision(msgspec.Struct, frozen=True):
    """What a report means."""

    verdict: Verdict
    scope: Scope
    reason: str
    wait_s: float | None
    """The least seconds until the next try (for `pause`: of the relay); None leaves it to the usual backoff."""
    rule: str
    """The name of the rule that decided, for the log and for whoever wonders."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The right-hand side of a rule."""

    verdict: Verdict
    scope: Scope
    reason: str
    """A stable word; empty stands for the fault's own."""
    wait_s: float | None = None
    hint: bool = True
    """Whether a wait that the relay itself names may lengthen it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: a name, what it means, and the conditions. It is about faults if it names some, else replies."""

    name: str
    meaning: Meaning
    stages: frozenset[Stage]
    codes: tuple[str, ...] = ()
    enhanced: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None
    faults: frozenset[Fault] = frozenset()
    reused: bool | None = None
    configured_sender: bool | None = None


def sent(reason: str) -> Meaning:
    """Accepted."""
    return Meaning(Verdict.SENT, Scope.MESSAGE, reason)


def doubt(reason: str = "") -> Meaning:
    """May have been accepted."""
    return Meaning(Verdict.DOUBT, Scope.MESSAGE, reason)


def free(reason: str = "", wait_s: float | None = None) -> Meaning:
    """Not sent, by the relay's fault."""
    return Meaning(Verdict.FREE, Scope.RELAY, reason, wait_s)


def pause(reason: str = "", wait_s: float | None = None) -> Meaning:
    """Not sent, and nothing else would be."""
    return Meaning(Verdict.PAUSE, Scope.RELAY, reason, wait_s)


def later(scope: Scope, reason: str, wait_s: float | None = None) -> Meaning:
    """Put off by the relay's own words."""
    return Meaning(Verdict.LATER, scope, reason, wait_s)


def rejected(scope: Scope, reason: str) -> Meaning:
    """Refused for good by the relay's own words, or unfit for this relay."""
    return Meaning(Verdict.REJECTED, scope, reason)


def words(*phrases: str) -> re.Pattern[str]:
    """Compile phrases that may stand anywhere in a reply's text, in any case."""
    return re.compile("|".join(phrases), re.IGNORECASE)


GREYLISTED: Final = "greylisted"
GREYLIST_S: Final = settings.Retry().greylist_s
"""Greylists let nobody in earlier, whatever our own backoff says; `retry.greylist_s` takes its place."""
RATE_S: Final = 5.0
"""Providers count messages per second; Amazon's advice starts at 5 s."""
QUOTA_S: Final = 1800.0
"""A daily quota comes back bit by bit; one try each half hour finds out."""
SUSPENDED_S: Final = 7200.0
"""Yahoo asks for hours after its TSS and IPTS codes."""

ANY: Final = frozenset(Stage)
DOT: Final = frozenset({Stage.DOT})
BODY: Final = frozenset({Stage.BODY})
MAIL: Final = frozenset({Stage.MAIL})
RCPT: Final = frozenset({Stage.RCPT})
DATA: Final = frozenset({Stage.DATA})
CONTENT: Final = frozenset({Stage.DATA, Stage.BODY, Stage.DOT})
TRANSACTION: Final = MAIL | RCPT | CONTENT
OPENING: Final = ANY - TRANSACTION
BEFORE_DOT: Final = ANY - DOT

SILENCE: Final = frozenset({Fault.CLOSED, Fault.TIMEOUT, Fault.GARBAGE})
ANY_FAULT: Final = frozenset(Fault)
SETUP_FAULTS: Final = frozenset({Fault.TLS_NOT_OFFERED, Fault.TLS_FAILED, Fault.AUTH_NOT_OFFERED})
OUT_OF_STEP: Final = ("500", "501", "502", "503", "504")

RATE: Final = words(
    r"too many (concurrent |simultaneous )?(smtp )?(connections|sessions|messages)",
    r"concurrent connections? limit",
    r"rate.?limit",
    r"(sending|message|connection) rate",
    r"throttl",
    r"(sending|connecting) too (fast|quickly|often)",
    r"unusual rate",
    r"slow down",
)
RELAY_DENIED: Final = words(
    r"\brelay(ing)? (access )?(is )?(denied|prohibited|not (allowed|permitted))",
    r"(unable|not (permitted|allowed)) to relay",
    r"we do not relay",
)
GREYLIST: Final = words(r"gr[ae]y[- ]?list")
FULL: Final = words(r"(mailbox|inbox) (is )?(full|over)", r"over ?quota", r"quota exceeded", r"insufficient (mailbox )?storage")
UNKNOWN: Final = words(
    r"(user|recipient|mailbox|address|account) (is )?(unknown|unavailable|does(n't| not) exist|not found)",
    r"(unknown|no such|invalid) (local )?(user|recipient|mailbox|address|account)",
    r"user \S+ unknown",
)
SENDER: Final = words(
    r"(address|domain|sender|identit\w+) (is|are)? ?not verified",
    r"SendAsDenied",
    r"not (authorized|allowed|permitted) to send (from|as)",
    r"sender (address )?(is )?(not (allowed|permitted|authorized|owned)|rejected|refused|denied)",
)
SENDER_CODES: Final = ("5.1.7", "5.1.8", "5.7")
RECIPIENTS: Final = words(r"too many recipients")
LOG_IN: Final = words(r"authenti\w+ (is )?required", r"(must|need to|please) (first )?(authenticate|log ?in)")

# fmt: off
PROVIDERS: Final = (
    # Amazon SES
    Rule("ses_rate", free("rate_limited", RATE_S), TRANSACTION, ("454",), text=words(r"maximum sending rate exceeded")),
    Rule("ses_quota", pause("quota_used_up", QUOTA_S), ANY, ("454",), text=words(r"daily (message|sending) quota exceeded")),
    Rule("ses_session", free("session_limit"), TRANSACTION, ("4",), text=words(r"maximum message count per session")),
    Rule("ses_idle", free("session_limit"), TRANSACTION, ("451",), text=words(r"timeout waiting for data from client")),
    # Microsoft 365
    Rule("m365_connections", free("too_many_connections", RATE_S), ANY, ("432",)),
    Rule("m365_quota", pause("quota_used_up", QUOTA_S), TRANSACTION, ("5",), text=words(r"SubmissionQuotaExceeded")),
    Rule("m365_daily", pause("quota_used_up", QUOTA_S), TRANSACTION, ("550",), ("5.1.90",)),
    Rule("m365_busy", free("rate_limited", RATE_S), TRANSACTION, ("451",), ("4.7.500",)),
    # Gmail, Google Workspace
    Rule("gmail_peak", free("rate_limited", RATE_S), TRANSACTION, ("450",), ("4.2.1",), words(r"SMTP relay")),
    Rule("gmail_rate", free("rate_limited", RATE_S), TRANSACTION, ("421",), ("4.7.28",)),
    Rule("gmail_daily", pause("quota_used_up", QUOTA_S), TRANSACTION, ("550",), ("5.4.5",), words(r"daily")),
    # SendGrid: a 4yz that no waiting helps
    Rule("sendgrid_sender", pause("sender_refused"), TRANSACTION, ("403",), configured_sender=True),
    Rule("sendgrid_job_sender", rejected(Scope.MESSAGE, "sender_refused"), TRANSACTION, ("403",), configured_sender=False),
    # Yahoo
    Rule("yahoo_suspended", pause("rate_limited", SUSPENDED_S), ANY, ("421",), text=words(r"\[(TSS|IPTS)\d+\]")),
    Rule("yahoo_session", free("session_limit"), TRANSACTION, ("421",), text=words(r"max messages? per connection")),
)

AFTER_DOT: Final = (
    Rule("dot_accepted", sent("accepted"), DOT, ("2",)),
    Rule("dot_unanswered", doubt(), DOT, faults=ANY_FAULT),
    Rule("dot_no_answer", doubt("out_of_step"), DOT, ("1", "3")),
)

NO_REPLY: Final = (
    Rule("too_large_here", rejected(Scope.MESSAGE, ""), BEFORE_DOT, faults=frozenset({Fault.TOO_LARGE})),
    Rule("smtputf8_missing", rejected(Scope.MESSAGE, ""), BEFORE_DOT, faults=frozenset({Fault.SMTPUTF8_NOT_OFFERED})),
    Rule("setup", pause(), BEFORE_DOT, faults=SETUP_FAULTS),
    Rule("body_dropped", later(Scope.MESSAGE, ""), BODY, faults=frozenset({Fault.CLOSED, Fault.TIMEOUT}), reused=False),
    Rule("no_reply", free(), BEFORE_DOT, faults=ANY_FAULT),
)

RELAYS_FAULT: Final = (
    Rule("greeting", free("greeting_refused"), frozenset({Stage.GREETING})),
    Rule("ehlo_refused", pause("ehlo_refused"), frozenset({Stage.EHLO}), ("5",)),
    Rule("tls_refused", pause("tls_failed"), frozenset({Stage.TLS}), ("5",)),
    Rule("auth_unavailable", free("auth_unavailable"), frozenset({Stage.AUTH}), ("4",)),
    Rule("auth_failed", pause("auth_failed"), frozenset({Stage.AUTH})),
    Rule("opening", free("relay_unavailable"), OPENING),
    Rule("log_in", pause("auth_required"), TRANSACTION, ("530", "534", "535", "538")),
    Rule("log_in_words", pause("auth_required"), TRANSACTION, ("4", "5"), text=LOG_IN),
    Rule("relay_denied", pause("relay_denied"), TRANSACTION, ("4", "5"), text=RELAY_DENIED),
    Rule("sender", pause("sender_refused"), MAIL | CONTENT, ("5",), text=SENDER, configured_sender=True),
    Rule("sender_codes", pause("sender_refused"), MAIL, ("5",), SENDER_CODES, configured_sender=True),
    Rule("job_sender", rejected(Scope.MESSAGE, "sender_refused"), MAIL | CONTENT, ("5",), text=SENDER, configured_sender=False),
    Rule("job_sender_codes", rejected(Scope.MESSAGE, "sender_refused"), MAIL, ("5",), SENDER_CODES, configured_sender=False),
    Rule("greylisted", later(Scope.RECIPIENT, GREYLISTED, GREYLIST_S), RCPT, ("4",), text=GREYLIST),
    Rule("greylisted_late", later(Scope.MESSAGE, GREYLISTED, GREYLIST_S), MAIL | CONTENT, ("4",), text=GREYLIST),
    Rule("rate", free("rate_limited", RATE_S), TRANSACTION, ("4",), text=RATE),
    Rule("body_closing", later(Scope.MESSAGE, "relay_closing"), BODY, (str(CLOSING),), reused=False),
    Rule("closing", free("relay_closing"), BEFORE_DOT, (str(CLOSING),)),
    Rule("stale", free("out_of_step"), MAIL | DATA, OUT_OF_STEP, ("5.5",), reused=True),
    Rule("stale_bare", free("out_of_step"), MAIL | DATA, OUT_OF_STEP, ("",), reused=True),
    Rule("stale_rcpt", free("out_of_step"), RCPT, ("503",), reused=True),
    Rule("desync", free("out_of_step"), BEFORE_DOT, ("1", "2", "3")),
)

MAIL_RULES: Final = (
    Rule("mail_size", rejected(Scope.MESSAGE, "message_too_large"), MAIL, ("5",), ("5.3.4", "5.2.3")),
    Rule("mail_552", rejected(Scope.MESSAGE, "message_too_large"), MAIL, ("552",)),
    Rule("mail_parameter", rejected(Scope.MESSAGE, "parameter_refused"), MAIL, ("555", "504")),
    Rule("mail_refused", rejected(Scope.MESSAGE, "refused"), MAIL, ("5",)),
    Rule("mail_deferred", later(Scope.MESSAGE, "deferred"), MAIL, ("4",)),
)

RCPT_RULES: Final = (
    Rule("rcpt_too_many", later(Scope.RECIPIENT, "too_many_recipients", 0.0), RCPT, ("4", "5"), ("4.5.3", "5.5.3")),
    Rule("rcpt_too_many_words", later(Scope.RECIPIENT, "too_many_recipients", 0.0), RCPT, ("452", "552"), text=RECIPIENTS),
    Rule("rcpt_full", later(Scope.RECIPIENT, "mailbox_full"), RCPT, ("4", "5"), ("4.2.2", "5.2.2")),
    Rule("rcpt_full_words", later(Scope.RECIPIENT, "mailbox_full"), RCPT, ("452", "552"), text=FULL),
    Rule("rcpt_greylist_codes", later(Scope.RECIPIENT, GREYLISTED, GREYLIST_S), RCPT, ("450",), ("4.2.0",)),
    Rule("rcpt_greylist_policy", later(Scope.RECIPIENT, GREYLISTED, GREYLIST_S), RCPT, ("451",), ("4.7.1",)),
    Rule("rcpt_size", rejected(Scope.MESSAGE, "message_too_large"), RCPT, ("5",), ("5.3.4", "5.2.3")),
    Rule("rcpt_unknown", rejected(Scope.RECIPIENT, "mailbox_unknown"), RCPT, ("5",), ("5.1.1", "5.1.6", "5.1.10")),
    Rule("rcpt_domain", rejected(Scope.RECIPIENT, "domain_unknown"), RCPT, ("5",), ("5.1.2", "5.4.4")),
    Rule("rcpt_address", rejected(Scope.RECIPIENT, "address_invalid"), RCPT, ("5",), ("5.1.3",)),
    Rule("rcpt_disabled", rejected(Scope.RECIPIENT, "mailbox_disabled"), RCPT, ("5",), ("5.2.1",)),
    Rule("rcpt_policy", rejected(Scope.RECIPIENT, "policy_refused"), RCPT, ("5",), ("5.7",)),
    Rule("rcpt_unknown_words", rejected(Scope.RECIPIENT, "mailbox_unknown"), RCPT, ("550", "551", "553", "554"), text=UNKNOWN),
    Rule("rcpt_moved", rejected(Scope.RECIPIENT, "mailbox_moved"), RCPT, ("551",)),
    Rule("rcpt_invalid", rejected(Scope.RECIPIENT, "address_invalid"), RCPT, ("553", "501")),
    Rule("rcpt_no_mail", rejected(Scope.RECIPIENT, "domain_refuses_mail"), RCPT, ("556",)),
    Rule("rcpt_refused", rejected(Scope.RECIPIENT, "recipient_refused"), RCPT, ("5",)),
    Rule("rcpt_deferred", later(Scope.RECIPIENT, "deferred"), RCPT, ("4",)),
)

CONTENT_RULES: Final = (
    Rule("content_full", later(Scope.MESSAGE, "mailbox_full"), CONTENT, ("4", "5"), ("4.2.2", "5.2.2")),
    Rule("content_size", rejected(Scope.MESSAGE, "message_too_large"), CONTENT, ("5",), ("5.3.4", "5.2.3")),
    Rule("content_552", rejected(Scope.MESSAGE, "message_too_large"), CONTENT, ("552",)),
    Rule("content_policy", rejected(Scope.MESSAGE, "policy_refused"), CONTENT, ("5",), ("5.7",)),
    Rule("content_form", rejected(Scope.MESSAGE, "content_refused"), CONTENT, ("5",), ("5.6",)),
    Rule("content_refused", rejected(Scope.MESSAGE, "message_refused"), CONTENT, ("5",)),
    Rule("dot_closing", later(Scope.MESSAGE, "relay_closing"), DOT, (str(CLOSING),)),
    Rule("content_deferred", later(Scope.MESSAGE, "deferred"), CONTENT, ("4",)),
)
# fmt: on


class Table(tuple[Rule, ...]):  # noqa: SLOT001  what it remembers needs a place
    """Rules in their order; remembers which of them can fit an answer at a stage, so that most are never looked at."""

    def __init__(self, _rules: Iterable[Rule]) -> None:
        self._fitting: dict[tuple[Stage, int | Fault], tuple[Rule, ...]] = {}

    def fitting(self, stage: Stage, answer: Reply | Fault) -> tuple[Rule, ...]:
        """Return the rules whose stage and codes, or faults, fit; there are no more such pairs than codes have digits."""
        key = (stage, answer if isinstance(answer, Fault) else answer.code)
        if (found := self._fitting.get(key)) is None:
            found = self._fitting[key] = tuple(rule for rule in self if stage in rule.stages and _answers(rule, answer))
        return found


RULES: Final = Table((*PROVIDERS, *AFTER_DOT, *NO_REPLY, *RELAYS_FAULT, *MAIL_RULES, *RCPT_RULES, *CONTENT_RULES))


def decide(report: Report, *, configured_sender: bool = True, rules: Table = RULES) -> Decision:
    """Decide what a report means.

    Args:
        report: The end of a stage. For RCPT, one report for each recipient that wasn't accepted.
        rules: The whole table, as `core.rules.table` makes it.
        configured_sender: Whether the envelope sender comes from our configuration. If a relay refuses such a sender, no job
            could be sent and the relay pauses; if the job brought it, that job alone is refused and no other waits for it.
    """
    for rule in rules.fitting(report.stage, report.answer):
        if _fits(rule, report, configured_sender=configured_sender):
            meaning = rule.meaning
            reason = meaning.reason or str(report.answer)
            return Decision(meaning.verdict, meaning.scope, reason, _wait_s(meaning, report.answer), rule.name)
    raise AssertionError(f"no rule for {report}")


def stale(report: Report) -> bool:
    """Tell whether the connection's age explains this report: then one immediate try on a fresh one costs nobody anything.

    In the body only silence does; on the fresh one it is then the message's own, and counts.
    """
    if not report.reused or report.stage not in MAIL | RCPT | DATA | BODY:
        return False
    if isinstance(report.answer, Fault):
        return report.answer in SILENCE
    return report.stage is not Stage.BODY and str(report.answer.code) in (str(CLOSING), *OUT_OF_STEP)


def _fits(rule: Rule, report: Report, *, configured_sender: bool) -> bool:
    if rule.reused is not None and rule.reused is not report.reused:
        return False
    if rule.configured_sender is not None and rule.configured_sender is not configured_sender:
        return False
    return isinstance(report.answer, Fault) or _words_fit(rule, report.answer)


def _answers(rule: Rule, answer: Reply | Fault) -> bool:
    if isinstance(answer, Fault):
        return answer in rule.faults
    return not rule.faults and (not rule.codes or str(answer.code).startswith(rule.codes))


def _words_fit(rule: Rule, reply: Reply) -> bool:
    if rule.enhanced and not any(_within(reply.enhanced or "", code) for code in rule.enhanced):
        return False
    return rule.text is None or rule.text.search(reply.text) is not None


def _within(enhanced: str, code: str) -> bool:
    """Tell whether an enhanced code is the one named or under the subject named: "5.7" has 5.7.1 and not 5.70.1; "" is none."""
    return f"{enhanced}.".startswith(f"{code}.")


def _wait_s(meaning: Meaning, answer: Reply | Fault) -> float | None:
    """Return the rule's wait, lengthened by what the relay itself asks for."""
    if isinstance(answer, Fault) or not meaning.hint or meaning.verdict not in (Verdict.LATER, Verdict.FREE):
        return meaning.wait_s
    hint = wait_hint_s(answer.text)
    return meaning.wait_s if hint is None else max(hint, meaning.wait_s or 0.0)
