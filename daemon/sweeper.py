"""Puts right what no worker will: expired leases, marks whose answer can't come any more, jobs past their budgets.

Every worker sweeps the front of its own levels every few seconds; once a minute one of them looks at everything. All of it is
one statement (`sql/sweep.sql`), so there is nothing between looking and writing that a slow sweeper could overwrite.

Where dead entries pile up in front that nothing can remove, it begins where it found the first unfinished job the last time, and
tells the claimer. Once the look from the very front has been paid for (`daemon.cursors`) it begins there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Settings
from daemon.cursors import Toll
from daemon.ports import Ports
from daemon.store import SWEEP_LIMIT, Front, Level, Store, Swept

FULL_PASS_S = 60.0

log = structlog.get_logger("mailslot.sweeper")

LEVELS = {"sent": "warning", "dead": "error", "in_doubt": "error", "cancelled": "info", None: "warning"}
"""How loud a swept job is logged: what needs a person is an error."""


class Sweeper:
    """The loop. `on_swept` hears that jobs may be ready again, `on_front` what stands in front."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ports: Ports,
        *,
        on_swept: Callable[[], None],
        on_front: Callable[[Front], None],
    ) -> None:
        self._interval_s = settings.worker.sweep_interval_s
        self._store = store
        self._ports = ports
        self._on_swept = on_swept
        self._on_front = on_front
        self._fronts: tuple[Level, ...] = ()
        self._toll = Toll()
        self._full_mono = ports.boottime_s()

    async def run(self) -> None:
        """Sweep for ever, with jitter, so that many workers don't come at the same moment. An outage only skips rounds."""
        while True:
            await asyncio.sleep(self._interval_s * (0.5 + self._ports.number()))
            try:
                await self._round()
            except StoreUnavailable:
                continue  # the heartbeat has said so already, and the next round comes by itself
            except StoreRefused as error:
                log.error("sweep.refused", **{"error.message": str(error)})  # noqa: TRY400  an answer, not a bug

    async def _round(self) -> None:
        begun_mono = self._ports.boottime_s()
        fronts = () if begun_mono >= self._toll.free_mono else self._fronts
        await self._until_done(fronts)
        front = await self._store.front(fronts)
        self._fronts = front.levels
        if not fronts:
            now_mono = self._ports.boottime_s()
            self._toll.add(now_mono - begun_mono)
            self._toll.close(now_mono)
        if self._ports.boottime_s() - self._full_mono >= FULL_PASS_S:
            self._full_mono = self._ports.boottime_s()
            await self._until_done((), await self._store.queues())
        self._on_front(front)

    async def _until_done(self, fronts: Sequence[Level], queues: list[str] | None = None) -> None:
        while True:
            swept = await self._store.sweep(fronts=fronts, queues=queues)
            for job in swept:
                self._say(job)
            if any(job.outcome is None for job in swept):
                self._on_swept()
            if len(swept) < SWEEP_LIMIT:
                return

    def _say(self, job: Swept) -> None:
        getattr(log, LEVELS[job.outcome])("job.swept", job_id=job.id, reason=job.why, outcome=job.outcome or "ready")
