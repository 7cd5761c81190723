"""The operator's rules: what they change, and what they never can."""

from __future__ import annotations

from itertools import product

import pytest

from daemon.core.reply import ReplyReader
from daemon.core.rules import Origin, origin, table
from daemon.core.settings import Retry, Rule, RuleScope, RuleVerdict
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import RULES, Decision, Scope, Verdict, decide

DOT, RCPT, MAIL, AUTH = Stage.DOT, Stage.RCPT, Stage.MAIL, Stage.AUTH


def reply_of(said: str) -> Reply:
    """Read a reply as the connection would."""
    (reply,) = ReplyReader().feed(said.replace("\n", "\r\n").encode() + b"\r\n")
    assert isinstance(reply, Reply)
    return reply


def decided(stage: Stage, said: str | Fault, *rules: Rule) -> Decision:
    """Decide with these rules in front."""
    answer = said if isinstance(said, Fault) else reply_of(said)
    return decide(Report("relay", stage, answer), rules=table(rules, Retry()))


SLOW = Rule(name="slow", verdict=RuleVerdict.FREE, codes=["451"], text="back ?off", reason="rate_limited", wait_s=20.0)


def test_a_rule_stands_in_front_of_the_built_in_ones() -> None:
    """The same reply means something else once a rule says so, and the decision names the rule."""
    said = "451 4.3.0 Backoff, please"
    assert decided(DOT, said) == Decision(Verdict.LATER, Scope.MESSAGE, "deferred", None, "content_deferred")
    assert decided(DOT, said, SLOW) == Decision(Verdict.FREE, Scope.RELAY, "rate_limited", 20.0, "config.slow")


def test_the_first_of_several_rules_decides() -> None:
    """In the order of the file."""
    other = Rule(name="other", verdict=RuleVerdict.REJECTED, codes=["4"])
    assert decided(DOT, "451 back off", SLOW, other).rule == "config.slow"
    assert decided(DOT, "451 back off", other, SLOW).rule == "config.other"


@pytest.mark.parametrize(
    ("stage", "said", "fits"),
    [
        (DOT, "451 4.3.0 please BACK OFF now", True),
        (DOT, "451-4.3.0 please back\n451 4.3.0 off now", True),
        (DOT, "452 4.3.0 back off", False),
        (DOT, "451 4.3.0 come back later", False),
        (AUTH, "451 4.3.0 back off", True),
    ],
)
def test_each_condition_must_fit(stage: Stage, said: str, fits: bool) -> None:  # noqa: FBT001 - a table
    """Code and text here; several lines of a reply are one text."""
    assert (decided(stage, said, SLOW).rule == "config.slow") is fits


def test_stages_and_enhanced_codes_are_conditions_too() -> None:
    """A subject has all of its codes."""
    rule = Rule(name="policy", verdict=RuleVerdict.LATER, stages=[RCPT], enhanced=["5.7"])
    assert decided(RCPT, "550 5.7.99 no", rule) == Decision(Verdict.LATER, Scope.RECIPIENT, "policy", None, "config.policy")
    assert decided(DOT, "550 5.7.99 no", rule).rule == "content_policy"
    assert decided(RCPT, "550 5.70.1 no", rule).rule == "rcpt_refused"
    assert decided(RCPT, "550 no", rule).rule == "rcpt_refused"


@pytest.mark.parametrize(
    ("verdict", "stages", "scope", "expected"),
    [
        (RuleVerdict.PAUSE, [], RuleScope.AUTO, Scope.RELAY),
        (RuleVerdict.FREE, [RCPT], RuleScope.AUTO, Scope.RELAY),
        (RuleVerdict.LATER, [RCPT], RuleScope.AUTO, Scope.RECIPIENT),
        (RuleVerdict.LATER, [RCPT, MAIL], RuleScope.AUTO, Scope.MESSAGE),
        (RuleVerdict.REJECTED, [], RuleScope.AUTO, Scope.MESSAGE),
        (RuleVerdict.REJECTED, [RCPT], RuleScope.MESSAGE, Scope.MESSAGE),
    ],
)
def test_what_a_rule_is_about_follows_from_it(
    verdict: RuleVerdict, stages: list[Stage], scope: RuleScope, expected: Scope
) -> None:
    """Unless it is said."""
    rule = Rule(name="r", verdict=verdict, stages=stages, scope=scope, text="x")
    assert decided(RCPT, "450 x", rule).scope is expected


