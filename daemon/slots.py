"""What this process holds: the one piece of state that slots, heartbeat and drain share. No I/O.

A lease is the time-bounded right to work a job. Three parties touch it: the slot that works the job moves its stage; the
heartbeat extends it or says that it is lost; the drain asks for it back. What ends it earlier than was known calls `rearm`, which
the slot sets while it may still be interrupted, that is: before the dot. What makes it longer is seen when that time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from daemon.core.job import Job
from daemon.core.rate import Permit
from daemon.core.smtp import Stage

DRAINING = "draining"
LOST = "lease_lost"


class Lease:
    """One held job. `until_mono` is the boot-clock second until which what can't be taken back may be begun."""

    __slots__ = (
        "_expires_mono",
        "_trusted_mono",
        "afterwards",
        "answer_by_mono",
        "given_up",
        "hang_up",
        "hung_up",
        "job",
        "lost",
        "permit",
        "rearm",
        "recording",
        "stage",
    )

    def __init__(self, job: Job, trusted_mono: float, permit: Permit | None = None) -> None:
        self.job = job
        self.permit = permit
        """What lets its message begin at a relay with a rate."""
        self.stage = Stage.BUILD
        self.given_up: str | None = None
        """Why the slot must stop, if it must: DRAINING or LOST."""
        self.lost = False
        """Whether the fence has refused us; such a lease is not extended any more."""
        self.answer_by_mono: float | None = None
        """Set once what can't be taken back has been begun: until then the answer is waited for, and only it ends the attempt."""
        self.recording = False
        """Whether the conclusion is on its way; such a lease is not extended any more."""
        self.rearm: Callable[[], None] | None = None
        self.hang_up: Callable[[], None] | None = None
        """Ends the wait for an answer to the dot, which is then in doubt; only the end of a drain does that."""
        self.hung_up = False
        """Whether that was done: then it isn't the relay that didn't answer."""
        self.afterwards: Callable[[], None] | None = None
        """What is done once the conclusion is recorded, and can't change it: the connection goes back to its pool."""
        self._trusted_mono = trusted_mono
        self._expires_mono = inf

    @property
    def until_mono(self) -> float:
        """The end of the trust window or of the job's own time, whichever comes first."""
        return min(self._trusted_mono, self._expires_mono)

    @property
    def past_dot(self) -> bool:
        """Whether what can't be taken back has been begun."""
        return self.answer_by_mono is not None

    def extend(self, trusted_mono: float) -> None:
        """Believe in the lease for longer; an answer never shortens what an earlier one gave."""
        self._trusted_mono = max(self._trusted_mono, trusted_mono)

    def expire(self, expires_mono: float) -> None:
        """Begin nothing after this, however long the lease: the mark's answer knows when the job expires."""
        self._expires_mono = expires_mono
        if expires_mono < self._trusted_mono:
            self._changed()

    def begin(self, answer_by_mono: float) -> None:
        """Note that what can't be taken back begins now; from here on `give_up` changes nothing."""
        self.answer_by_mono = answer_by_mono
        self.stage = Stage.DOT
        self._changed()

    def give_up(self, reason: str) -> None:
        """Ask the slot to stop before the dot; past it the slot goes on."""
        self.lost = self.lost or reason == LOST
        if not self.past_dot:
            self.given_up = self.given_up or reason
            self._changed()

    def _changed(self) -> None:
        if self.rearm is not None:
            self.rearm()


class Held:
    """All leases of this process, and how many it may hold."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._leases: dict[object, Lease] = {}

    def take(self, lease: Lease) -> None:
        """Add a lease that the claim returned."""
        self._leases[lease.job.token] = lease

    def drop(self, lease: Lease) -> None:
        """Forget a lease whose conclusion is recorded, or that was lost."""
        self._leases.pop(lease.job.token, None)

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(tuple(self._leases.values()))

    def to_extend(self) -> list[Lease]:
        """Return the leases that the heartbeat asks for: all but the lost, and those whose record is on its way."""
        return [lease for lease in self if not lease.recording and not lease.lost]
