"""What is wrong between values that are each of the right kind: the rules of the configuration.

A rule is one function's few lines; it yields a `Problem` with the key that has to be changed and a sentence that says what to do.
`settings` says what there is, `values` what one value may be, and `daemon.config` puts all problems together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from daemon.core.message.fields import is_never_set
from daemon.core.settings import Problem, Relay, Rule, RuleScope, RuleVerdict, Settings, Tls
from daemon.core.smtp import Stage

VERP_LOCAL_LIMIT = 64 - 1 - 32
"""RFC 5321 section 4.5.3.1.1, less the separator and a job's uid."""


def problems_between(settings: Settings, *, sends: bool = False) -> Iterator[Problem]:
    """Yield what is wrong with values that are each of the right kind.

    The two inequalities of the lease are the protocol's: three heartbeats must fit into the trust window, and nobody may call a
    mark overdue while its answer can still come. With `sends`, what sending needs must be there as well: a relay, or at least a
    handler of the operator's own, and the password of every relay that has a username.
    """
    yield from _problems_of_lease(settings)
    yield from _problems_of_work(settings)
    yield from _problems_of_mail(settings)
    yield from _repeated("relay", "name", (relay.name for relay in settings.relay))
    yield from _repeated("rule", "name", (rule.name for rule in settings.rule))
    for index, rule in enumerate(settings.rule):
        yield from _problems_of_rule(f"rule[{index}]", rule)
    for index, relay in enumerate(settings.relay):
        yield from _problems_of_relay(f"relay[{index}]", relay)
        if sends and relay.username and relay.password is None:
            yield Problem(
                f"relay[{index}].password",
                "is missing, though a username is set: name a password_file, or provide a credential",
                (f"relay[{index}].username",),
            )
    if sends and not settings.relay and not settings.handlers:
        yield Problem(
            "relay", "no relay is configured, so no mail can be sent: add a [[relay]] with a name and a host", ("handlers",)
        )
    if sends and settings.relay and not settings.handlers:
        yield from _queues_without_relay(settings)


def _problems_of_lease(settings: Settings) -> Iterator[Problem]:
    lease, database = settings.lease, settings.database
    trust_s = lease.duration_s - lease.margin_s
    if not 3 * lease.heartbeat_s + lease.heartbeat_timeout_s < trust_s:
        yield Problem(
            "lease.heartbeat_s",
            "three heartbeats and one heartbeat_timeout_s must take less than lease.duration_s - lease.margin_s, or two lost "
            f"heartbeats cost every lease: 3 x {lease.heartbeat_s:g} + {lease.heartbeat_timeout_s:g} isn't below {trust_s:g}",
            ("lease.heartbeat_timeout_s", "lease.duration_s", "lease.margin_s"),
        )
    function_s = settings.worker.function_timeout_s if settings.handlers else 0.0
    reply_s = max([function_s, *(relay.dot_timeout_s for relay in settings.relay)])
    overdue_s = reply_s + lease.duration_s + lease.takeover_grace_s + lease.margin_s
    if lease.in_doubt_delay_s < overdue_s:
        yield Problem(
            "lease.in_doubt_delay_s",
            "must be at least the largest dot_timeout_s (and worker.function_timeout_s, with handlers) + lease.duration_s + "
            "lease.takeover_grace_s + lease.margin_s, or a job "
            f"is called in doubt while its answer can still come: {lease.in_doubt_delay_s:g} is less than {overdue_s:g}",
            (
                *("lease.duration_s", "lease.takeover_grace_s", "lease.margin_s", "worker.function_timeout_s"),
                *(f"relay[{index}].dot_timeout_s" for index in range(len(settings.relay))),
            ),
        )
    return_s = database.reconnect_max_s + database.connect_timeout_s
    if not lease.takeover_grace_s > return_s:
        yield Problem(
            "lease.takeover_grace_s",
            "must be more than database.reconnect_max_s + database.connect_timeout_s, or a restart of the database is blamed on "
            f"workers that are still reconnecting: {lease.takeover_grace_s:g} isn't above {return_s:g}",
            ("database.reconnect_max_s", "database.connect_timeout_s"),
        )
    if lease.hard_cap_s < lease.duration_s:
        yield Problem(
            "lease.hard_cap_s", f"must be at least lease.duration_s, which is {lease.duration_s:g}", ("lease.duration_s",)
        )


def _problems_of_work(settings: Settings) -> Iterator[Problem]:
    if not settings.worker.queues:
        yield Problem("worker.queues", "name at least one queue")
    yield from _repeated("worker.queues", "", settings.worker.queues)
    if settings.retry.cap_s < settings.retry.first_s:
        yield Problem("retry.cap_s", f"must be at least retry.first_s, which is {settings.retry.first_s:g}", ("retry.first_s",))


