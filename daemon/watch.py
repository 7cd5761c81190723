"""Tells the service manager that this process is alive, and people what it does, in one line.

Alive means: the claim loop and the heartbeat have come round within their own time limits, with success or without. So a blocked
loop or a hang starves the watchdog, and an outage of the database doesn't (a restart would not bring it back).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from daemon.claimer import Claimer
from daemon.core.settings import Settings
from daemon.heartbeat import Heartbeat
from daemon.notify import Notifier
from daemon.ports import Ports
from daemon.slots import Held

STATUS_S = 5.0
ONCE_PATIENCE_S = 30.0
"""How long `run --once` waits for a relay before it gives up."""


class Watch:
    """The loop, and the question that it asks."""

    def __init__(self, settings: Settings, claimer: Claimer, heartbeat: Heartbeat, held: Held, ports: Ports) -> None:
        database, lease, worker = settings.database, settings.lease, settings.worker
        statement_s = database.connect_timeout_s + database.command_timeout_s + database.reconnect_max_s
        self._claim_limit_s = worker.poll_interval_s + 3 * statement_s
        self._beat_limit_s = lease.heartbeat_s + lease.heartbeat_timeout_s + 3 * statement_s
        self._claimer = claimer
        self._heartbeat = heartbeat
        self._held = held
        self._boottime_s = ports.boottime_s

    @property
    def alive(self) -> bool:
        """Whether both loops have come round in time."""
        now_mono = self._boottime_s()
        return (
            now_mono - self._claimer.round_mono < self._claim_limit_s
            and now_mono - self._heartbeat.round_mono < self._beat_limit_s
        )

    async def run(self, notifier: Notifier) -> None:
        """Report for ever."""
        pause_s = min(STATUS_S, notifier.watchdog_interval_s or STATUS_S)
        while True:
            if self.alive:
                notifier.watchdog()
            database = "connected" if self._heartbeat.healthy else "away"
            notifier.status(f"{len(self._held)}/{self._held.capacity} in flight, database {database}")
            await asyncio.sleep(pause_s)


async def give_up_on_relays(usable: Callable[[], bool], stop: Callable[[], None], ports: Ports) -> None:
    """Stop the worker and return once what is left to do has waited for its relays for half a minute.

    Such a `run --once` must come to an end. `usable` says whether there is anything else to do, or to be waited for.
    """
    since_mono = ports.boottime_s()
    while True:
        await asyncio.sleep(1.0)
        if usable():
            since_mono = ports.boottime_s()
        elif ports.boottime_s() - since_mono >= ONCE_PATIENCE_S:
            stop()
            return
