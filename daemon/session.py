"""The worker's own session with the database: one connection that extends leases and hears that there is work.

It isn't from the pool, so that slots can never keep the heartbeat waiting. LISTEN runs on it too: notifications arrive between
two heartbeats, and one heartbeat is enough to notice that both are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass

from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.settings import Settings
from daemon.database import Connection, connect, statement, translated
from daemon.slots import Lease

CHANNEL = "mailslot"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a worker tells about itself, for people; only `key` is unique, and nothing depends on the rest."""

    key: int
    owner: str
    host: str
    pid: int
    version: str
    concurrency: int


class Session:
    """Opens, keeps and loses one connection.

    `on_wake` is called with the text of every notification, `on_lost` when the connection ends.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        on_wake: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._on_wake = on_wake
        self._on_lost = on_lost
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that nobody has seen fail."""
        return self._connection is not None and not self._connection.is_closed()

    async def open(self) -> None:
        """Connect, register the worker, listen. Raises StoreUnavailable or StoreRefused; nothing stays open then."""
        self.drop()
        connection = await connect(self._settings.database, application_name=f"mailslot {self._identity.owner} session")
        try:
            with translated("session"):
                async with asyncio.timeout(self._settings.lease.heartbeat_timeout_s):
                    await self._introduce(connection)
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(self._ended)
        self._connection = connection

    async def _introduce(self, connection: Connection) -> None:
        await connection.execute(statement("session"))
        await connection.execute(statement("worker_enter"), *astuple(self._identity))
        if self._settings.worker.listen:
            await connection.add_listener(CHANNEL, self._woken)

    async def extend(self, leases: Sequence[Lease]) -> dict[object, str]:
        """Extend the leases in one statement; returns held, busy or lost by token. Raises StoreUnavailable after the time-out.

        Each time the worker is noted as seen, also with nothing held: that finds out about the link.
        """
        if self._connection is None:
            raise StoreUnavailable("extend: there is no session")
        lease = self._settings.lease
        try:
            with translated("extend"):
                async with asyncio.timeout(lease.heartbeat_timeout_s):
                    await self._connection.execute(statement("worker_enter"), *astuple(self._identity))
                    if not leases:
                        return {}
                    rows = await self._connection.fetch(
                        statement("extend"),
                        [held.job.id for held in leases],
                        [held.job.token for held in leases],
                        lease.duration_s,
                        lease.hard_cap_s,
                    )
        except BaseException:
            self.drop()
            raise
        return {row["token"]: row["state"] for row in rows}

    async def leave(self) -> None:
        """Unregister and close, as well as the server lets us; never raises."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(StoreUnavailable, StoreRefused), translated("leave"):
            async with asyncio.timeout(self._settings.lease.heartbeat_timeout_s):
                await connection.execute(statement("worker_leave"), self._identity.key)
        connection.terminate()

    def drop(self) -> None:
        """End the connection at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _woken(self, _connection: object, _pid: int, _channel: str, note: object) -> None:
        self._on_wake(str(note))

    def _ended(self, connection: object) -> None:
        if connection is self._connection:
            self._connection = None
            self._on_lost()
