"""When a relay takes work and when it is tried again, on a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import Decision, Scope, Verdict, decide
from daemon.smtp.breaker import DOUBTS_IN_A_ROW, FAULTS_IN_A_ROW, UNKNOWN_NAMES, Access, Breaker
from tests.support.exchange import relay_settings


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the present second."""
        return self.now


def decision(verdict: Verdict, scope: Scope = Scope.RELAY, reason: str = "because", wait_s: float | None = None) -> Decision:
    """Return a decision of this kind."""
    return Decision(verdict, scope, reason, wait_s, "rule")


REFUSED = decide(Report("relay", Stage.CONNECT, Fault.REFUSED))
WRONG_PASSWORD = decide(Report("relay", Stage.AUTH, Reply(535, "5.7.8", "no")))
FREE = decision(Verdict.FREE)
DOUBT = decision(Verdict.DOUBT, Scope.MESSAGE)
SENT = decision(Verdict.SENT, Scope.MESSAGE)
REJECTED = decision(Verdict.REJECTED, Scope.RECIPIENT)
LATER = decision(Verdict.LATER, Scope.MESSAGE)


def breaker(clock: Clock, random: float = 1.0, **values: Any) -> Breaker:  # noqa: ANN401 - settings
    """Return a breaker whose jitter is none unless said otherwise."""
    return Breaker(relay_settings(25, **values), clock, lambda: random)


def test_new_relay_is_usable() -> None:
    """Nobody is suspected without a reason."""
    assert breaker(Clock()).usable


def test_one_failed_opening_closes_the_access() -> None:
    """A relay that can't be opened is no use to the next job either."""
    broken = breaker(Clock())
    assert broken.not_opened(REFUSED)
    assert (broken.access, broken.reason) == (Access.UNREACHABLE, "connection_refused")


def test_tries_come_ever_less_often_up_to_the_limit() -> None:
    """Doubling from the first wait to the longest."""
    clock = Clock()
    broken = breaker(clock, probe_first_s=0.5, probe_max_s=4.0)
    waits = []
    for _ in range(6):
        broken.not_opened(REFUSED)
        waits.append(broken.retry_in_s)
        clock.now += broken.retry_in_s
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_jitter_takes_up_to_half_of_the_wait() -> None:
    """Workers that lost the relay together don't come back together."""
    shortest = breaker(Clock(), random=0.0, probe_first_s=1.0)
    shortest.not_opened(REFUSED)
    assert shortest.retry_in_s == 0.5


def test_who_was_on_the_way_changes_nothing() -> None:
    """Twenty openings that fail together are one outage: one change, one step of the doubling."""
    clock = Clock()
    broken = breaker(clock, probe_first_s=0.5)
    assert [broken.not_opened(REFUSED) for _ in range(20)] == [True] + [False] * 19
    clock.now += 0.5
    broken.not_opened(REFUSED)
    assert broken.retry_in_s == 1.0


def test_change_of_reason_is_a_change() -> None:
    """An outage that turns out to be a wrong password is told again."""
    clock = Clock()
    broken = breaker(clock, pause_s=300.0)
    broken.not_opened(REFUSED)
    clock.now += broken.retry_in_s
    assert broken.not_opened(WRONG_PASSWORD)
    assert (broken.access, broken.reason, broken.retry_in_s) == (Access.PAUSED, "auth_failed", 300.0)


def test_pause_is_not_brought_forward() -> None:
    """A late failure of another kind must not make us log in earlier."""
    broken = breaker(Clock(), pause_s=300.0)
    broken.not_opened(WRONG_PASSWORD)
    assert not broken.not_opened(REFUSED)
    assert not broken.transacted(FREE)
    assert (broken.access, broken.retry_in_s) == (Access.PAUSED, 300.0)


