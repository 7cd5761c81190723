"""The relays in the order the operator prefers, and the way to get a connection to one of them.

Answers: can anything be sent now, and through what? A queue that relays name in their `queues` is served by those, any other by
the relays that name none; a job that asks for a relay is served by that one alone, if it serves the job's queue.

Promises: a relay with a rate gets no message without a permit for it. The next relay is tried only here, where connections are
opened, so before any MAIL; once a dot was written there is no other relay for that attempt. Who checks out a connection checks it
in, whatever happened, and notes what became of the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from daemon.core import settings
from daemon.core.rate import NoToken, Permit, Rate
from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import RULES, Decision, Table
from daemon.smtp.connection import Connection
from daemon.smtp.line import Line
from daemon.smtp.opening import own_name, tls_context


async def _nothing(relay: str) -> NoToken:
    return NoToken(relay, 0.0)


class Relays:
    """All relays of the configuration; made once, inside the event loop.

    Raises:
        ConfigError: A relay's `ca_file` can't be used.
    """

    def __init__(
        self,
        relays: Sequence[settings.Relay],
        *,
        boottime_s: Callable[[], float],
        chance: Callable[[], float],
        rules: Table = RULES,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when a relay's access has changed, either way."""
        self.rates: Mapping[str, Rate] = {relay.name: rate for relay in relays if (rate := Rate.of(relay))}
        """The relays that have a limit."""
        self._boottime_s = boottime_s
        self._own_name = ""
        self._lines = tuple(
            Line(
                relay,
                tls_context(relay),
                ehlo_name=lambda relay=relay: self._name(relay),  # type: ignore[misc]
                boottime_s=boottime_s,
                chance=chance,
                rules=rules,
                on_change=self._changed,
            )
            for relay in relays
        )
        self._by_name = {line.relay.name: line for line in self._lines}
        self._unbound = tuple(line for line in self._lines if not line.relay.queues)
        self._bound = {
            queue: tuple(line for line in self._lines if queue in line.relay.queues) for relay in relays for queue in relay.queues
        }
        """The lines of each queue that relays name."""

    @property
    def usable(self) -> bool:
        """Whether at least one relay takes work."""
        return any(line.breaker.usable for line in self._lines)

    @property
    def names(self) -> tuple[str, ...]:
        """All relays, in order."""
        return tuple(line.relay.name for line in self._lines)

    @property
    def usable_names(self) -> frozenset[str]:
        """The relays that take work."""
        return frozenset(line.relay.name for line in self._lines if line.breaker.usable)

    def serving(self, queue: str) -> frozenset[str]:
        """Return the relays that a queue may use."""
        return frozenset(line.relay.name for line in self._serving(queue, None))

    def way(self, queue: str) -> str | None:
        """Return the relay that a queue's mail goes to now, None if there is none."""
        return next((line.relay.name for line in self._serving(queue, None) if line.breaker.usable), None)

    async def check_out(
        self,
        queue: str = "",
        wanted: str | None = None,
        permit: Permit | None = None,
        renew: Callable[[str], Awaitable[Permit | NoToken]] = _nothing,
        *,
        fresh: bool = False,
    ) -> Connection | Report | NoToken:
        """Return a connection for one transaction, of the first relay that gives one; else why the most preferred gave none.

        Waits for a place where all are taken. Cancelling is safe; what `renew` raises comes out, and costs no place either.

        Args:
            queue: The job's queue, which says the relays that may be used.
            wanted: The one relay that the job asks for, if it does.
            permit: The job's token, without which no relay with a rate is used.
            renew: Asked for another permit, if this one has expired by the time the connection is there.
            fresh: Whether it must be one that has carried nothing yet.
        """
        refused: Report | None = None
        lines = self._serving(queue, wanted)
        for line in lines:
            limited = line.relay.name in self.rates
            if line.breaker.usable and (not limited or (permit and permit.relay == line.relay.name)):
                taken = (None if fresh else line.take_now()) or await line.take(fresh=fresh)
                if isinstance(taken, Connection) and limited and permit and self._boottime_s() > permit.until_mono:
                    return await self._renewed(taken, renew)
                if isinstance(taken, Connection):
                    return taken
                refused = refused or taken
        return refused or next((line.last for line in lines), Report("", Stage.CONNECT, Fault.UNREACHABLE))

    def check_in(self, connection: Connection) -> None:
        """Give a connection back, in whatever state it is; the pool keeps it only if it can be used again."""
        self._by_name[connection.relay].check_in(connection)

    def note(self, relay: str, decision: Decision) -> None:
        """Hear what became of a transaction: faults of the relay in a row close its access, successes widen it."""
        self._by_name[relay].note(decision)

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

    async def _renewed(self, connection: Connection, renew: Callable[[str], Awaitable[Permit | NoToken]]) -> Connection | NoToken:
        """Keep the connection for a permit that is taken now; without one it goes to the next."""
        permit: Permit | NoToken | None = None
        try:
            permit = await renew(connection.relay)
        finally:
            if not isinstance(permit, Permit):
                self.check_in(connection)
        return permit if isinstance(permit, NoToken) else connection

    def _changed(self) -> None:
        self.on_change()

    def _serving(self, queue: str, wanted: str | None) -> tuple[Line, ...]:
        serving = self._bound.get(queue, self._unbound)
        return serving if wanted is None else tuple(line for line in serving if wanted == line.relay.name)

    async def _name(self, relay: settings.Relay) -> str:
        if relay.ehlo_name:
            return relay.ehlo_name
        self._own_name = self._own_name or await own_name()
        return self._own_name
