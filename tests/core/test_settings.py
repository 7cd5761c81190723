"""The rules between values of the configuration, one table; and what a single value may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from daemon.core import values
from daemon.core.problems import is_loopback, problems_between
from daemon.core.settings import Lease, Mail, Relay, Rule, RuleScope, RuleVerdict, Secret, Settings, Tls, Worker
from daemon.core.smtp import Stage

RELAY = Relay(name="local", host="127.0.0.1", port=25, tls=Tls.NONE)
AWAY = Relay(name="away", host="smtp.example.org")


def changed(section: str, **keys: Any) -> Settings:  # noqa: ANN401  # whatever the section holds
    """Return the default settings with a relay, and with some keys of one section changed."""
    settings = Settings(relay=[RELAY])
    return msgspec.structs.replace(settings, **{section: msgspec.structs.replace(getattr(settings, section), **keys)})


def with_relays(*relays: Relay) -> Settings:
    """Return the default settings with these relays."""
    return Settings(relay=list(relays))


def away(**keys: Any) -> Settings:  # noqa: ANN401  # the same
    """Return the default settings with a relay on another machine."""
    return with_relays(msgspec.structs.replace(AWAY, **keys))


RULE = Rule(name="r", verdict=RuleVerdict.FREE, text="x")


def ruled(**keys: Any) -> Rule:  # noqa: ANN401  # the same
    """Return a rule that is in order but for these keys."""
    return msgspec.structs.replace(RULE, **keys)


def with_rules(*rules: Rule) -> Settings:
    """Return the default settings with these rules for replies."""
    return Settings(rule=list(rules))


BROKEN_RULES = {
    "heartbeats longer than the trust window": (changed("lease", heartbeat_s=7.5), "lease.heartbeat_s"),
    "a heartbeat time-out that eats the trust window": (changed("lease", heartbeat_timeout_s=4.0), "lease.heartbeat_s"),
    "a margin that eats the trust window": (changed("lease", margin_s=6.5), "lease.heartbeat_s"),
    "a lease that is too short": (changed("lease", duration_s=28.5), "lease.heartbeat_s"),
    "doubt before the answer can have come": (changed("lease", in_doubt_delay_s=644.9), "lease.in_doubt_delay_s"),
    "doubt before another relay's answer can have come": (
        with_relays(RELAY, msgspec.structs.replace(AWAY, dot_timeout_s=616.0)),
        "lease.in_doubt_delay_s",
    ),
    "doubt before a function can have ended": (
        msgspec.structs.replace(changed("worker", function_timeout_s=616.0), handlers={"x": "y:z"}),
        "lease.in_doubt_delay_s",
    ),
    "a grace that ends before everybody is back": (changed("lease", takeover_grace_s=5.0), "lease.takeover_grace_s"),
    "a reconnect that takes longer than the grace": (changed("database", reconnect_max_s=7.0), "lease.takeover_grace_s"),
    "a connect that takes longer than the grace": (changed("database", connect_timeout_s=8.0), "lease.takeover_grace_s"),
    "a hard cap below the lease": (changed("lease", hard_cap_s=29.0), "lease.hard_cap_s"),
    "no queue": (changed("worker", queues=[]), "worker.queues"),
    "a queue twice": (changed("worker", queues=["a", "b", "a"]), "worker.queues"),
    "a longest pause below the first": (changed("retry", cap_s=59.0), "retry.cap_s"),
    "two relays of one name": (with_relays(RELAY, RELAY), "relay"),
    "a username sent in the clear": (away(tls=Tls.NONE, username="u", password=Secret("p")), "relay[0].tls"),
    "a password without a username": (away(password=Secret("p")), "relay[0].username"),
    "authorities without encryption": (away(tls=Tls.NONE, ca_file="ca.pem"), "relay[0].ca_file"),
    "a longest probe below the first": (away(probe_max_s=0.4), "relay[0].probe_max_s"),
    "a name that is no address": (away(ehlo_name="[192.0.2.256]"), "relay[0].ehlo_name"),
    "a name of another family": (away(ehlo_name="[IPv6:192.0.2.1]"), "relay[0].ehlo_name"),
    "a name without its family": (away(ehlo_name="[2001:db8::1]"), "relay[0].ehlo_name"),
    "a burst without a rate": (away(burst=5.0), "relay[0].burst"),
    "a burst that leaves no time": (away(rate_per_s=14.0, burst=3.7), "relay[0].burst"),
    "two rules of one name": (with_rules(RULE, RULE), "rule"),
    "a rule for everything": (with_rules(ruled(text="")), "rule[0].text"),
    "a rule that isn't a pattern": (with_rules(ruled(text="(")), "rule[0].text"),
    "a rule that repeats without end": (with_rules(ruled(text="x{99999999999}")), "rule[0].text"),
    "a message to blame before there is one": (
        with_rules(ruled(verdict=RuleVerdict.LATER, stages=[Stage.AUTH])),
        "rule[0].verdict",
    ),
    "a message refused before there is one": (
        with_rules(ruled(verdict=RuleVerdict.REJECTED, stages=[Stage.EHLO])),
        "rule[0].verdict",
    ),
    "a relay's pause for a message": (with_rules(ruled(verdict=RuleVerdict.PAUSE, scope=RuleScope.MESSAGE)), "rule[0].scope"),
    "a message put off for a relay": (with_rules(ruled(verdict=RuleVerdict.LATER, scope=RuleScope.RELAY)), "rule[0].scope"),
    "a recipient at the dot": (
        with_rules(ruled(verdict=RuleVerdict.LATER, scope=RuleScope.RECIPIENT, stages=[Stage.RCPT, Stage.DOT])),
        "rule[0].scope",
    ),
}

KEPT_RULES = {
    "the defaults": Settings(),
    "the defaults with a relay": with_relays(RELAY),
    "doubt exactly when the last answer can have come": changed("lease", in_doubt_delay_s=645.0),
    "a hard cap of one lease": changed("lease", hard_cap_s=30.0),
    "login without encryption on this machine": with_relays(
        msgspec.structs.replace(RELAY, username="u", password=Secret("p")),
        msgspec.structs.replace(RELAY, name="b", host="localhost", username="u", password=Secret("p")),
        msgspec.structs.replace(RELAY, name="c", host="::1", username="u", password=Secret("p")),
    ),
    "login without encryption that is allowed": away(
        tls=Tls.NONE, username="u", password=Secret("p"), allow_auth_without_tls=True
    ),
    "the least burst": away(rate_per_s=10.0, burst=3.0),
    "a rate whose burst follows from it": away(rate_per_s=0.1),
    "an address as a name": with_relays(
        msgspec.structs.replace(RELAY, ehlo_name="[192.0.2.1]"),
        msgspec.structs.replace(RELAY, name="b", ehlo_name="[IPv6:2001:db8::1]"),
    ),
    "rules": with_rules(
        ruled(codes=["451"], text=""),
        ruled(name="s", stages=[Stage.AUTH], verdict=RuleVerdict.PAUSE, scope=RuleScope.RELAY),
        ruled(name="t", stages=[Stage.RCPT], verdict=RuleVerdict.REJECTED, scope=RuleScope.RECIPIENT),
    ),
    "no encryption and no login": away(tls=Tls.NONE),
    "login with encryption": away(username="u", password=Secret("p")),
}


@pytest.mark.parametrize(("settings", "path"), BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_a_broken_rule_is_named_by_its_key(settings: Settings, path: str) -> None:
    """Each of these breaks exactly one rule."""
    assert [problem.path for problem in problems_between(settings)] == [path]


@pytest.mark.parametrize("settings", KEPT_RULES.values(), ids=KEPT_RULES)
def test_kept_rules_say_nothing(settings: Settings) -> None:
    """What stands exactly at a limit, and what is allowed on purpose, is no problem."""
    assert list(problems_between(settings)) == []


def test_three_heartbeats_must_be_shorter_than_the_window_and_not_just_as_long() -> None:
    """At equality the third answer may come in the moment in which the trust ends."""
    exactly = Settings(lease=Lease(heartbeat_s=7.0, heartbeat_timeout_s=4.0, duration_s=30.0, margin_s=5.0))
    assert [problem.path for problem in problems_between(exactly)] == ["lease.heartbeat_s"]


def test_a_daemon_that_sends_needs_a_relay_or_a_handler() -> None:
    """Without both there is nothing that it could ever do; an operator's command needs neither."""
    assert [problem.path for problem in problems_between(Settings(), sends=True)] == ["relay"]
    assert list(problems_between(Settings(handlers={"report.build": "reports:build"}), sends=True)) == []
    assert list(problems_between(Settings())) == []