def test_first_pause_stands() -> None:
    """Those who were on their way when the quota ran out neither shorten the pause nor announce another."""
    broken = breaker(Clock(), pause_s=300.0)
    broken.transacted(decision(Verdict.PAUSE, wait_s=1800.0))
    assert not broken.transacted(decision(Verdict.PAUSE, reason="other"))
    assert (broken.reason, broken.retry_in_s) == ("because", 1800.0)


def test_wrong_password_is_tried_once_each_pause() -> None:
    """The pause doesn't grow and doesn't shrink."""
    clock = Clock()
    broken = breaker(clock, pause_s=300.0)
    for _ in range(3):
        broken.not_opened(WRONG_PASSWORD)
        assert broken.retry_in_s == 300.0
        clock.now += 300.0


def test_pause_lasts_as_long_as_the_rule_says() -> None:
    """A daily quota isn't asked for each five minutes."""
    broken = breaker(Clock(), pause_s=300.0)
    assert broken.transacted(decision(Verdict.PAUSE, wait_s=1800.0))
    assert broken.retry_in_s == 1800.0


def test_good_try_opens_the_access() -> None:
    """Usable again, with a clean slate for faults."""
    broken = breaker(Clock())
    broken.not_opened(REFUSED)
    broken.recovered()
    assert (broken.usable, broken.reason) == (True, "")


def test_relay_that_opens_and_fails_is_tried_less_and_less() -> None:
    """Only a message that gets through brings the quick tries back."""
    clock = Clock()
    broken = breaker(clock, probe_first_s=0.5, probe_max_s=4.0)
    waits = []
    for _ in range(3):
        for _ in range(FAULTS_IN_A_ROW):
            broken.transacted(FREE)
        waits.append(broken.retry_in_s)
        clock.now += broken.retry_in_s
        broken.recovered()
    assert waits == [0.5, 1.0, 2.0]
    broken.transacted(SENT)
    broken.not_opened(REFUSED)
    assert broken.retry_in_s == 0.5


@pytest.mark.parametrize("between", [SENT, REJECTED, LATER])
def test_faults_count_only_in_a_row(between: Decision) -> None:
    """Any answer about a message or a recipient shows that the relay works."""
    broken = breaker(Clock())
    for _ in range(3):
        for _ in range(FAULTS_IN_A_ROW - 1):
            assert not broken.transacted(FREE)
        broken.transacted(between)
    assert broken.usable


def test_three_doubts_in_a_row_pause_the_relay() -> None:
    """A relay that loses answers turns mail into doubt; refusals between don't count as answers to dots."""
    broken = breaker(Clock(), pause_s=300.0)
    for _ in range(DOUBTS_IN_A_ROW - 1):
        assert not broken.transacted(DOUBT)
        broken.transacted(REJECTED)
    assert broken.transacted(DOUBT)
    assert (broken.access, broken.reason, broken.retry_in_s) == (Access.PAUSED, "answers_missing", 300.0)


def test_pause_for_doubts_starts_the_count_anew() -> None:
    """After the pause a single loss is a single loss."""
    broken = breaker(Clock())
    for _ in range(DOUBTS_IN_A_ROW):
        broken.transacted(DOUBT)
    broken.recovered()
    assert not broken.transacted(DOUBT)
    assert broken.usable


def test_doubts_with_a_sent_between_pause_nothing() -> None:
    """Single losses happen."""
    broken = breaker(Clock())
    for _ in range(5):
        broken.transacted(DOUBT)
        broken.transacted(SENT)
    assert broken.usable


def test_name_that_stays_unknown_is_a_wrong_name() -> None:
    """A name server's hiccup is an outage; the same answer again and again is configuration."""
    clock = Clock()
    broken = breaker(clock, pause_s=300.0)
    unknown = decide(Report("relay", Stage.CONNECT, Fault.NAME_UNKNOWN))
    accesses = []
    for _ in range(UNKNOWN_NAMES):
        broken.not_opened(unknown)
        accesses.append(broken.access)
        clock.now += broken.retry_in_s
    assert accesses == [Access.UNREACHABLE] * (UNKNOWN_NAMES - 1) + [Access.PAUSED]
