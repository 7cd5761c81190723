"""Finds due work for slots that wait: one short claim for all who wait at the same moment.

A slot asks `next` and gets one job, already its own by a committed claim. Nothing is prefetched: a claim asks for no more jobs
than slots wait right now, so no leased job ever waits in memory. Which levels a claim names, from where it looks at them, and how
what lies behind is found again: `daemon.cursors`.

Suspects: a job that has lost a worker before is passed by until all slots are empty, or until one has been due for a minute and
the slots are let run dry. Then it runs alone, so that the next crash blames one job and no bystander.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from daemon.allowance import Allowance, Allowances
from daemon.batch import Turn
from daemon.bell import Bell
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.rate import Permit
from daemon.core.retry import reconnect_s
from daemon.core.settings import Settings
from daemon.cursors import Cursors, Toll
from daemon.ports import Ports
from daemon.store import NOTHING_CLOSED, PRIORITIES, Closed, Front, Level, Store

SUSPECT_PATIENCE_S = 60.0
SMALLEST_WAVE = 16
"""Fewer slots than twice that go in one wave: smaller claims cost more than the waiting."""
SOON_S = 30.0
"""How far ahead `run --once` looks for mail that asks for a relay that is away: what was just given back isn't due at once."""
SHORTEST_S = 0.001
"""No pause is shorter, so that a look that isn't due yet never becomes a loop that only looks."""
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
    """A claim whose answer never came: what it asked for, when, and when it may be given back."""

    levels: tuple[Level, ...]
    tokens: tuple[UUID, ...]
    asked_mono: float
    due_mono: float
    last: bool


