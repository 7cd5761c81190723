"""The connections to PostgreSQL that statements share: taken for one statement, given back after it.

asyncpg has a pool of its own. It wraps each connection for each use and makes two tasks for that, to be safe from whatever its
users do; here every user is `store`, which gives back in a finally. Measured for `SELECT 1` on uvloop: 75 us of CPU by way of
that pool, 22 us by this one, of which 17 are the statement's. With some 20 mails to a statement, and three statements for a mail,
that was a tenth of all that the daemon did.

Promises: no more than `limit` at a time; a connection that isn't sound, or is older than the last `expire`, is never given out;
who waits for a place gets it in order, and one who gives up costs none. Never retries, never logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from daemon.core.errors import StoreUnavailable
from daemon.database import Connection


class Connections:
    """At most `limit` connections, opened when they are needed and closed when nobody has needed them for `idle_s` seconds."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, limit: int, idle_s: float, clock: Callable[[], float]
    ) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._clock = clock
        self._places = asyncio.Semaphore(limit)
        self._idle: deque[tuple[float, Connection]] = deque()
        self._sound: set[Connection] = set()
        """Those that may be given out again."""
        self._open: set[Connection] = set()
        self._expiries = 0
        self._is_closed = False

    async def take(self, wait_s: float) -> Connection:
        """Return a connection for one statement, the one that was used last if one is idle.

        Raises TimeoutError when no place came free in `wait_s` seconds, StoreUnavailable after `close`, and what `connect`
        raises. Cancelling is safe.
        """
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        if self._places.locked():
            async with asyncio.timeout(wait_s):
                await self._places.acquire()
        else:
            await self._places.acquire()  # at once
        try:
            while self._idle:
                _, connection = self._idle.pop()
                if connection in self._sound and not connection.is_closed():
                    return connection
                self._drop(connection)
            return await self._opened()
        except BaseException:
            self._places.release()
            raise

    async def _opened(self) -> Connection:
        expiries = self._expiries
        connection = await self._connect()
        if self._is_closed:
            connection.terminate()
            raise StoreUnavailable("the store was closed")
        self._open.add(connection)
        if expiries == self._expiries:  # else it may be one to the server that isn't wanted any more: for this statement only
            self._sound.add(connection)
        return connection

    def give_back(self, connection: Connection, *, sound: bool) -> None:
        """Let the next have it, or end it if nobody knows what it would answer next."""
        if sound and connection in self._sound and not connection.is_closed():
            self._idle.append((self._clock(), connection))
        else:
            self._drop(connection)
        while self._idle and self._clock() - self._idle[0][0] > self._idle_s:
            self._drop(self._idle.popleft()[1])
        self._places.release()

    def expire(self) -> None:
        """Connect anew from now on; statements that are under way may end on what they have."""
        self._expiries += 1
        self._sound.clear()
        while self._idle:
            self._drop(self._idle.pop()[1])

    def close(self) -> None:
        """End all connections at once, those in use too, and open none any more."""
        self._is_closed = True
        for connection in tuple(self._open):
            self._drop(connection)
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        self._sound.discard(connection)
        self._open.discard(connection)
        connection.terminate()
