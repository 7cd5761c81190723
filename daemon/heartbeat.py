"""Extends every held lease in one statement, and tells slots which were lost.

Runs on the same event loop as the slots, on purpose: a loop that is blocked must lose its leases, for its slots can't be trusted
to look at their deadline either. A failed heartbeat changes nothing by itself: leases are believed until their trust window
ends. It only stops the claiming, and reconnects: at once, then with backoff.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.retry import reconnect_s
from daemon.core.settings import Settings
from daemon.core.trust import TrustWindow
from daemon.ports import Ports
from daemon.session import Session
from daemon.slots import LOST, Held, Lease
from daemon.store import Store

log = structlog.get_logger("mailslot.heartbeat")


class Heartbeat:
    """The loop; `healthy` is what the claimer asks before it claims, `round_mono` what the watchdog looks at."""

    def __init__(self, settings: Settings, held: Held, store: Store, ports: Ports) -> None:
        self._settings = settings
        self._held = held
        self._store = store
        self._ports = ports
        self._trust = TrustWindow(settings.lease.duration_s, settings.lease.margin_s)
        self._failures = 0
        self._hurry = asyncio.Event()
        self.healthy = False
        self.round_mono = ports.boottime_s()
        self.on_recovered: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] | None = None

    def hurry(self) -> None:
        """Come round now: the session was lost, or somebody needs to know."""
        self._hurry.set()

    async def run(self, session: Session) -> None:
        """Beat for ever."""
        while True:
            self._hurry.clear()
            try:
                await self._beat(session)
            except (StoreUnavailable, StoreRefused) as error:
                self._failed(error)
            self.round_mono = self._ports.boottime_s()
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def _pause_s(self) -> float:
        if self._failures == 0:
            return self._settings.lease.heartbeat_s
        self._hurry.clear()
        return reconnect_s(self._failures, self._settings.database.reconnect_max_s, self._ports.number())

    async def _beat(self, session: Session) -> None:
        reopened = not session.is_open
        if reopened:
            await session.open()
        leases = self._held.to_extend()
        asked_mono = self._ports.boottime_s()
        states = await session.extend(leases)
        for lease in leases:
            self._apply(lease, states.get(lease.job.token, "lost"), asked_mono)
        if not self.healthy:
            log.info("database.connected", failures=self._failures)
        self._failures = 0
        self.healthy = True
        if self.on_ready is not None:
            ready, self.on_ready = self.on_ready, None
            ready()
        if reopened:
            self.on_recovered()

    def _apply(self, lease: Lease, state: str, asked_mono: float) -> None:
        if state == "held":
            lease.extend(self._trust.until(asked_mono))
        elif state == "lost" and not lease.recording and not lease.lost:
            log.warning("lease.lost", job_id=lease.job.id, stage=lease.stage, attempt=lease.job.attempt)
            lease.give_up(LOST)

    def _failed(self, error: Exception) -> None:
        if self._failures == 0:
            log.warning("database.lost", **{"error.message": str(error)})
        self._failures += 1
        self.healthy = False
        self._store.trouble()
