"""The connections that statements share, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from daemon.connections import Connections
from daemon.core.errors import StoreUnavailable
from daemon.core.settings import Database as Settings
from daemon.database import Connection, connect
from tests.support.database import Database

LIMIT, IDLE_S, WAIT_S = 2, 60.0, 5.0


class Bench:
    """Connections whose opening can be made to fail, and whose clock stands still."""

    def __init__(self, dsn: str) -> None:
        self.now_s = 0.0
        self.opened = 0
        self.broken = False
        self.last: Connection | None = None
        self._is_connected, self._may_go_on = asyncio.Event(), asyncio.Event()
        self._may_go_on.set()
        self._settings = Settings(dsn=dsn)
        self.shared = Connections(self._connect, limit=LIMIT, idle_s=IDLE_S, clock=lambda: self.now_s)

    async def _connect(self) -> Connection:
        if self.broken:
            raise StoreUnavailable("nobody answers")
        self.opened += 1
        self.last = await connect(self._settings, application_name="a test")
        self._is_connected.set()
        await self._may_go_on.wait()
        return self.last

    async def take(self) -> Connection:
        """Take one, and see that it works."""
        connection = await self.shared.take(WAIT_S)
        assert await connection.fetchval("SELECT 1") == 1
        return connection

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[list[Connection | StoreUnavailable]]:
        """Let a connection be on its way while the block runs; afterwards the list holds it, or why there is none."""
        self._may_go_on.clear()
        self._is_connected.clear()
        found: list[Connection | StoreUnavailable] = []

        async def take() -> None:
            try:
                found.append(await self.shared.take(WAIT_S))
            except StoreUnavailable as error:
                found.append(error)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take())
            await self._is_connected.wait()
            yield found
            self._may_go_on.set()


@pytest.fixture
async def bench(shared_database: Database) -> AsyncIterator[Bench]:
    """Return a bench that leaves nothing open."""
    bench = Bench(shared_database.dsn)
    yield bench
    bench.shared.close()


async def test_a_connection_is_used_again(bench: Bench) -> None:
    """The one that was used last, so that the others can become old."""
    first, second = await bench.take(), await bench.take()
    bench.shared.give_back(first, sound=True)
    bench.shared.give_back(second, sound=True)
    assert await bench.take() is second
    assert await bench.take() is first
    assert bench.opened == 2


async def test_there_are_no_more_than_the_limit_and_who_waits_is_served_in_order(bench: Bench) -> None:
    """A third waits until one comes back."""
    first, second = await bench.take(), await bench.take()
    got: list[str] = []

    async def wait(name: str) -> None:
        connection = await bench.take()
        got.append(name)
        bench.shared.give_back(connection, sound=True)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait("third"))
        tasks.create_task(wait("fourth"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not got
        bench.shared.give_back(first, sound=True)
    assert got == ["third", "fourth"]
    assert bench.opened == 2
    bench.shared.give_back(second, sound=True)


async def test_who_gives_up_waiting_costs_no_place(bench: Bench) -> None:
    """By a cancel or by the time that it would wait."""
    held = [await bench.take(), await bench.take()]
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(bench.take())
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(TimeoutError):
        await bench.shared.take(0.01)
    for connection in held:
        bench.shared.give_back(connection, sound=True)
    assert {await bench.take(), await bench.take()} == set(held)


async def test_a_connection_that_could_not_be_opened_costs_no_place(bench: Bench) -> None:
    """However often that happens."""
    bench.broken = True
    for _ in range(LIMIT + 1):
        with pytest.raises(StoreUnavailable):
            await bench.take()
    bench.broken = False
    await bench.take()
    await bench.take()


async def test_what_is_not_sound_is_ended(bench: Bench) -> None:
    """Nobody knows what it would answer next."""
    connection = await bench.take()
    bench.shared.give_back(connection, sound=False)
    assert connection.is_closed()
    assert await bench.take() is not connection


async def test_what_has_closed_meanwhile_is_not_given_out(bench: Bench) -> None:
    """Idle, or by the time that it comes back."""
    idle, used = await bench.take(), await bench.take()
    bench.shared.give_back(idle, sound=True)
    idle.terminate()
    used.terminate()
    bench.shared.give_back(used, sound=True)
    await bench.take()
    await bench.take()
    assert bench.opened == 4


async def test_after_expiry_every_connection_is_a_new_one(bench: Bench) -> None:
    """Those that were idle, and those that were in use."""
    idle, used = await bench.take(), await bench.take()
    bench.shared.give_back(idle, sound=True)
    bench.shared.expire()
    assert idle.is_closed()
    assert await used.fetchval("SELECT 1") == 1  # a statement under way may end
    bench.shared.give_back(used, sound=True)
    assert used.is_closed()
    assert {idle, used}.isdisjoint({await bench.take(), await bench.take()})


async def test_what_nobody_needs_for_long_is_closed(bench: Bench) -> None:
    """While those that are needed go on."""
    rare, often = await bench.take(), await bench.take()
    bench.shared.give_back(rare, sound=True)
    bench.shared.give_back(often, sound=True)
    bench.now_s = IDLE_S / 2
    bench.shared.give_back(await bench.take(), sound=True)
    bench.now_s = IDLE_S + 1.0
    bench.shared.give_back(await bench.take(), sound=True)
    assert rare.is_closed()
    assert not often.is_closed()


async def test_closing_ends_all_of_them(bench: Bench) -> None:
    """Those in use as well."""
    idle, used = await bench.take(), await bench.take()
    bench.shared.give_back(idle, sound=True)
    bench.shared.close()
    assert idle.is_closed()
    assert used.is_closed()
    bench.shared.give_back(used, sound=True)  # its user finds out in its own time
    with pytest.raises(StoreUnavailable):
        await bench.take()


async def test_what_was_being_opened_when_all_expired_serves_once(bench: Bench) -> None:
    """It may lead to the server that isn't wanted any more."""
    async with bench.opening() as found:
        bench.shared.expire()
    (connection,) = found
    assert isinstance(connection, Connection)
    bench.shared.give_back(connection, sound=True)
    assert connection.is_closed()


async def test_what_was_being_opened_when_all_was_closed_is_ended(bench: Bench) -> None:
    """Nobody is there to close it later."""
    async with bench.opening() as found:
        bench.shared.close()
    assert isinstance(found[0], StoreUnavailable)
    assert bench.last is not None
    assert bench.last.is_closed()
