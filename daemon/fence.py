"""What stands between a lease and the step that can't be taken back; the same for mail and for an operator's functions.

    Interrupts       run what may be interrupted: until the trust window ends, the lease is lost, or a drain asks for it back
    ask_mark         the durable question, under the token, whether the step may be begun; anything but go ends the attempt
    forbidden        the last look, in the same synchronous step that begins it

Safety never depends on a cancelled task: whoever was interrupted too late, or not at all, is stopped by the mark and by the last
look. `Means` is what attempts work with, handed in so that all of it can be replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from types import TracebackType
from typing import Any

import structlog

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.message import Message, Unbuildable
from daemon.core.outcome import RELEASED_S, Conclusion, Entries, Release, by_evidence, given_up, known
from daemon.core.rate import NoToken, Permit
from daemon.core.settings import Settings
from daemon.core.trust import TrustWindow
from daemon.deadline import Deadline
from daemon.ports import Ports
from daemon.slots import DRAINING, LOST, Lease
from daemon.smtp.relays import Relays
from daemon.store import Marked, MarkRequest

PAYLOAD_UNREAD_S = 30.0
"""How long a job rests whose payload couldn't be fetched in time."""
BUSY_PAUSE_S = 0.05
"""Between two questions for a mark while another transaction holds the row."""

log = structlog.get_logger("mailslot.fence")


class Interrupts:
    """Ends what runs under a lease when its time is over: one timer for all leases of the process.

    The timer runs on the loop's clock, which stops while the machine sleeps, so it is a convenience. Safety rests on
    `forbidden`, which reads the boot clock. Measured: with an `asyncio.timeout` for each lease, moved by the claim, the mark's
    answer and the job's own end, three timers were made for a mail, a twentieth of what it costs.
    """

    def __init__(self, boottime_s: Callable[[], float]) -> None:
        self._boottime_s = boottime_s
        self._running: set[Interruptible] = set()
        self._deadline: Deadline | None = None

    def under(self, lease: Lease) -> Interruptible:
        """Return the block that runs under a lease; it raises TimeoutError when it was interrupted."""
        return Interruptible(self, lease)

    def begin(self, block: Interruptible) -> None:
        """Watch a block."""
        self._running.add(block)

    def end(self, block: Interruptible) -> None:
        """Watch it no more."""
        self._running.discard(block)

    def look_by(self, ends_mono: float) -> None:
        """See to it that the timer rings no later than at this boot-clock second."""
        deadline = self._deadline = self._deadline or Deadline(self._look)
        at = asyncio.get_running_loop().time() + ends_mono - self._boottime_s()
        if at < deadline.at:
            deadline.set(at)

    def _look(self) -> None:
        now_mono = self._boottime_s()
        for block in tuple(self._running):
            if block.ends_mono <= now_mono:
                block.interrupt()
        if self._running:
            self.look_by(min(block.ends_mono for block in self._running))


class Interruptible:
    """A block that runs only while its lease is trusted and wanted. It interrupts the task that entered it, once."""

    __slots__ = ("_cancelling", "_interrupts", "_lease", "_task", "interrupted")

    def __init__(self, interrupts: Interrupts, lease: Lease) -> None:
        self.interrupted = False
        """Whether it was this that interrupted the block."""
        self._interrupts = interrupts
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._lease.rearm = self._rearm
        self._interrupts.begin(self)
        self._rearm()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lease.rearm = None
        self._interrupts.end(self)
        if self.interrupted and self._task is not None:
            # As asyncio.timeout does: who was cancelled by somebody else as well stays cancelled.
            alone = self._task.uncancel() <= self._cancelling
            if alone and kind is asyncio.CancelledError:
                raise TimeoutError from error

    @property
    def ends_mono(self) -> float:
        """The boot-clock second at which it is interrupted; inf once it was."""
        if self.interrupted:
            return inf
        lease = self._lease
        if lease.answer_by_mono is not None:
            return lease.answer_by_mono
        return -inf if lease.given_up else lease.until_mono

    def interrupt(self) -> None:
        """End the block at its next await."""
        if not self.interrupted and self._task is not None:
            self.interrupted = True
            self._task.cancel()

    def _rearm(self) -> None:
        if (ends_mono := self.ends_mono) == -inf:
            self.interrupt()
        else:
            self._interrupts.look_by(ends_mono)


def forbidden(lease: Lease, boottime_s: Callable[[], float], *, sick: bool) -> str | None:
    """Return why what can't be taken back must not be begun now, or None. Called in the same step that begins it."""
    if lease.given_up:
        return lease.given_up
    if boottime_s() >= lease.until_mono:
        return "lease_untrusted"
    return "outcomes_unrecordable" if sick else None


@dataclass(frozen=True)
class Means:
    """What an attempt works with."""

    settings: Settings
    relays: Relays
    interrupts: Interrupts
    mark: Callable[[MarkRequest], Awaitable[Marked]]
    payload: Callable[[Job], Awaitable[str | None]]
    compose: Callable[[Job, str], Awaitable[Message | Unbuildable]]
    recorder_sick: Callable[[], bool]
    permit: Callable[[str], Awaitable[Permit | NoToken]]
    """Takes a token of a relay that has a rate, for a job whose own has expired."""
    ports: Ports

    @cached_property
    def trust(self) -> TrustWindow:
        """The arithmetic of the leases."""
        return TrustWindow(self.settings.lease.duration_s, self.settings.lease.margin_s)


def handed_back(reason: str | None, relay: str | None = None) -> Release:
    """Return the job unharmed; at once where it is a drain that wants it back, else after a pause, so that nothing spins."""
    return Release(reason or "lease_untrusted", 0.0 if reason == DRAINING else RELEASED_S, relay)


async def payload_of(job: Job, means: Means) -> str | Conclusion:
    """Return the payload, fetched on its own if it was too large to travel with the claim; or why there is none.

    One slow or enormous row costs its own slot only: a claim that had to carry it would time out for everybody.
    """
    if job.payload_bytes > means.settings.mail.max_payload_bytes:
        return given_up(job, known(job), "dead", "payload_too_large", f"{job.payload_bytes} bytes")
    if job.payload is not None:
        return job.payload
    try:
        return await means.payload(job) or Release(LOST)
    except (StoreUnavailable, StoreRefused):
        return Release("payload_unread", PAYLOAD_UNREAD_S)


async def ask_mark(lease: Lease, means: Means, request: MarkRequest) -> Marked | Release:
    """Ask for the mark until there is a decision; a go moves the lease's trust window. A failed question is no go."""
    while True:
        asked_mono = means.ports.boottime_s()
        try:
            decision = await means.mark(request)
        except (StoreUnavailable, StoreRefused):
            return Release("mark_unanswered", RELEASED_S)
        if decision.verdict == "go":
            lease.extend(means.trust.until(asked_mono))
            lease.expire(asked_mono + decision.expires_in_s)
            return decision
        if decision.verdict != "busy":
            return decision
        await asyncio.sleep(BUSY_PAUSE_S)


def instead_of_go(lease: Lease, entries: Entries, decision: Marked | Release) -> Conclusion | None:
    """Return the job's conclusion where the mark said anything but go; None for go."""
    if isinstance(decision, Release):
        return decision
    match decision.verdict:
        case "go":
            return None
        case "evidence":
            log.warning("job.evidence_found", job_id=lease.job.id, recipients=len(decision.accepted))
            return by_evidence(lease.job, entries, decision.accepted)
        case "cancelled":
            return given_up(lease.job, entries, "cancelled", "cancelled")
        case "expired":
            return given_up(lease.job, entries, "dead", "expired")
        case _:
            return Release(LOST)
