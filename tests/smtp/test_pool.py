"""Who may have a connection, how many there are, and when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from daemon.smtp.connection import Connection
from daemon.smtp.pool import RECOVERY_S, Places, Pool
from tests.support.exchange import opened, relay_settings, sent
from tests.support.relay import ScriptedRelay


class Clock:
    """Seconds that pass when told to."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the present second."""
        return self.now


@pytest.fixture
async def server() -> AsyncIterator[ScriptedRelay]:
    """Return a relay that accepts everything."""
    async with ScriptedRelay() as relay:
        yield relay


class Idle:
    """A pool with a clock, whose connections have carried one message each."""

    def __init__(self, server: ScriptedRelay, **values: Any) -> None:  # noqa: ANN401 - settings
        self.server = server
        self.clock = Clock()
        self.pool = Pool(relay_settings(server.port, **values), self.clock)

    async def add(self) -> Connection:
        """Open a connection, send through it, and give it back."""
        connection = await opened(self.server)
        self.pool.add(connection)
        await sent(connection)
        self.pool.check_in(connection)
        return connection


async def test_connection_is_used_again_and_says_so(server: ScriptedRelay) -> None:
    """The one that came back is handed out, marked as reused."""
    idle = Idle(server)
    connection = await idle.add()
    assert idle.pool.idle() is connection
    assert connection.reused
    assert idle.pool.idle() is None
    assert idle.pool.live == 1
    connection.abort()


async def test_last_used_goes_first(server: ScriptedRelay) -> None:
    """So the ones too many fall asleep and expire."""
    idle = Idle(server)
    _, second = await idle.add(), await idle.add()
    assert idle.pool.idle() is second
    second.abort()
    idle.pool.clear()


@pytest.mark.parametrize(
    ("values", "passes_s"),
    [({"idle_s": 5.0}, 5.0), ({"idle_s": 500.0, "max_age_s": 300.0}, 300.0)],
)
async def test_connection_past_its_time_says_goodbye(server: ScriptedRelay, values: dict[str, float], passes_s: float) -> None:
    """Idle too long or too old: QUIT, and nobody gets it."""
    idle = Idle(server, **values)
    await idle.add()
    idle.clock.now += passes_s - 0.1
    idle.pool.expire()
    assert idle.pool.live == 1
    idle.clock.now += 0.1
    assert idle.pool.idle() is None
    await server.reached("quit")
    await server.events.wait(1, "closed")
    assert idle.pool.live == 0


async def test_connection_that_has_carried_enough_says_goodbye(server: ScriptedRelay) -> None:
    """Relays count messages per connection."""
    idle = Idle(server, messages_per_connection=1)
    await idle.add()
    assert idle.pool.idle() is None
    await server.reached("quit")


async def test_old_connection_is_not_kept_when_it_comes_back(server: ScriptedRelay) -> None:
    """Age counts from the opening."""
    idle = Idle(server, max_age_s=300.0)
    connection = await idle.add()
    assert idle.pool.idle() is connection
    idle.clock.now += 300.0
    idle.pool.check_in(connection)
    assert idle.pool.live == 0


async def test_connection_out_of_step_is_dropped_without_a_word(server: ScriptedRelay) -> None:
    """A QUIT would be taken for a part of whatever it is in the middle of."""
    idle = Idle(server)
    connection = await opened(server)
    idle.pool.add(connection)
    assert (await connection.envelope("a@x.org", ["b@x.org"], size=1, smtputf8=False)).ready
    idle.pool.check_in(connection)
    assert idle.pool.live == 0
    await server.events.wait(1, "closed")
    assert server.events.of("command", stage="quit") == []


async def test_connection_that_died_idle_is_not_handed_out(server: ScriptedRelay) -> None:
    """Nobody is asked by NOOP; what is known to be dead is left out."""
    idle = Idle(server)
    connection = await idle.add()
    connection.abort()
    assert idle.pool.idle() is None
    assert server.violations == []


async def test_dead_idle_connection_takes_nobodys_place(server: ScriptedRelay) -> None:
    """Only those that live count against the limit, also before anybody has looked at the dead ones."""
    idle = Idle(server, connections=2)
    dead = await idle.add()
    dead.abort()
    others = [await opened(server) for _ in range(2)]
    for connection in others:
        idle.pool.add(connection)
        await sent(connection)
    assert idle.pool.live == 2
    idle.pool.check_in(others[0])
    assert idle.pool.idle() is others[0]
    assert idle.pool.live == 2
    for connection in others:
        connection.abort()


