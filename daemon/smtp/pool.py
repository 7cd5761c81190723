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

    def take_now(self) -> bool:
        """Take a place if one is free. Then nobody waits for it: every place that comes free is granted at once."""
        if self.taken >= self.limit:
            return False
        self.taken += 1
        return True

    async def take(self) -> None:
        """Wait for a place. Cancelling is safe: a place that was granted in the same moment goes to the next."""
        if self.take_now():
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
        if self._waiters:
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
        return len(self._in_use) + sum(connection.reusable for _, connection in self._idle)

    @property
    def next_expiry_mono(self) -> float | None:
        """When the longest idle connection has to go."""
        return self._idle[0][0] + self._relay.idle_s if self._idle else None

    def idle(self) -> Connection | None:
        """Take the connection that was used last, if one is good; the others go to sleep at the far end and expire there.

        Only those that are taken are looked at: one that died or grew old behind them costs nothing until its turn comes.
        """
        now = self._clock()
        while self._idle:
            since_mono, connection = self._idle.pop()
            if not self._over(since_mono, connection, now):
                self._in_use.add(connection)
                return connection
            connection.quit()
        return None

    def add(self, connection: Connection) -> None:
        """Count a connection that was just opened, in use."""
        connection.opened_mono = self._clock()
        self._in_use.add(connection)

    def check_in(self, connection: Connection) -> None:
        """Take a connection back: keep it if it can be used again, else part from it."""
        self._in_use.discard(connection)
        now = self._clock()
        if not connection.reusable:
            connection.abort()
        elif self._worn(connection, now) or self._full:
            connection.quit()
        else:
            connection.reused = connection.transactions > 0
            self._idle.append((now, connection))

    def expire(self) -> None:
        """Part from all idle connections that died or whose time is over."""
        now = self._clock()
        kept: deque[tuple[float, Connection]] = deque()
        for since_mono, connection in self._idle:
            if self._over(since_mono, connection, now):
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

    @property
    def _full(self) -> bool:
        """Whether there are as many as the relay lets us have; the dead ones are told from the others only if it matters."""
        return len(self._in_use) + len(self._idle) >= self.places.limit <= self.live

    def _over(self, since_mono: float, connection: Connection, now: float) -> bool:
        relay = self._relay
        over = now - since_mono >= relay.idle_s or now - connection.opened_mono >= relay.max_age_s
        return over or not connection.reusable

    def _worn(self, connection: Connection, now: float) -> bool:
        relay = self._relay
        return connection.transactions >= relay.messages_per_connection or now - connection.opened_mono >= relay.max_age_s