def test_every_queue_of_a_daemon_that_sends_needs_a_relay() -> None:
    """A queue whose jobs nobody could send is a mistake, unless a handler may be what its jobs are for."""
    bound = with_relays(msgspec.structs.replace(RELAY, queues=["bulk"]))
    assert [problem.path for problem in problems_between(bound, sends=True)] == ["worker.queues"]
    assert list(problems_between(bound)) == []
    assert list(problems_between(msgspec.structs.replace(bound, worker=Worker(queues=["bulk"])), sends=True)) == []
    assert list(problems_between(msgspec.structs.replace(bound, handlers={"report": "reports:build"}), sends=True)) == []
    both = with_relays(msgspec.structs.replace(RELAY, queues=["bulk"]), AWAY)
    assert list(problems_between(both, sends=True)) == []


def test_a_username_without_its_password_matters_only_to_who_sends() -> None:
    """An operator who lists jobs may not be allowed to read the relay's password."""
    settings = away(username="u")
    assert [problem.path for problem in problems_between(settings, sends=True)] == ["relay[0].password"]
    assert list(problems_between(settings)) == []


@pytest.mark.parametrize(("settings", "path"), BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_a_rule_names_the_keys_it_looks_at(settings: Settings, path: str) -> None:
    """Each key that a rule concerns exists, or the rule would speak while that key is wrong."""
    relays: dict[str, Any] = {f"relay[{index}]": relay for index, relay in enumerate(settings.relay)}
    relays |= {f"rule[{index}]": rule for index, rule in enumerate(settings.rule)}
    sections: Mapping[str, Any] = {name: getattr(settings, name) for name in ("database", "lease", "retry", "worker")} | relays
    for problem in problems_between(settings):
        assert problem.path == path
        for key in problem.concerns:
            section, _, name = key.rpartition(".")
            assert hasattr(sections[section], name)


GOOD_VALUES = [
    *((values.Seconds, value) for value in (0.001, 1, 2_592_000)),
    *((values.SecondsOrNever, value) for value in (0, 0.5)),
    *((values.Count, value) for value in (1, 1000)),
    *((values.Port, value) for value in (1, 65_535)),
    *((values.Name, value) for value in ("default", "a.b:c-d_E9", "x" * 100)),
    *((values.Dsn, value) for value in ("postgresql:///mailslot", "postgres://u@h:5432/d?application_name=x")),
    *((values.Host, value) for value in ("smtp.example.org", "127.0.0.1", "2001:db8::1", "fe80::1%eth0")),
    *((values.EhloName, value) for value in ("", "mail.example.org", "[192.0.2.1]", "[IPv6:2001:db8::1]")),
    *((values.DomainOrEmpty, value) for value in ("", "example.org", "xn--bcher-kva.example")),
    *((values.AddressOrEmpty, value) for value in ("", "events@example.org", "jürgen@example.org")),
    *((values.MailboxOrEmpty, value) for value in ("", "events@example.org", "Events <events@example.org>", "<a@b.org>")),
    *((values.ErrorCode, value) for value in ("4", "55", "454")),
    *((values.EnhancedCode, value) for value in ("4.7", "5.1.10")),
    *((values.DsnNotify, value) for value in ("", "never", "failure", "failure,delay", "success,failure,delay")),
    *((values.PerSecond, value) for value in (0, 0.1, 14)),
    *((values.Function, value) for value in ("reports:build", "reports.jobs:build_1")),
]

BAD_VALUES = [
    *((values.Seconds, value) for value in (0, -1, 2_592_001, float("nan"), float("inf"), "1", True)),
    *((values.SecondsOrNever, value) for value in (-0.1, float("nan"), float("inf"))),
    *((values.Count, value) for value in (0, 1001, 1.5, "5")),
    *((values.CountOrNone, value) for value in (-1, 1001)),
    *((values.PoolSize, value) for value in (0, 101)),
    *((values.Port, value) for value in (0, 65_536, "25")),
    *((values.Bytes, value) for value in (0, 1023, 1_073_741_825)),
    *((values.Name, value) for value in ("", "a b", "x" * 101, "a\n", "ü", "a/b")),
    *((values.NameOrEmpty, value) for value in ("a b", "x" * 101, "a\n")),
    *((values.Dsn, value) for value in ("", "mysql://h/d", "host=localhost")),
    *((values.Host, value) for value in ("", "smtp example", "smtp.example.org\r\nX", "[::1]", "smtp.example.org/x")),
    *(
        (values.EhloName, value)
        for value in ("mail", "localhost", "a b", "mail\r\nRCPT TO:<x@y>", "-a", "a..b", "[192.0.2.1", "x" * 254)
    ),
    *((values.DomainOrEmpty, value) for value in ("example.org>", "a@b", "a b", ".org")),
    *(
        (values.AddressOrEmpty, value)
        for value in ("events", "a@b@c.org", "a b@c.org", "<a@b.org>", "a@b.org\n", "a@b.org SIZE=1")
    ),
    *((values.MailboxOrEmpty, value) for value in ("Events", "Events <events>", "E <a@b.org> x", "E\r\nBcc: x <a@b.org>")),
    *((values.ErrorCode, value) for value in ("", "2", "250", "3", "354", "45x", "4544", "1")),
    *((values.EnhancedCode, value) for value in ("2.0.0", "4", "4.", "4.7.1.1", "5.1.1000")),
    *((values.DsnNotify, value) for value in ("never,failure", "fail", "failure, delay", "failure,", "FAILURE")),
    *((values.PerSecond, value) for value in (-1, float("nan"), float("inf"))),
    *((values.Function, value) for value in ("reports", "reports:", ":build", "reports.jobs.build", "a:b:c", "a b:c", "1a:b")),
]


@pytest.mark.parametrize(("kind", "value"), GOOD_VALUES)
def test_a_good_value_passes(kind: Any, value: object) -> None:  # noqa: ANN401  # types have no common type
    """The limits themselves are good values."""
    assert msgspec.convert(value, kind) == value


@pytest.mark.parametrize(("kind", "value"), BAD_VALUES)
def test_a_bad_value_is_refused(kind: Any, value: object) -> None:  # noqa: ANN401  # the same
    """What is beyond a limit, of another type, or could end a line of SMTP is refused."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, kind)


def test_a_secret_shows_itself_to_nobody_but_who_asks() -> None:
    """Neither printing nor formatting nor comparing gives it away."""
    secret = Secret("geheim")
    assert "geheim" not in f"{secret} {secret!r} {[secret]} {Relay(name='a', host='b', password=secret)}"
    assert secret.reveal() == "geheim"
    assert secret == Secret("geheim")
    assert secret != Secret("other")
    assert secret != "geheim"
    assert len({secret, Secret("geheim")}) == 1


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("::2", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, *, loopback: bool) -> None:
    """A name that merely begins like this machine's isn't this machine."""
    assert is_loopback(host) is loopback


def test_sections_refuse_keys_that_they_dont_have() -> None:
    """So that a misspelt key never passes in silence."""
    for section in (Worker, Lease, Mail, Settings):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"no_such_key": 1}, section)
