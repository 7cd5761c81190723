"""Whether one relay may be used, and when it is tried again.

Answers, from what became of openings and transactions: is the relay worth a job now? A queue without a usable relay isn't
claimed, so that an outage costs time and nothing else.

    usable --cannot be opened; 3 relay's faults in a row--> unreachable --a try succeeds--> usable
    usable, unreachable --a wrong password, certificate, sender ..; 3 doubts in a row--> paused --a try succeeds--> usable

Unreachable is tried soon and then ever less often (`probe_first_s` doubling to `probe_max_s`, each with jitter); paused once
each `pause_s`, since wrong log-ins lock accounts. The doubling is forgotten when a message gets through, not when a connection
does: a relay that greets and then fails would be tried without end at the fastest pace.

Pure: the clock (seconds, any zero) and the random source (0 <= x < 1) are passed in; it logs nothing and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from daemon.core import settings
from daemon.core.smtp import Fault
from daemon.core.verdicts import Decision, Scope, Verdict

FAULTS_IN_A_ROW: Final = 3
DOUBTS_IN_A_ROW: Final = 3
UNKNOWN_NAMES: Final = 5
"""A name server that has lost our relay's name for so many tries has not lost it, the name is wrong."""


class Access(StrEnum):
    """Whether a relay takes work."""

    USABLE = "usable"
    UNREACHABLE = "unreachable"
    PAUSED = "paused"


class Breaker:
    """One relay's access."""

    def __init__(self, relay: settings.Relay, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self.access = Access.USABLE
        self.reason = ""
        self.retry_mono = 0.0
        """When the next try is due, unless usable."""
        self._relay = relay
        self._clock = clock
        self._random = random
        self._tries = 0
        self._faults = 0
        self._doubts = 0
        self._unknown_names = 0

    @property
    def usable(self) -> bool:
        """Whether jobs may be sent through it."""
        return self.access is Access.USABLE

    @property
    def retry_in_s(self) -> float:
        """Seconds until the next try."""
        return max(0.0, self.retry_mono - self._clock())

    def not_opened(self, decision: Decision) -> bool:
        """Hear that no connection could be opened; True if the access has changed."""
        self._unknown_names = self._unknown_names + 1 if decision.reason == Fault.NAME_UNKNOWN else 0
        if decision.verdict is Verdict.PAUSE or self._unknown_names >= UNKNOWN_NAMES:
            return self._pause(decision.reason, decision.wait_s)
        return self._back_off(decision.reason)

    def recovered(self) -> None:
        """Hear that the try which was due has succeeded."""
        self.access, self.reason = Access.USABLE, ""
        self._faults = self._unknown_names = 0

    def transacted(self, decision: Decision) -> bool:
        """Hear what became of a transaction; True if the access has changed."""
        match decision.verdict:
            case Verdict.PAUSE:
                return self._pause(decision.reason, decision.wait_s)
            case Verdict.DOUBT:
                self._doubts += 1
                return self._doubts >= DOUBTS_IN_A_ROW and self._pause("answers_missing", None)
            case Verdict.FREE if decision.scope is Scope.RELAY:
                self._faults += 1
                return self._faults >= FAULTS_IN_A_ROW and self._back_off(decision.reason)
            case Verdict.SENT:
                self._doubts = 0
            case _:
                pass
        self._faults = self._tries = 0
        return False

    def _pause(self, reason: str, wait_s: float | None) -> bool:
        self._doubts = 0
        if self.access is Access.PAUSED and self.retry_in_s > 0:
            return False
        return self._close(Access.PAUSED, reason, self._relay.pause_s if wait_s is None else wait_s)

    def _back_off(self, reason: str) -> bool:
        # Those who were on their way when the access was closed all fail now: one outage, not many.
        if not self.usable and self.retry_in_s > 0:
            return False
        longest_s = min(self._relay.probe_max_s, self._relay.probe_first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return self._close(Access.UNREACHABLE, reason, longest_s * (1.0 + self._random()) / 2.0)

    def _close(self, access: Access, reason: str, wait_s: float) -> bool:
        changed = (self.access, self.reason) != (access, reason)
        self.access, self.reason = access, reason
        self.retry_mono = self._clock() + wait_s
        self._faults = 0
        return changed