def test_a_relays_own_wait_lengthens_a_rules_unless_it_may_not() -> None:
    """Never shortens it; a rule with hint = false is deaf."""
    said = "451 back off for {} seconds"
    deaf = Rule(name="deaf", verdict=RuleVerdict.FREE, codes=["451"], wait_s=20.0, hint=False)
    assert [decided(DOT, said.format(n), SLOW).wait_s for n in (5, 60, 999_999)] == [20.0, 60.0, 14_400.0]
    assert [decided(DOT, said.format(n), deaf).wait_s for n in (5, 60)] == [20.0, 20.0]


WIDEST = [
    rule
    for verdict in RuleVerdict
    for rule in (
        Rule(name=f"{verdict}-codes", verdict=verdict, codes=["4", "5"]),
        Rule(name=f"{verdict}-text", verdict=verdict, text="^"),
    )
]
ANSWERS = [*Fault, *(Reply(code, None, "") for code in range(200, 600))]


@pytest.mark.parametrize("rule", WIDEST, ids=lambda rule: rule.name)
@pytest.mark.parametrize("stage", list(Stage))
def test_no_rule_touches_what_is_sent_missing_or_positive(rule: Rule, stage: Stage) -> None:
    """The widest rule of each verdict changes nothing but 4yz and 5yz, and makes nothing sent or doubtful."""
    for answer, reused, own in product(ANSWERS, (False, True), (False, True)):
        report = Report("relay", stage, answer, reused)
        before = decide(report, configured_sender=own)
        after = decide(report, configured_sender=own, rules=table([rule], Retry()))
        if isinstance(answer, Fault) or answer.code < 400:
            assert after == before
        else:
            assert after.verdict not in {Verdict.SENT, Verdict.DOUBT}
            assert (after.verdict in {Verdict.FREE, Verdict.PAUSE}) == (after.scope is Scope.RELAY)


def test_a_rule_about_messages_leaves_the_opening_alone() -> None:
    """Nothing was said about a message before MAIL, so no attempt is used up there."""
    rule = Rule(name="all", verdict=RuleVerdict.REJECTED, codes=["4", "5"])
    assert decided(AUTH, "535 5.7.8 no", rule).verdict is Verdict.PAUSE
    assert decided(MAIL, "535 5.7.8 no", rule).verdict is Verdict.REJECTED


def test_greylists_are_waited_for_as_long_as_the_configuration_says() -> None:
    """In each of the rules that speak of greylists, and nowhere else; a longer hint still counts."""
    rules = table([], Retry(greylist_s=77.0))
    changed = [rule.name for rule, built_in in zip(rules, RULES, strict=True) if rule != built_in]
    assert changed == ["greylisted", "greylisted_late", "rcpt_greylist_codes", "rcpt_greylist_policy"]
    for said, wait_s in (("450 4.2.0 Greylisted", 77.0), ("450 4.2.0 later", 77.0), ("450 Greylisted for 5 minutes", 300.0)):
        assert decide(Report("relay", RCPT, reply_of(said)), rules=rules).wait_s == wait_s


def test_a_rules_name_tells_where_it_comes_from() -> None:
    """Also of a rule that is called like a built-in one."""
    assert (origin("config.ses_rate"), origin("ses_rate"), origin("dot_accepted")) == (
        Origin.CONFIG,
        Origin.PROVIDER,
        Origin.BUILT_IN,
    )
