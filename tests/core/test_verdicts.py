"""The outcome policy, case by case."""

from __future__ import annotations

from itertools import product

import pytest

from daemon.core.reply import ReplyReader
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import BEFORE_DOT, RULES, Decision, Scope, Verdict, decide, stale

C, G, E, T, A = Stage.CONNECT, Stage.GREETING, Stage.EHLO, Stage.TLS, Stage.AUTH
M, R, D, B, DOT = Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.BODY, Stage.DOT
RECIPIENT, MESSAGE, RELAY = Scope.RECIPIENT, Scope.MESSAGE, Scope.RELAY
SENT, LATER, REJECTED, FREE, PAUSE, DOUBT = Verdict

# stage, what came, verdict, scope, reason, wait, rule
TABLE = [
    # providers
    (DOT, "454 Throttling failure: Maximum sending rate exceeded.", FREE, RELAY, "rate_limited", 5, "ses_rate"),
    (DOT, "454 Throttling failure: Daily message quota exceeded.", PAUSE, RELAY, "quota_used_up", 1800, "ses_quota"),
    (M, "421 4.7.0 Closed. Maximum message count per session reached.", FREE, RELAY, "session_limit", None, "ses_session"),
    (M, "451 4.4.2 Timeout waiting for data from client.", FREE, RELAY, "session_limit", None, "ses_idle"),
    (G, "421 Too many concurrent SMTP connections", FREE, RELAY, "greeting_refused", None, "greeting"),
    (DOT, "554 Message rejected: Email address is not verified.", PAUSE, RELAY, "sender_refused", None, "sender"),
    (M, "432 4.3.2 Concurrent connections limit exceeded.", FREE, RELAY, "too_many_connections", 5, "m365_connections"),
    (
        A,
        "432 4.3.2 STOREDRV.ClientSubmit; sender thread limit exceeded",
        FREE,
        RELAY,
        "too_many_connections",
        5,
        "m365_connections",
    ),
    (DOT, "554 5.2.0 STOREDRV; SubmissionQuotaExceededException", PAUSE, RELAY, "quota_used_up", 1800, "m365_quota"),
    (DOT, "554 5.2.252 SendAsDenied; x not allowed", PAUSE, RELAY, "sender_refused", None, "sender"),
    (M, "550 5.1.90 Your message can't be sent", PAUSE, RELAY, "quota_used_up", 1800, "m365_daily"),
    (M, "451 4.7.500 Server busy. Please try again later", FREE, RELAY, "rate_limited", 5, "m365_busy"),
    (M, "450 4.2.1 Peak SMTP relay limit exceeded", FREE, RELAY, "rate_limited", 5, "gmail_peak"),
    (DOT, "421 4.7.28 unusual rate of mail", FREE, RELAY, "rate_limited", 5, "gmail_rate"),
    (DOT, "550 5.4.5 Daily user sending limit exceeded.", PAUSE, RELAY, "quota_used_up", 1800, "gmail_daily"),
    (A, "454 4.7.0 Too many login attempts", FREE, RELAY, "auth_unavailable", None, "auth_unavailable"),
    (M, "403 You are not authorized to send from that email address", PAUSE, RELAY, "sender_refused", None, "sendgrid_sender"),
    (G, "421 4.7.0 [TSS04] Messages temporarily deferred", PAUSE, RELAY, "rate_limited", 7200, "yahoo_suspended"),
    (R, "421 Max message per connection reached", FREE, RELAY, "session_limit", None, "yahoo_session"),
    # after the dot
    (DOT, "250 2.0.0 queued as 4F1", SENT, MESSAGE, "accepted", None, "dot_accepted"),
    (DOT, "200 fine", SENT, MESSAGE, "accepted", None, "dot_accepted"),
    (DOT, "251 fine", SENT, MESSAGE, "accepted", None, "dot_accepted"),
    (DOT, "250 Too many connections, rate limit, user unknown", SENT, MESSAGE, "accepted", None, "dot_accepted"),
    (DOT, Fault.CLOSED, DOUBT, MESSAGE, "connection_closed", None, "dot_unanswered"),
    (DOT, Fault.TIMEOUT, DOUBT, MESSAGE, "timeout", None, "dot_unanswered"),
    (DOT, Fault.GARBAGE, DOUBT, MESSAGE, "garbled_reply", None, "dot_unanswered"),
    (DOT, "354 go ahead", DOUBT, MESSAGE, "out_of_step", None, "dot_no_answer"),
    # no reply before it
    (C, Fault.REFUSED, FREE, RELAY, "connection_refused", None, "no_reply"),
    (C, Fault.NAME_UNAVAILABLE, FREE, RELAY, "name_unavailable", None, "no_reply"),
    (C, Fault.NAME_UNKNOWN, FREE, RELAY, "name_unknown", None, "no_reply"),
    (C, Fault.UNREACHABLE, FREE, RELAY, "unreachable", None, "no_reply"),
    (C, Fault.TIMEOUT, FREE, RELAY, "timeout", None, "no_reply"),
    (T, Fault.TIMEOUT, FREE, RELAY, "timeout", None, "no_reply"),
    (T, Fault.CLOSED, FREE, RELAY, "connection_closed", None, "no_reply"),
    (T, Fault.TLS_NOT_OFFERED, PAUSE, RELAY, "tls_not_offered", None, "setup"),
    (T, Fault.TLS_FAILED, PAUSE, RELAY, "tls_failed", None, "setup"),
    (A, Fault.AUTH_NOT_OFFERED, PAUSE, RELAY, "auth_not_offered", None, "setup"),
    (M, Fault.TOO_LARGE, REJECTED, MESSAGE, "message_too_large", None, "too_large_here"),
    (M, Fault.SMTPUTF8_NOT_OFFERED, REJECTED, MESSAGE, "smtputf8_not_offered", None, "smtputf8_missing"),
    (M, Fault.CLOSED, FREE, RELAY, "connection_closed", None, "no_reply"),
    (R, Fault.TIMEOUT, FREE, RELAY, "timeout", None, "no_reply"),
    (D, Fault.GARBAGE, FREE, RELAY, "garbled_reply", None, "no_reply"),
    (B, Fault.CLOSED, LATER, MESSAGE, "connection_closed", None, "body_dropped"),
    (B, Fault.TIMEOUT, LATER, MESSAGE, "timeout", None, "body_dropped"),
    (B, Fault.GARBAGE, FREE, RELAY, "garbled_reply", None, "no_reply"),
    # the relay's or the configuration's fault
    (G, "554 no", FREE, RELAY, "greeting_refused", None, "greeting"),
    (E, "504 5.5.2 need a name", PAUSE, RELAY, "ehlo_refused", None, "ehlo_refused"),
    (E, "421 later", FREE, RELAY, "relay_unavailable", None, "opening"),
    (T, "454 4.7.0 TLS not available", FREE, RELAY, "relay_unavailable", None, "opening"),
    (T, "501 5.5.4 no", PAUSE, RELAY, "tls_failed", None, "tls_refused"),
    (A, "535 5.7.8 authentication failed", PAUSE, RELAY, "auth_failed", None, "auth_failed"),
    (A, "334 more", PAUSE, RELAY, "auth_failed", None, "auth_failed"),
    (M, "530 5.7.0 Authentication required", PAUSE, RELAY, "auth_required", None, "log_in"),
    (M, "550 5.7.1 Client was not authenticated; you must log in", PAUSE, RELAY, "auth_required", None, "log_in_words"),
    (R, "554 5.7.1 <a@x.org>: Relay access denied", PAUSE, RELAY, "relay_denied", None, "relay_denied"),
    (R, "454 4.7.1 relaying denied", PAUSE, RELAY, "relay_denied", None, "relay_denied"),
    (R, "550 5.7.54 Unable to relay recipient", PAUSE, RELAY, "relay_denied", None, "relay_denied"),
    (M, "550 Sender address rejected", PAUSE, RELAY, "sender_refused", None, "sender"),
    (M, "553 5.1.8 domain of sender does not resolve", PAUSE, RELAY, "sender_refused", None, "sender_codes"),
    (M, "550 5.7.1 no", PAUSE, RELAY, "sender_refused", None, "sender_codes"),
    (M, "421 4.3.2 shutting down", FREE, RELAY, "relay_closing", None, "closing"),
    (R, "421 4.3.2 shutting down", FREE, RELAY, "relay_closing", None, "closing"),
    (B, "421 4.3.2 shutting down", LATER, MESSAGE, "relay_closing", None, "body_closing"),
    (D, "250 what", FREE, RELAY, "out_of_step", None, "desync"),
    (B, "250 what", FREE, RELAY, "out_of_step", None, "desync"),
    (M, "451 Too many connections from you", FREE, RELAY, "rate_limited", 5, "rate"),
    (DOT, "451 4.7.1 rate limit, try again in 30 seconds", FREE, RELAY, "rate_limited", 30, "rate"),
    # MAIL
    (M, "552 5.3.4 message too big", REJECTED, MESSAGE, "message_too_large", None, "mail_size"),
    (M, "552 too big", REJECTED, MESSAGE, "message_too_large", None, "mail_552"),
    (M, "555 5.5.4 unsupported option", REJECTED, MESSAGE, "parameter_refused", None, "mail_parameter"),
    (M, "554 transaction failed", REJECTED, MESSAGE, "refused", None, "mail_refused"),
    (M, "451 4.3.0 try later", LATER, MESSAGE, "deferred", None, "mail_deferred"),
    (M, "450 4.7.1 policy", LATER, MESSAGE, "deferred", None, "mail_deferred"),
    (M, "450 4.7.1 Greylisted", LATER, MESSAGE, "greylisted", 300, "greylisted_late"),
    # RCPT
    (R, "452 4.5.3 Too many recipients", LATER, RECIPIENT, "too_many_recipients", 0, "rcpt_too_many"),
    (R, "552 too many recipients", LATER, RECIPIENT, "too_many_recipients", 0, "rcpt_too_many_words"),
    (R, "552 5.2.2 over quota", LATER, RECIPIENT, "mailbox_full", None, "rcpt_full"),
    (R, "452 mailbox full", LATER, RECIPIENT, "mailbox_full", None, "rcpt_full_words"),
    (R, "450 4.2.0 Greylisted, try again in 300 seconds", LATER, RECIPIENT, "greylisted", 300, "greylisted"),
    (R, "450 4.2.0 Greylisted, try again in 10 minutes", LATER, RECIPIENT, "greylisted", 600, "greylisted"),
    (R, "450 4.2.0 Graylisted, try again in 10 seconds", LATER, RECIPIENT, "greylisted", 300, "greylisted"),
    (R, "450 4.2.0 later", LATER, RECIPIENT, "greylisted", 300, "rcpt_greylist_codes"),
    (R, "451 4.7.1 please come back", LATER, RECIPIENT, "greylisted", 300, "rcpt_greylist_policy"),
    (R, "552 5.3.4 too big for him", REJECTED, MESSAGE, "message_too_large", None, "rcpt_size"),
    (R, "550 5.1.1 no such user", REJECTED, RECIPIENT, "mailbox_unknown", None, "rcpt_unknown"),
    (R, "550 5.1.10 not found", REJECTED, RECIPIENT, "mailbox_unknown", None, "rcpt_unknown"),
    (R, "550 5.1.2 bad domain", REJECTED, RECIPIENT, "domain_unknown", None, "rcpt_domain"),
    (R, "501 5.1.3 bad syntax", REJECTED, RECIPIENT, "address_invalid", None, "rcpt_address"),
    (R, "550 5.2.1 disabled", REJECTED, RECIPIENT, "mailbox_disabled", None, "rcpt_disabled"),
    (R, "550 5.7.1 spam", REJECTED, RECIPIENT, "policy_refused", None, "rcpt_policy"),
    (R, "550 user unknown", REJECTED, RECIPIENT, "mailbox_unknown", None, "rcpt_unknown_words"),
    (R, "551 see elsewhere", REJECTED, RECIPIENT, "mailbox_moved", None, "rcpt_moved"),
    (R, "553 odd", REJECTED, RECIPIENT, "address_invalid", None, "rcpt_invalid"),
    (R, "556 no mail here", REJECTED, RECIPIENT, "domain_refuses_mail", None, "rcpt_no_mail"),
    (R, "554 no", REJECTED, RECIPIENT, "recipient_refused", None, "rcpt_refused"),
    (R, "450 4.1.1 busy", LATER, RECIPIENT, "deferred", None, "rcpt_deferred"),
    # DATA, body, dot
    (D, "451 local error", LATER, MESSAGE, "deferred", None, "content_deferred"),
    (D, "554 no", REJECTED, MESSAGE, "message_refused", None, "content_refused"),
    (B, "552 5.3.4 too big", REJECTED, MESSAGE, "message_too_large", None, "content_size"),
    (DOT, "552 no", REJECTED, MESSAGE, "message_too_large", None, "content_552"),
    (DOT, "552 5.2.2 mailbox full", LATER, MESSAGE, "mailbox_full", None, "content_full"),
    (DOT, "554 5.7.1 message rejected", REJECTED, MESSAGE, "policy_refused", None, "content_policy"),
    (DOT, "554 5.6.0 bad form", REJECTED, MESSAGE, "content_refused", None, "content_form"),
    (DOT, "550 no", REJECTED, MESSAGE, "message_refused", None, "content_refused"),
    (DOT, "451 4.3.0 Mail server temporarily rejected message", LATER, MESSAGE, "deferred", None, "content_deferred"),
    (DOT, "421 4.3.2 shutting down", LATER, MESSAGE, "relay_closing", None, "dot_closing"),
    (DOT, "451 wait 10 minutes", LATER, MESSAGE, "deferred", 600, "content_deferred"),
]

