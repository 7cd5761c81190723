"""Until when a lease may be believed: arithmetic on one clock, anchored where the question was asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.core.trust import TrustWindow

SECONDS = st.floats(0.0, 1e9)
TRUST = TrustWindow(lease_s=30.0, margin_s=5.0)


def test_a_lease_is_believed_from_the_question_on_for_its_length_less_the_margin() -> None:
    """Thirty seconds less five, counted from the moment before the claim was sent."""
    assert TRUST.until(100.0) == 125.0


@given(asked=SECONDS, round_trip=SECONDS, clock=st.floats(-1e6, 1e6))
def test_a_lease_is_never_believed_longer_than_the_row_says(asked: float, round_trip: float, clock: float) -> None:
    """However long the answer takes, and whatever the server's clock shows, trust ends a margin before the row's expiry."""
    granted = asked + round_trip  # on our clock, when the server wrote its own now() + lease
    row_expires = granted + clock + TRUST.lease_s
    assert TRUST.until(asked) + clock <= row_expires - TRUST.margin_s + 1e-3
