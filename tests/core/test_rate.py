"""What a rate makes of its bucket: nothing ever comes on top of the rate but the burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.rate import LONGEST_GOOD_S, Rate
from daemon.core.settings import Relay


def of(**keys: float) -> Rate | None:
    """Return the rate of a relay with these settings."""
    return Rate.of(Relay(name="r", host="h", **keys))  # type: ignore[arg-type]


def test_a_relay_without_a_rate_has_no_limit() -> None:
    """And a burst of 0 is one second's worth, and one."""
    assert of() is None
    assert of(rate_per_s=14.0) == Rate(14.0, 15.0)
    assert of(rate_per_s=0.5) == Rate(0.5, 1.5)
    assert of(rate_per_s=14.0, burst=4.0) == Rate(14.0, 4.0)


@given(st.floats(0.001, 100_000), st.floats(0, 10), st.floats(0, 3600))
def test_what_can_begin_in_any_time_is_the_burst_and_the_rate(per_s: float, more: float, window_s: float) -> None:
    """Every token that is still good was taken at most good_s before; of the full bucket and what came in since."""
    rate = Rate(per_s, 1 + per_s / 5 + more * per_s)
    taken = rate.capacity + per_s * (window_s + rate.good_s)
    assert taken == pytest.approx(rate.burst + per_s * window_s)
    assert rate.capacity >= 1
    assert rate.good_s == pytest.approx(min(LONGEST_GOOD_S, 0.1 + more / 2))