REUSED = [
    (M, "503 5.5.1 bad sequence", FREE, RELAY, "out_of_step", None, "stale"),
    (M, "503 bad sequence", FREE, RELAY, "out_of_step", None, "stale_bare"),
    (D, "500 what", FREE, RELAY, "out_of_step", None, "stale_bare"),
    (R, "503 MAIL first", FREE, RELAY, "out_of_step", None, "stale_rcpt"),
    (R, "501 bad address", REJECTED, RECIPIENT, "address_invalid", None, "rcpt_invalid"),
    (M, "501 5.1.7 bad address", PAUSE, RELAY, "sender_refused", None, "sender_codes"),
    (M, "504 5.5.4 no", FREE, RELAY, "out_of_step", None, "stale"),
    (B, Fault.CLOSED, FREE, RELAY, "connection_closed", None, "no_reply"),
    (B, "421 4.4.2 timeout", FREE, RELAY, "relay_closing", None, "closing"),
    (DOT, Fault.CLOSED, DOUBT, MESSAGE, "connection_closed", None, "dot_unanswered"),
]

JOBS_OWN_SENDER = [
    (M, "550 Sender address rejected", "job_sender"),
    (M, "550 5.7.1 no", "job_sender_codes"),
    (DOT, "554 Message rejected: Email address is not verified.", "job_sender"),
    (M, "403 You are not authorized to send from that email address", "sendgrid_job_sender"),
]


