"""Finds due work for slots that wait: one short claim for all who wait at the same moment.

A slot asks `next` and gets one job, already its own by a committed claim. Nothing is prefetched: `k` is the number of slots that
wait right now, so no leased job ever waits in memory.

The claim looks at each (queue, priority) from where its last scan ended, which keeps it cheap when dead rows or a million jobs
lie before. What was released, taken over or committed late lies behind such a cursor, so it looks at everything again after
every wake-up, after an own release or sweep, when it found less than was asked for, and at the latest `rescan_interval_s` after
the last full look.

Suspects: a job that has lost a worker is passed by until all slots are empty, or until one has been due for a minute and the
slots are let run dry. Then it runs alone, so that the next crash blames one job and no bystander.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from daemon.allowance import Allowance, Allowances
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.rate import Permit
from daemon.core.retry import reconnect_s
from daemon.core.settings import Settings
from daemon.ports import Ports
from daemon.store import NOTHING_CLOSED, PRIORITIES, Level, Store

SUSPECT_PATIENCE_S = 60.0
SOON_S = 30.0
"""How far ahead `run --once` looks for mail that asks for a relay that is away: what was just given back isn't due at once."""
ABANDONED_TWICE_S = 2.0
"""How long after the first time a claim without an answer is given back again: the server may still have been at it."""

log = structlog.get_logger("mailslot.claimer")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job and the boot-clock second before its claim was sent: the trust window is counted from there."""

    job: Job
    asked_mono: float
    permit: Permit | None = None
    """What lets its mail begin at a relay with a rate."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A claim whose answer never came: what it asked for, and when it may be given back."""

    levels: tuple[Level, ...]
    tokens: tuple[UUID, ...]
    due_mono: float
    last: bool


