"""The relays in the order the operator prefers, and the way to get a connection to one of them.

Answers: can anything be sent now, and through what?

Promises: the next relay is tried only here, where connections are opened, so before any MAIL; once a dot was written there is
no other relay for that attempt. Who checks out a connection checks it in, whatever happened, and notes what became of the
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from daemon.core import settings
from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import Decision
from daemon.smtp.connection import Connection
from daemon.smtp.line import Line
from daemon.smtp.opening import own_name, tls_context


class Relays:
    """All relays of the configuration; made once, inside the event loop.

    Raises:
        ConfigError: A relay's `ca_file` can't be used.
    """

    def __init__(self, relays: Sequence[settings.Relay], *, boottime_s: Callable[[], float], chance: Callable[[], float]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when a relay's access has changed, either way."""
        self._own_name = ""
        self._naming = asyncio.Lock()
        self._lines = tuple(
            Line(
                relay,
                tls_context(relay),
                ehlo_name=lambda relay=relay: self._name(relay),  # type: ignore[misc]
                boottime_s=boottime_s,
                chance=chance,
                on_change=self._changed,
            )
            for relay in relays
        )

    @property
    def usable(self) -> bool:
        """Whether at least one relay takes work."""
        return any(line.breaker.usable for line in self._lines)

    @property
    def first_name(self) -> str:
        """The name of the relay that is preferred."""
        return self._lines[0].relay.name if self._lines else ""

    async def check_out(self) -> Connection | Report:
        """Return a connection for one transaction, of the first relay that gives one; else why the most preferred gave none.

        Waits for a place where all are taken. Cancelling is safe.
        """
        refused: Report | None = None
        for line in self._lines:
            if line.breaker.usable:
                taken = await line.take()
                if isinstance(taken, Connection):
                    return taken
                refused = refused or taken
        return refused or next((line.last for line in self._lines), Report("", Stage.CONNECT, Fault.UNREACHABLE))

    def check_in(self, connection: Connection) -> None:
        """Give a connection back, in whatever state it is; the pool keeps it only if it can be used again."""
        self._line(connection.relay).check_in(connection)

    def note(self, relay: str, decision: Decision) -> None:
        """Hear what became of a transaction: faults of the relay in a row close its access, successes widen it."""
        self._line(relay).note(decision)

    async def run(self) -> None:
        """Keep all lines: idle connections go in time, relays without access are tried when due. Never returns.

        Each line has a task of its own, a child of this one: a relay that lets its tries hang must not hold up those of
        another. Cancelling is safe.
        """
        async with asyncio.TaskGroup() as tasks:
            for line in self._lines:
                tasks.create_task(line.run())

    def close(self) -> None:
        """Part from all idle connections. Those checked out are their holders' to end."""
        for line in self._lines:
            line.pool.clear()

    def _changed(self) -> None:
        self.on_change()

    def _line(self, name: str) -> Line:
        return next(line for line in self._lines if line.relay.name == name)

    async def _name(self, relay: settings.Relay) -> str:
        if relay.ehlo_name:
            return relay.ehlo_name
        async with self._naming:
            self._own_name = self._own_name or await own_name()
        return self._own_name
