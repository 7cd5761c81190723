"""The open connections to one relay.

Answers: is there a connection that can be used now, and may another be opened? It owns the idle ones and counts the places.

Promises: a connection is used by one transaction at a time; no more than the relay's limit are open; whoever waits for a place
is served in order, and one who gives up waiting costs no place; a connection older, longer idle or more used than the settings
allow is not handed out again. An idle connection is never asked whether it still lives (relays count NOOPs): one that died is
replaced when it shows.

The limit adapts: halved when the relay says that we are too many, one more again for each minute of success. No I/O but
goodbyes; the clock is passed in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from daemon.core import settings
from daemon.smtp.connection import Connection

RECOVERY_S: Final = 60.0
_HALVING_S: Final = 1.0
"""Refusals that come together are one refusal: they answer connections opened before the first of them was heard."""


class Places:
    """A semaphore whose size can change; first come, first served."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a place. Cancelling is safe: a place that was granted in the same moment goes to the next."""
        if self.taken < self.limit:  # then nobody waits: every place that comes free is granted at once
            self.taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        """Return a place."""
        self.taken -= 1
        self.grant()

    def grant(self) -> None:
        """Let in whoever fits; needed after the limit has grown."""
        while self._waiters and self.taken < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)


class Pool:
    """What one relay's connections share."""

    def __init__(self, relay: settings.Relay, clock: Callable[[], float]) -> None:
        self.places = Places(relay.connections)
        self._relay = relay
        self._clock = clock
        self._idle: deque[tuple[float, Connection]] = deque()
        self._in_use: set[Connection] = set()
        self._limit_changed_mono = clock()

    @property
    def live(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._in_use) + len(self._idle)

    @property
    def next_expiry_mono(self) -> float | None:
        """When the longest idle connection has to go."""
        return self._idle[0][0] + self._relay.idle_s if self._idle else None

    def idle(self) -> Connection | None:
        """Take the connection that was used last, if one is good; the others go to sleep at the far end and expire."""
        self.expire()
        if not self._idle:
            return None
        _, connection = self._idle.pop()
        self._in_use.add(connection)
        return connection

    def add(self, connection: Connection) -> None:
        """Count a connection that was just opened, in use."""
        connection.opened_mono = self._clock()
        self._in_use.add(connection)

    def check_in(self, connection: Connection) -> None:
        """Take a connection back: keep it if it can be used again, else part from it."""
        self._in_use.discard(connection)
        if not connection.reusable:
            connection.abort()
        elif self._worn(connection) or self.live >= self.places.limit:
            connection.quit()
        else:
            connection.reused = connection.transactions > 0
            self._idle.append((self._clock(), connection))

    def expire(self) -> None:
        """Part from idle connections that died or whose time is over."""
        kept: deque[tuple[float, Connection]] = deque()
        for since_mono, connection in self._idle:
            over = self._clock() - since_mono >= self._relay.idle_s or self._too_old(connection)
            if over or not connection.reusable:
                connection.quit()
            else:
                kept.append((since_mono, connection))
        self._idle = kept

    def clear(self) -> None:
        """Part from all idle connections."""
        for _, connection in self._idle:
            connection.quit()
        self._idle.clear()

    def slow_down(self) -> bool:
        """Halve the number of connections; False if that was just done or there is only one."""
        now = self._clock()
        if now - self._limit_changed_mono < _HALVING_S and self.places.limit < self._relay.connections:
            return False
        limit = max(1, min(self.places.limit, self.places.taken) // 2)
        slower = limit < self.places.limit
        self.places.limit = limit
        self._limit_changed_mono = now
        while self._idle and self.live > limit:  # the relay counts the idle ones too
            self._idle.popleft()[1].quit()
        return slower

    def speed_up(self) -> None:
        """Allow one connection more, if a minute went well."""
        if self.places.limit < self._relay.connections and self._clock() - self._limit_changed_mono >= RECOVERY_S:
            self.places.limit += 1
            self._limit_changed_mono = self._clock()
            self.places.grant()

    def _worn(self, connection: Connection) -> bool:
        return connection.transactions >= self._relay.messages_per_connection or self._too_old(connection)

    def _too_old(self, connection: Connection) -> bool:
        return self._clock() - connection.opened_mono >= self._relay.max_age_s