class Claimer:
    """The slots that wait, the cursors, and the loop that claims.

    `may_claim` is asked before every claim (the heartbeat must be healthy), and then `allowances`: how many, and who has to wait.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ports: Ports,
        *,
        may_claim: Callable[[], bool],
        allowances: Allowances,
        once: bool = False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ports = ports
        self._may_claim = may_claim
        self._allowances = allowances
        self._allowed = Allowance(0, NOTHING_CLOSED, ())
        self._once = once
        self._waiting: list[asyncio.Future[Claimed | None]] = []
        self._woken = asyncio.Event()
        self._cursors: dict[tuple[str, int], Level] = {}
        self._turn = 0
        self._rescan = True
        self._full_mono = ports.boottime_s()
        self._solo = False
        self._suspect_since_mono: float | None = None
        self._unanswered: list[Unanswered] = []
        self._failures = 0
        self._stopped = False
        self.held_up = False
        """With `once`: whether nothing is left to do but mail whose relays are away."""
        self.round_mono = ports.boottime_s()

    async def next(self) -> Claimed | None:
        """Return the next job for the calling slot, or None when there will be no more."""
        if self._stopped:
            return None
        future: asyncio.Future[Claimed | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._woken.set()
        return await future

    def wake(self) -> None:
        """Look at everything now: somebody says that there is work."""
        self._rescan = True
        self._woken.set()

    def released(self) -> None:
        """Hear that a job of this worker is ready again: it lies behind the cursors."""
        self._rescan = True

    def suspect(self, *, due: bool) -> None:
        """Hear whether a suspect is due."""
        if not due:
            self._suspect_since_mono = None
        elif self._suspect_since_mono is None:
            self._suspect_since_mono = self._ports.boottime_s()

    def stop(self) -> None:
        """Claim no more: slots that wait get None, now and from now on."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self._woken.set()

    async def run(self) -> None:
        """Claim until stopped, and give back every claim without an answer before leaving."""
        while not self._stopped or self._unanswered:
            self._woken.clear()
            pause_s = self._settings.worker.poll_interval_s
            try:
                await self._give_back()
                if await self._round():
                    pause_s = 0.0
                elif self._waiting and self._allowed.wait_s is not None:
                    pause_s = min(pause_s, self._allowed.wait_s)
                self._failures = 0
            except (StoreUnavailable, StoreRefused) as error:
                self._failures += 1
                if self._failures == 1:
                    log.warning("claim.failed", **{"error.message": str(error)})
                pause_s = reconnect_s(self._failures, self._settings.database.reconnect_max_s, self._ports.number())
                self._woken.clear()
            self._came_round()
            await self._pause(pause_s)

    def _came_round(self) -> None:
        """Note for the watchdog that a statement has ended: a slow database isn't a hang."""
        self.round_mono = self._ports.boottime_s()

    async def _pause(self, pause_s: float) -> None:
        if pause_s == 0.0:
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            return

    @property
    def _idle(self) -> bool:
        return len(self._waiting) == self._settings.worker.concurrency

    async def _round(self) -> bool:
        """Claim for those who wait; returns whether to come again at once."""
        if not self._waiting or self._stopped or not self._may_claim():
            return False
        if self._solo and not self._idle:
            return False
        self._solo = False
        if self._suspects_turn():
            if self._idle:
                await self._claim_suspect()
            return False
        full = self._rescan or self._ports.boottime_s() - self._full_mono >= self._settings.worker.rescan_interval_s
        wanted = 1 if self._failures else len(self._waiting)  # what was too much for one answer comes one by one
        claimed = await self._claim(wanted, full=full, suspects=False)
        if claimed and claimed == self._allowed.count:
            return bool(self._waiting)
        if not full and self._allowed.count:
            self._rescan = True
            return True
        if claimed == 0 and self._idle and not await self._claim_suspect() and self._once:
            await self._end()
        return False

    async def _end(self) -> None:
        """Stop, unless the last claim left out somebody for want of a relay or of tokens."""
        allowed = self._allowed
        self.held_up = allowed.wait_s is None and (allowed.waits or await self._asked_for(allowed.closed.relays))
        if allowed.wait_s is None and not self.held_up:
            self.stop()

    async def _asked_for(self, relays: Sequence[str]) -> bool:
        return bool(relays) and await self._store.asked_for(relays, within_s=SOON_S)

    def _suspects_turn(self) -> bool:
        since = self._suspect_since_mono
        return since is not None and self._ports.boottime_s() - since >= SUSPECT_PATIENCE_S

    async def _claim_suspect(self) -> bool:
        self._solo = await self._claim(1, full=True, suspects=True) == 1
        self._suspect_since_mono = None
        return self._solo

    async def _claim(self, wanted: int, *, full: bool, suspects: bool) -> int:
        before, self._allowed = self._allowed, await self._allowances.allow(wanted)
        allowed = self._allowed
        if set(before.closed.queues) - set(allowed.closed.queues) or set(before.closed.relays) - set(allowed.closed.relays):
            full = True  # what had to wait lies behind the cursors
        levels = tuple(level for level in self._levels(full=full) if level.queue in allowed.queues)
        if not allowed.count or self._stopped:
            return 0
        tokens = tuple(self._ports.token() for _ in range(allowed.count))
        if full and not suspects:
            self._rescan = False
            self._full_mono = self._ports.boottime_s()
        self._came_round()
        asked_mono = self._ports.boottime_s()
        try:
            jobs = await self._store.claim(levels, tokens, suspects=suspects, closed=allowed.closed)
        except BaseException:
            self._unanswered.append(Unanswered(levels, tokens, asked_mono, last=False))
            raise
        for job in jobs:
            self.held_up = False
            self._cursors[job.queue, job.priority] = Level(job.queue, job.priority, job.available_at, job.id)
            self._hand_out(Claimed(job, asked_mono, allowed.permit(job)))
        self._came_round()
        await self._allowances.settle(allowed, len(jobs))
        return len(jobs)

    def _hand_out(self, claimed: Claimed) -> None:
        while self._waiting:
            future = self._waiting.pop(0)
            if not future.done():
                future.set_result(claimed)
                return
        # The slots went away while the claim was under way (a drain): back with it, unharmed.
        self._unanswered.append(
            Unanswered((Level(claimed.job.queue, claimed.job.priority),), (claimed.job.token,), claimed.asked_mono, last=True)
        )

    def _levels(self, *, full: bool) -> tuple[Level, ...]:
        """Return the levels in order: urgent first; within a priority each queue is first in turn."""
        queues = self._settings.worker.queues
        self._turn = (self._turn + 1) % len(queues)
        rotated = queues[self._turn :] + queues[: self._turn]
        fresh = [Level(queue, priority) for priority in PRIORITIES for queue in rotated]
        if full:
            self._cursors.clear()
            return tuple(fresh)
        return tuple(self._cursors.get((level.queue, level.priority), level) for level in fresh)

    async def _give_back(self) -> None:
        """Give back claims that got no answer, until that is answered, and once more a little later."""
        now_mono = self._ports.boottime_s()
        for claim in [c for c in self._unanswered if c.due_mono <= now_mono or self._stopped]:
            self._unanswered.remove(claim)
            try:
                given_back = await self._store.abandon(claim.levels, claim.tokens)
            except (StoreUnavailable, StoreRefused):
                self._unanswered.append(replace(claim, due_mono=self._ports.boottime_s() + ABANDONED_TWICE_S))
                raise
            self._came_round()
            if given_back:
                log.info("claim.abandoned", jobs=given_back)
                self.wake()
            if not claim.last and not self._stopped:
                self._unanswered.append(
                    Unanswered(claim.levels, claim.tokens, self._ports.boottime_s() + ABANDONED_TWICE_S, last=True)
                )