def answer_of(said: str | Fault) -> Reply | Fault:
    """Read a reply as the connection would."""
    if isinstance(said, Fault):
        return said
    (reply,) = ReplyReader().feed(said.encode() + b"\r\n")
    assert isinstance(reply, Reply)
    return reply


Case = tuple[Stage, str | Fault, Verdict, Scope, str, float | None, str]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case[6]}-{case[0]}")
def test_answer_on_a_fresh_connection_means(case: Case) -> None:
    """Each line of the outcome table."""
    stage, said, *_ = case
    assert decide(Report("relay", stage, answer_of(said))) == Decision(*case[2:])


@pytest.mark.parametrize("case", REUSED, ids=lambda case: f"{case[6]}-{case[0]}")
def test_answer_on_a_reused_connection_means(case: Case) -> None:
    """What a connection's age explains is nobody's fault; after the dot it explains nothing."""
    stage, said, *_ = case
    assert decide(Report("relay", stage, answer_of(said), reused=True)) == Decision(*case[2:])


@pytest.mark.parametrize(("stage", "said", "rule"), JOBS_OWN_SENDER)
def test_jobs_own_bad_sender_stops_no_other_job(stage: Stage, said: str, rule: str) -> None:
    """A sender that came with the job is refused with it; only the configured one pauses the relay."""
    decision = decide(Report("relay", stage, answer_of(said)), configured_sender=False)
    assert decision == Decision(REJECTED, MESSAGE, "sender_refused", None, rule)


