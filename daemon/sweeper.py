"""Puts right what no worker will: expired leases, marks whose answer can't come any more, jobs past their budgets.

Every worker sweeps the front of its own levels every few seconds; once a minute one of them looks at everything. All of it is
one statement (`sql/sweep.sql`), so there is nothing between looking and writing that a slow sweeper could overwrite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Settings
from daemon.ports import Ports
from daemon.store import SWEEP_LIMIT, Store, Swept

FULL_PASS_S = 60.0

log = structlog.get_logger("mailslot.sweeper")

LEVELS = {"sent": "warning", "dead": "error", "in_doubt": "error", "cancelled": "info", None: "warning"}
"""How loud a swept job is logged: what needs a person is an error."""


class Sweeper:
    """The loop. `on_swept` hears that jobs may be ready again, `on_suspect` whether a suspect is due."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ports: Ports,
        *,
        on_swept: Callable[[], None],
        on_suspect: Callable[[bool], None],
    ) -> None:
        self._interval_s = settings.worker.sweep_interval_s
        self._store = store
        self._ports = ports
        self._on_swept = on_swept
        self._on_suspect = on_suspect
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
        await self._until_done(None)
        if self._ports.boottime_s() - self._full_mono >= FULL_PASS_S:
            self._full_mono = self._ports.boottime_s()
            await self._until_done(await self._store.queues())
        self._on_suspect(await self._store.suspect_is_due())

    async def _until_done(self, queues: list[str] | None) -> None:
        while True:
            swept = await self._store.sweep(queues=queues)
            for job in swept:
                self._say(job)
            if any(job.outcome is None for job in swept):
                self._on_swept()
            if len(swept) < SWEEP_LIMIT:
                return

    def _say(self, job: Swept) -> None:
        getattr(log, LEVELS[job.outcome])("job.swept", job_id=job.id, reason=job.why, outcome=job.outcome or "ready")
