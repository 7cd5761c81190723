"""How many messages a second a relay may get, and what that makes of its bucket of tokens.

One token lets one message begin. The bucket is the database's, shared by all workers (`sql/take.sql`): it fills by `per_s` up to
`capacity`. A token is good for `good_s` after it was asked for, so that jobs which were held up somewhere don't all leave in one
moment later. The two follow from `burst`: what begins within any T seconds was taken within T + good_s, which is at most
capacity + per_s x (T + good_s) = burst + per_s x T tokens. So `burst` is all that ever comes on top of the rate, however many
workers there are and however unequal their pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from daemon.core.settings import Relay


@dataclass(frozen=True, slots=True)
class Permit:
    """A token in the hand of one job: a message may begin at this relay until this second of the boot clock."""

    relay: str
    until_mono: float


@dataclass(frozen=True, slots=True)
class NoToken:
    """What there is instead of a permit: nothing, for so many seconds from now."""

    relay: str
    wait_s: float


LONGEST_GOOD_S: Final = 1.0
"""Long enough for a connection that has to be opened first."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One relay's limit."""

    per_s: float
    burst: float

    @classmethod
    def of(cls, relay: Relay) -> Self | None:
        """Return the limit that the settings ask for, None without one; a burst of 0 means what comes in one second, and one."""
        if not relay.rate_per_s:
            return None
        return cls(relay.rate_per_s, relay.burst or 1 + relay.rate_per_s)

    @property
    def good_s(self) -> float:
        """For how many seconds a token is good: half of the burst pays for it, so that the other half may fill the bucket."""
        return min(LONGEST_GOOD_S, (self.burst - 1) / (2 * self.per_s))

    @property
    def capacity(self) -> float:
        """How many tokens the bucket holds, at least one."""
        return self.burst - self.per_s * self.good_s