async def test_old_connection_is_not_handed_out_from_behind_a_good_one(server: ScriptedRelay) -> None:
    """Each is looked at when its turn comes, not before."""
    idle = Idle(server, idle_s=5.0)
    await idle.add()
    idle.clock.now += 5.0
    young = await idle.add()
    assert idle.pool.idle() is young
    assert idle.pool.idle() is None
    await server.reached("quit")
    young.abort()


async def test_next_expiry_is_the_longest_idle_ones(server: ScriptedRelay) -> None:
    """The loop that parts from them sleeps until then."""
    idle = Idle(server, idle_s=5.0)
    empty = idle.pool.next_expiry_mono
    assert empty is None
    await idle.add()
    idle.clock.now += 1.0
    await idle.add()
    assert idle.pool.next_expiry_mono == 1005.0
    idle.pool.clear()


async def test_places_are_given_in_order_and_never_lost() -> None:
    """First come, first served; whoever is cancelled, granted or not, leaves a place to the next."""
    places = Places(1)
    order: list[str] = []

    async def visit(name: str) -> None:
        await places.take()
        order.append(name)

    async with asyncio.TaskGroup() as tasks:
        await places.take()
        visits = [tasks.create_task(visit(name)) for name in "abcd"]
        await asyncio.sleep(0)
        visits[0].cancel()
        await asyncio.sleep(0)
        places.give_back()
        visits[1].cancel()  # granted in this very step
        await visits[2]
        assert (order, places.taken) == (["c"], 1)
        places.give_back()
    assert order == ["c", "d"]
    places.give_back()
    assert places.taken == 0


async def test_newcomer_waits_its_turn() -> None:
    """A free place with somebody waiting for it is theirs."""
    places = Places(1)
    await places.take()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(places.take())
        await asyncio.sleep(0)
        places.give_back()
        second = tasks.create_task(places.take())
        await first
        assert not second.done()
        places.give_back()


async def test_relay_that_finds_us_too_many_gets_half() -> None:
    """Halved from what is really used; refusals that come together count once; at least one stays."""
    clock = Clock()
    pool = Pool(relay_settings(25, connections=20), clock)
    clock.now += 10.0
    for _ in range(10):
        await pool.places.take()
    assert pool.slow_down()
    assert not pool.slow_down()
    assert pool.places.limit == 5
    for expected in (2, 1, 1):
        clock.now += 2.0
        pool.slow_down()
        assert pool.places.limit == expected


async def test_first_refusal_counts_at_once() -> None:
    """Also in the first second of the pool."""
    pool = Pool(relay_settings(25, connections=20), Clock())
    assert pool.slow_down()


async def test_each_good_minute_gives_one_place_back() -> None:
    """Slowly, up to the configured limit, and whoever waits gets in."""
    clock = Clock()
    pool = Pool(relay_settings(25, connections=3), clock)
    pool.slow_down()
    assert pool.places.limit == 1
    await pool.places.take()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(pool.places.take())
        await asyncio.sleep(0)
        pool.speed_up()
        assert pool.places.limit == 1
        clock.now += RECOVERY_S
        pool.speed_up()
        await waiting
    for _ in range(5):
        clock.now += RECOVERY_S
        pool.speed_up()
    assert pool.places.limit == 3


async def test_halving_parts_from_idle_connections_too(server: ScriptedRelay) -> None:
    """The relay counts them; those in use go when they come back, if there are still too many."""
    idle = Idle(server, connections=4)
    connections = [await opened(server) for _ in range(4)]
    for connection in connections:
        await idle.pool.places.take()
        idle.pool.add(connection)
    await sent(connections[0])
    idle.pool.check_in(connections[0])
    idle.pool.places.give_back()
    assert idle.pool.slow_down()
    assert idle.pool.places.limit == 1
    await server.events.wait(1, "closed", connection=1)
    assert idle.pool.live == 3
    for connection in connections[1:]:
        await sent(connection)
        idle.pool.check_in(connection)
        idle.pool.places.give_back()
    assert idle.pool.live == 1
    assert idle.pool.idle() is connections[3]
    connections[3].abort()