def test_every_rule_has_a_case() -> None:
    """No rule stands behind one that always takes its place, and none goes untested."""
    tested = {case[6] for case in TABLE} | {case[6] for case in REUSED} | {rule for _, _, rule in JOBS_OWN_SENDER}
    assert [rule.name for rule in RULES if rule.name not in tested] == []
    assert len({rule.name for rule in RULES}) == len(RULES)


ANSWERS = [*Fault, *(Reply(code, enhanced, "") for code in range(200, 600) for enhanced in (None, f"{code // 100}.7.1"))]


@pytest.mark.parametrize("stage", list(Stage))
def test_every_report_has_a_decision_that_keeps_the_promises(stage: Stage) -> None:
    """Sent and doubt exist at the dot alone; without a reply before it no attempt is used up but for a fresh body."""
    for answer, reused, own in product(ANSWERS, (False, True), (False, True)):
        decision = decide(Report("relay", stage, answer, reused), configured_sender=own)
        silent = answer in {Fault.CLOSED, Fault.TIMEOUT, Fault.GARBAGE}
        if stage in BEFORE_DOT:
            assert decision.verdict not in {SENT, DOUBT}
            assert not silent or decision.verdict is FREE or (stage is B and not reused)
        else:
            assert (decision.verdict is SENT) == (isinstance(answer, Reply) and answer.positive)
            assert not silent or decision.verdict is DOUBT
        assert (decision.verdict in {FREE, PAUSE}) == (decision.scope is RELAY)
        assert decision.reason


@pytest.mark.parametrize(
    ("stage", "said", "reused", "expected"),
    [
        (M, "421 4.4.2 timeout exceeded", True, True),
        (M, "421 4.4.2 timeout exceeded", False, False),
        (M, Fault.CLOSED, True, True),
        (R, Fault.CLOSED, True, True),
        (D, "503 what", True, True),
        (M, "550 no", True, False),
        (M, Fault.TOO_LARGE, True, False),
        (B, Fault.CLOSED, True, True),
        (B, Fault.CLOSED, False, False),
        (B, "421 closing", True, False),
        (DOT, Fault.CLOSED, True, False),
        (DOT, "421 closing", True, False),
    ],
)
def test_stale_is_what_age_explains_before_the_dot(stage: Stage, said: str | Fault, reused: bool, expected: bool) -> None:  # noqa: FBT001 - a table
    """Only then is a second try at once allowed; past the dot it never is."""
    assert stale(Report("relay", stage, answer_of(said), reused)) is expected
