"""The daemons of one run, and the faults that befall them and their database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.conformance.happening import DOT, MARK, START, Happening, What
from tests.conformance.scene import Scene, until
from tests.support.process import READY, Daemon
from tests.support.proxy import Trap

MOST_DAEMONS = 4
TAKE_OVER = """
UPDATE mailslot.jobs SET lease_token = gen_random_uuid(), lease_owner = 'another', marked_at = NULL,
       leased_at = clock_timestamp(), lease_expires_at = clock_timestamp() + make_interval(secs => $1)
WHERE outcome IS NULL AND lease_token IS NOT NULL
"""


class Worker(Daemon):
    """A daemon of a run."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    @property
    def is_up(self) -> bool:
        """Whether it takes work, or never will."""
        return self.is_over or bool(self.events(READY))

    @property
    def is_draining(self) -> bool:
        """Whether it has heard that it has to leave."""
        return self.is_over or bool(self.events("drain.begun"))

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._transport.get_returncode() if self._transport is not None else None


class Fleet:
    """All daemons so far; `live` are those that haven't been ended by a fault."""

    def __init__(self, scene: Scene) -> None:
        self.all: list[Worker] = []
        self.live: list[Worker] = []
        self.killed = False
        self._scene = scene
        self._marks: list[Trap] = []
        self._do: Mapping[What, Callable[[Happening], Awaitable[None]]] = {
            What.KILL: self._kill,
            What.DRAIN: self._drain,
            What.FORCE: self._force,
            What.FREEZE: self._freeze,
            What.TAKEOVER: self._take_over,
            What.CUT: self._cut,
            What.OUTAGE: self._outage,
        }

    @property
    def has_given_up(self) -> bool:
        """Whether a daemon has ended that nobody asked to."""
        return not self._scene.plan.happenings and any(daemon.is_over for daemon in self.all)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return what they said under this name."""
        return [line for daemon in self.all for line in daemon.events(event)]

    async def start(self, *, waits: bool = True) -> None:
        """Start as many as the case has workers; with `waits` they are up on return."""
        scene = self._scene
        for _ in range(scene.plan.workers):
            daemon = await Worker.start(scene.folder, scene.sections, (), scene.environment)
            self.all.append(daemon)
            self.live.append(daemon)
        if waits:
            await until(lambda: all(daemon.is_up for daemon in self.live))

    async def start_into(self, faults: list[Happening]) -> None:
        """Start them with the moments of all faults prepared."""
        for fault in faults:
            if fault.moment == START:
                if fault.what in {What.OUTAGE, What.CUT}:
                    await self._scene.link.go_away()
            elif fault.moment == MARK:
                self._marks.append(self._scene.link.trap("mark"))
            else:
                silent = fault.what is What.SILENCE and fault.moment == DOT
                for relay in self._scene.relays:
                    relay.hold("stored" if silent else fault.moment)  # the dot still arrived
        await self.start(waits=not any(fault.moment == START for fault in faults))

    async def follow_ended(self) -> None:
        """Start others where all have ended by a fault, as a supervisor does."""
        self.live = [daemon for daemon in self.live if not daemon.is_over]
        if not self.live and not self.has_given_up and len(self.all) < MOST_DAEMONS * self._scene.plan.workers:
            await self.start()

    async def end(self) -> None:
        """End those that are alive: by a drain where the case is about that, else at once."""
        for daemon in self.live:
            if self._scene.plan.drains:
                await daemon.stop()
            else:
                daemon.kill()
                await daemon.stopped()

    async def close(self) -> None:
        """End whatever still runs."""
        for daemon in self.all:
            await daemon.close()

    async def befall(self, fault: Happening) -> None:
        """Wait for the fault's moment, let it happen, and let those go on who were held for it."""
        scene = self._scene
        if fault.moment == MARK:
            await self._marks[0].sprung()
        elif fault.moment != START:
            await until(lambda: any(relay.events.of("command", stage=fault.moment) for relay in scene.relays))
        if fault.what is not What.SILENCE:
            await self._do[fault.what](fault)
            self._let_go(fault)

    def _let_go(self, fault: Happening) -> None:
        for relay in self._scene.relays:
            relay.release(fault.moment)
        for mark in self._marks if fault.moment == MARK else ():
            if fault.what is What.KILL:
                mark.cut()  # it dies with who sent it
            else:
                mark.release()

    async def _kill(self, _: Happening) -> None:
        self.killed = True
        for daemon in self.live:
            daemon.kill()
            await daemon.stopped()
        self.live.clear()

    async def _drain(self, _: Happening) -> None:
        for daemon in self.live:
            daemon.signal(signal.SIGTERM)
        await until(lambda: all(daemon.is_draining for daemon in self.live))

    async def _force(self, fault: Happening) -> None:
        await self._drain(fault)
        for daemon in self.live:
            daemon.signal(signal.SIGTERM)
        await until(lambda: all(daemon.is_over for daemon in self.live))

    async def _freeze(self, fault: Happening) -> None:
        for daemon in self.live:
            daemon.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s)
        for daemon in self.live:
            daemon.signal(signal.SIGCONT)

    async def _take_over(self, _: Happening) -> None:
        await self._scene.connection.execute(TAKE_OVER, 1.9 * self._scene.sections["lease"]["duration_s"])

    async def _cut(self, _: Happening) -> None:
        self._scene.link.cut()

    async def _outage(self, fault: Happening) -> None:
        link = self._scene.link
        if fault.moment != START:
            await link.go_away()
        self._let_go(fault)
        await asyncio.sleep(fault.lasts_s)
        await link.come_back()