def _problems_of_mail(settings: Settings) -> Iterator[Problem]:
    mail, dkim = settings.mail, settings.dkim
    if mail.verp and not mail.envelope_from:
        yield Problem("mail.verp", "needs mail.envelope_from: the address of ours that bounces come to", ("mail.envelope_from",))
    if mail.verp and len(mail.envelope_from.rpartition("@")[0].encode()) > VERP_LOCAL_LIMIT:
        yield Problem(
            "mail.envelope_from",
            f"has more than {VERP_LOCAL_LIMIT} octets before its @, so that verp would make more than 64 of it",
            ("mail.verp",),
        )
    for name in filter(is_never_set, mail.allow_headers):
        yield Problem("mail.allow_headers", f"{name} is never a job's to set")
    if dkim.domain and not dkim.selector:
        yield Problem("dkim.selector", "is missing, though a domain is set: it names the key in the DNS", ("dkim.domain",))
    if dkim.selector and not dkim.domain:
        yield Problem("dkim.domain", "is missing, though a selector is set", ("dkim.selector",))


def _problems_of_relay(path: str, relay: Relay) -> Iterator[Problem]:
    authenticates = bool(relay.username) or relay.password is not None
    if relay.tls is Tls.NONE and authenticates and not (relay.allow_auth_without_tls or is_loopback(relay.host)):
        yield Problem(
            f"{path}.tls",
            f'would send the password to {relay.host} for everybody on the way to read: set tls to "starttls" or "implicit", '
            "or allow_auth_without_tls = true if the way is trusted",
            tuple(f"{path}.{key}" for key in ("host", "username", "password", "allow_auth_without_tls")),
        )
    if relay.tls is Tls.NONE and relay.ca_file:
        yield Problem(f"{path}.ca_file", 'has no meaning with tls = "none"', (f"{path}.tls",))
    if relay.password is not None and not relay.username:
        yield Problem(f"{path}.username", "is missing, though a password is set", (f"{path}.password",))
    if relay.probe_max_s < relay.probe_first_s:
        message = f"must be at least probe_first_s, which is {relay.probe_first_s:g}"
        yield Problem(f"{path}.probe_max_s", message, (f"{path}.probe_first_s",))

    if relay.ehlo_name.startswith("[") and not _is_literal(relay.ehlo_name):
        yield Problem(
            f"{path}.ehlo_name", f"{relay.ehlo_name} is no address in brackets, such as [192.0.2.1] or [IPv6:2001:db8::1]"
        )
    if relay.burst and not relay.rate_per_s:
        yield Problem(f"{path}.burst", "has no meaning without rate_per_s", (f"{path}.rate_per_s",))
    if relay.burst and relay.burst < 1 + relay.rate_per_s / 5:
        yield Problem(
            f"{path}.burst",
            f"must be 0, or at least 1 + rate_per_s / 5, which is {1 + relay.rate_per_s / 5:g}: a mail needs a moment from being "
            "let go to reaching the relay",
            (f"{path}.rate_per_s",),
        )


def _queues_without_relay(settings: Settings) -> Iterator[Problem]:
    if all(relay.queues for relay in settings.relay):
        bound = {queue for relay in settings.relay for queue in relay.queues}
        for queue in settings.worker.queues:
            if queue not in bound:
                yield Problem(
                    "worker.queues",
                    f'no relay serves the queue "{queue}": name it in the queues of a relay, or leave those of one relay empty',
                )


OPENING = frozenset({Stage.BUILD, Stage.CONNECT, Stage.GREETING, Stage.EHLO, Stage.TLS, Stage.AUTH})
"""The stages at which nothing has been said yet about any message."""


def _problems_of_rule(path: str, rule: Rule) -> Iterator[Problem]:
    about_relay = rule.verdict in {RuleVerdict.FREE, RuleVerdict.PAUSE}
    if not (rule.codes or rule.enhanced or rule.text):
        yield Problem(f"{path}.text", "name at least one of codes, enhanced and text, or the rule takes every refusal")
    try:
        re.compile(rule.text)
    except (re.error, RecursionError, OverflowError) as error:
        yield Problem(f"{path}.text", f"isn't a regular expression: {error}")
    if not about_relay and not OPENING.isdisjoint(rule.stages):
        yield Problem(
            f"{path}.verdict",
            'must be "free" or "pause" at stages before mail, where nothing was said yet about a message',
            (f"{path}.stages",),
        )
    if rule.scope is not RuleScope.AUTO and about_relay != (rule.scope is RuleScope.RELAY):
        yield Problem(
            f"{path}.scope",
            'must be "relay" with the verdicts "free" and "pause", and "message" or "recipient" with the others',
            (f"{path}.verdict",),
        )
    if rule.scope is RuleScope.RECIPIENT and set(rule.stages) != {Stage.RCPT}:
        yield Problem(f"{path}.scope", 'can be "recipient" only with stages = ["rcpt"]', (f"{path}.stages",))


def _is_literal(name: str) -> bool:
    address = name.strip("[]")
    try:
        return ip_address(address.removeprefix("IPv6:")).version == (6 if address.startswith("IPv6:") else 4)
    except ValueError:
        return False


def _repeated(path: str, key: str, names: Iterable[str]) -> Iterator[Problem]:
    for name, uses in Counter(names).items():
        if uses > 1:
            yield Problem(path, f'{key} "{name}" is given {uses} times; once is enough'.lstrip())


def is_loopback(host: str) -> bool:
    """Say whether a host's name means this machine, so that nobody else is on the way."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
