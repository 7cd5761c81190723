"""Delays: finite, positive, capped, whatever the attempt and the dice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.retry import backoff_s, reconnect_s
from daemon.core.settings import Retry

DEFAULT = Retry()
ALMOST_ONE = math.nextafter(1.0, 0.0)
CHANCES = st.floats(0.0, ALMOST_ONE)
ATTEMPTS = st.one_of(st.integers(0, 10**6), st.integers(2**31 - 2, 2**31 + 2), st.integers(-5, 0))
RETRIES = st.tuples(st.floats(1e-3, 1e6), st.floats(1.0, 1e3)).map(lambda v: Retry(first_s=v[0], cap_s=v[0] * v[1]))


@given(attempt=ATTEMPTS, retry=RETRIES, chance=CHANCES)
def test_a_backoff_is_finite_and_positive_and_never_above_the_cap(attempt: int, retry: Retry, chance: float) -> None:
    """Attempt 0 and attempt 2**31 are as harmless as the first."""
    delay_s = backoff_s(attempt, retry, chance)
    assert math.isfinite(delay_s)
    assert retry.first_s / 10 <= delay_s <= retry.cap_s


def test_no_attempt_up_to_a_million_overflows() -> None:
    """Each power of two and its neighbours, and the largest integer of the column."""
    attempts = {2**n + d for n in range(20) for d in (-1, 0, 1)} | {10**6, 2**31}
    for attempt in attempts:
        assert 0 < backoff_s(attempt, DEFAULT, ALMOST_ONE) <= DEFAULT.cap_s


def test_the_ceiling_doubles_until_it_meets_the_cap() -> None:
    """With the dice at their highest the delay is the ceiling."""
    ceilings = [round(backoff_s(attempt, DEFAULT, ALMOST_ONE)) for attempt in (0, 1, 2, 3, 7, 8, 100)]
    assert ceilings == [60, 60, 120, 240, 3840, 4000, 4000]


def test_jitter_never_means_at_once() -> None:
    """With the dice at zero a tenth of the first delay is left."""
    assert [backoff_s(attempt, DEFAULT, 0.0) for attempt in (1, 2, 50)] == [6.0, 6.0, 6.0]


def test_a_cap_below_the_first_delay_counts() -> None:
    """The cap wins over the floor as well."""
    assert backoff_s(1, Retry(first_s=100.0, cap_s=2.0), 0.0) == pytest.approx(0.2)
    assert backoff_s(1, Retry(first_s=100.0, cap_s=2.0), ALMOST_ONE) <= 2.0


@given(failures=ATTEMPTS, largest_s=st.floats(1e-3, 1e6), chance=CHANCES)
def test_a_reconnect_never_waits_longer_than_its_largest(failures: int, largest_s: float, chance: float) -> None:
    """Half of the ceiling at least, so that nobody spins; the largest at most."""
    pause_s = reconnect_s(failures, largest_s, chance)
    assert 0 < pause_s <= largest_s
    assert pause_s >= min(largest_s, 0.1) / 2


def test_the_first_reconnect_comes_almost_at_once() -> None:
    """A tenth of a second at most: others wait for us."""
    assert reconnect_s(1, 2.0, ALMOST_ONE) <= 0.1
    assert [reconnect_s(failures, 2.0, 0.0) for failures in (1, 2, 3, 100)] == [0.05, 0.1, 0.2, 1.0]