class Claimer:
    """The slots that wait, and the loop that claims.

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
        bell: Bell,
        turn: Turn,
        once: bool = False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ports = ports
        self._may_claim = may_claim
        self._allowances = allowances
        self._bell = bell
        self._turn = turn
        self._wave = max(SMALLEST_WAVE, settings.worker.concurrency // 2)
        """The most jobs in one claim: while half of the slots wait for the database, the others talk to relays. Where all went in
        one wave, worker and server waited for each other, and 200 slots sent 6 % less."""
        self._allowed = Allowance(0, NOTHING_CLOSED, ())
        self._once = once
        self._waiting: list[asyncio.Future[Claimed | None]] = []
        self._woken = asyncio.Event()
        worker = settings.worker
        self._cursors = Cursors(worker.queues, rescan_interval_s=worker.rescan_interval_s, now_mono=ports.boottime_s())
        self._solo = False
        self._suspects = Toll()
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
        """Look now: somebody says that there is new work."""
        self._cursors.look_near()
        self._woken.set()

    def rung(self, note: str) -> None:
        """Look now: somebody has rung the bell; `note` is what he said."""
        self._bell.rung(note)
        self.wake()

    def recovered(self) -> None:
        """Look at everything: nobody knows what happened, or who rang, while the database was away."""
        self._bell.rung()
        self.look_behind()

    def look_behind(self) -> None:
        """Look at everything, as soon as that may be had again: somebody says that jobs are ready again, but not where."""
        self._cursors.look_at_all()
        self._woken.set()

    def released(self, job: Job) -> None:
        """Hear that a job of this worker is ready again at its old place."""
        self._cursors.came_back(job)

    def front(self, front: Front) -> None:
        """Hear what stands in front: where full looks may begin, and whether a suspect is due."""
        self._cursors.begin_at(front.levels)
        if not front.suspect_is_due:
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
            try:
                await self._give_back()
                pause_s = 0.0 if await self._round() else self._patience_s()
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

    def _patience_s(self) -> float:
        """Return how long to wait for a wake-up."""
        pause_s = self._settings.worker.poll_interval_s
        if self._waiting and self._allowed.wait_s is not None:
            pause_s = min(pause_s, self._allowed.wait_s)
        if self._waiting and self._allowed.count and not self._solo:
            look_s = min(self._cursors.wait_s(self._ports.boottime_s()), self._bell.wait_s())
            pause_s = min(pause_s, max(look_s, SHORTEST_S))
        return pause_s

    async def _pause(self, pause_s: float) -> None:
        if pause_s == 0.0:
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
        except TimeoutError:
            if self._bell.looks() or pause_s >= self._settings.worker.poll_interval_s:
                self._cursors.look_near()  # what nobody rang for, or a poll: notifications are a convenience

    @property
    def _idle(self) -> bool:
        return len(self._waiting) == self._settings.worker.concurrency

    async def _round(self) -> bool:
        """Claim for those who wait; returns whether to come again at once."""
        if not self._waiting or self._stopped or not self._may_claim() or (self._solo and not self._idle):
            return False
        self._solo = False
        if self._suspects_turn():
            if self._idle:
                await self._claim_suspect()
            return False
        async with self._turn.taken():
            # What was too much for one answer comes one by one.
            wanted = 1 if self._failures else min(len(self._waiting), self._wave)
            claimed = await self._claim(wanted)
        if claimed and claimed == self._allowed.count:
            return bool(self._waiting)
        if self._allowed.count and self._cursors.wait_s(self._ports.boottime_s()) == 0.0:
            return True
        if claimed == 0 and self._idle and await self._idle_round():
            return True
        return await self._hang_up()

    async def _hang_up(self) -> bool:
        """Have the next producer ring, now that slots stay without a job; returns whether to look once more at once."""
        if not self._waiting or not self._allowed.count or self._stopped or not await self._bell.arm():
            return False
        self._cursors.look_near()
        return True

    async def _idle_round(self) -> bool:
        """Look for a suspect where nothing was found and all wait, and with `once` end; returns whether to come again at once."""
        allowed = self._allowed  # what was left out counts, though the look for suspects may be allowed more a moment later
        if allowed.count and self._once and not self._cursors.has_seen_all:
            self._cursors.look_at_all(now=True)
            return True
        if allowed.count and (self._once or self._ports.boottime_s() >= self._suspects.free_mono) and await self._claim_suspect():
            return False
        if self._once:
            await self._end(allowed)
        return False

    async def _end(self, allowed: Allowance) -> None:
        """Stop, unless a claim with this allowance left out somebody for want of a relay or of tokens."""
        self.held_up = allowed.wait_s is None and (allowed.waits or await self._asked_for(allowed.closed.relays))
        if allowed.wait_s is None and not self.held_up:
            self.stop()

    async def _asked_for(self, relays: Sequence[str]) -> bool:
        return bool(relays) and await self._store.asked_for(relays, within_s=SOON_S)

    def _suspects_turn(self) -> bool:
        since = self._suspect_since_mono
        return since is not None and self._ports.boottime_s() - since >= SUSPECT_PATIENCE_S

    async def _claim_suspect(self) -> bool:
        asked_mono = self._ports.boottime_s()
        self._solo = await self._claim(1, suspects=True) == 1
        if not self._solo:  # only a look in vain has to be earned back: where there is one suspect there are more
            self._suspects.add(self._ports.boottime_s() - asked_mono)
            self._suspects.close(self._ports.boottime_s())
        self._suspect_since_mono = None
        return self._solo

    async def _claim(self, wanted: int, *, suspects: bool = False) -> int:
        before, self._allowed = self._allowed, await self._allowances.allow(wanted)
        allowed = self._allowed
        if _opened(before.closed, allowed.closed):
            self._cursors.look_at_all()  # what had to wait lies behind the cursors
        if not allowed.count or self._stopped:
            return 0
        self._came_round()
        asked_mono = self._ports.boottime_s()
        levels = self._fronts(allowed.queues) if suspects else self._cursors.next(asked_mono, allowed.queues)
        tokens = tuple([self._ports.token() for _ in range(allowed.count)])
        jobs = await self._ask(levels, tokens, asked_mono, suspects=suspects) if levels else []
        if not suspects:
            now_mono = self._ports.boottime_s()
            self._cursors.answered(levels, jobs, wanted=allowed.count, asked_mono=asked_mono, now_mono=now_mono)
        for job in jobs:
            self.held_up = False
            self._hand_out(Claimed(job, asked_mono, allowed.permit(job)))
        self._came_round()
        await self._allowances.settle(allowed, len(jobs))
        return len(jobs)

    async def _ask(self, levels: tuple[Level, ...], tokens: tuple[UUID, ...], asked_mono: float, *, suspects: bool) -> list[Job]:
        try:
            return await self._store.claim(levels, tokens, suspects=suspects, closed=self._allowed.closed)
        except BaseException:
            self._unanswered.append(Unanswered(levels, tokens, asked_mono, asked_mono, last=False))
            raise

    def _fronts(self, queues: Collection[str]) -> tuple[Level, ...]:
        """Return where to look for suspects: each was a job before, so none lies before the front."""
        if self._once:
            return tuple([Level(queue, priority) for priority in PRIORITIES for queue in queues])
        return tuple([self._cursors.front(queue, priority) for priority in PRIORITIES for queue in queues])

    def _hand_out(self, claimed: Claimed) -> None:
        while self._waiting:
            future = self._waiting.pop(0)
            if not future.done():
                future.set_result(claimed)
                return
        job = claimed.job
        # The slots went away while the claim was under way (a drain): back with it, unharmed.
        self._unanswered.append(
            Unanswered(
                (Level(job.queue, job.priority, job.available_at, job.id - 1),),
                (job.token,),
                claimed.asked_mono,
                claimed.asked_mono,
                last=True,
            )
        )

    async def _give_back(self) -> None:
        """Give back claims that got no answer, until that is answered, and once more a little later."""
        now_mono = self._ports.boottime_s()
        for claim in [c for c in self._unanswered if c.due_mono <= now_mono or self._stopped]:
            self._unanswered.remove(claim)
            levels = _as_of(claim, now_mono)
            try:
                given_back = await self._store.abandon(levels, claim.tokens)
            except (StoreUnavailable, StoreRefused):
                self._unanswered.append(replace(claim, due_mono=self._ports.boottime_s() + ABANDONED_TWICE_S))
                raise
            self._came_round()
            if given_back:
                log.info("claim.abandoned", jobs=given_back)
                self._cursors.gave_back(claim.levels, claim.asked_mono)
                self._woken.set()
            if not claim.last and not self._stopped:
                self._unanswered.append(replace(claim, due_mono=self._ports.boottime_s() + ABANDONED_TWICE_S, last=True))


def _opened(before: Closed, after: Closed) -> bool:
    """Return whether anything may be claimed that had to wait."""
    if before is after:
        return False
    return not set(before.queues) <= set(after.queues) or not set(before.relays) <= set(after.relays)


def _as_of(claim: Unanswered, now_mono: float) -> tuple[Level, ...]:
    """Return the levels of a claim as they must be named now to begin where it began, or a little earlier."""
    older_s = now_mono - claim.asked_mono + ABANDONED_TWICE_S
    return tuple([level if level.back_s is None else replace(level, back_s=level.back_s + older_s) for level in claim.levels])
