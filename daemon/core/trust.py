"""Until when a worker may believe in its lease.

The database alone decides who holds a job; its clock and ours are never compared. A holder knows one thing only: when it asked.
The server wrote `now + lease` no earlier than that, so

    trusted until = (our boot clock before the claim, extend or mark was sent) + lease - margin

is never later than what stands in the row, however long the answer took. Anchoring at the answer instead would be wrong by the
time of the round trip, and a stalled round trip is the very case that matters. The margin pays for clocks that run at different
rates and for the way from the last check to the relay. CLOCK_BOOTTIME counts while the machine sleeps; the monotonic clock of
timers does not, so a timer may wake a slot early or late, and the check before the dot reads the boot clock itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """The arithmetic of one database's leases; all values are seconds."""

    lease_s: float
    margin_s: float

    def until(self, asked_mono: float) -> float:
        """Return the boot-clock second until which a lease granted to a question asked at `asked_mono` may be believed."""
        return asked_mono + self.lease_s - self.margin_s
