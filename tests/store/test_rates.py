"""The buckets of tokens: all workers together never take more than the rate and the bucket allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from daemon.core.rate import Rate
from daemon.store import Store, Taken, Wish
from tests.store.queue import Queue, opened, settings_for
from tests.support.database import Database

SLOW = Rate(0.001, 5.0)
"""Gives a token in a quarter of an hour; the bucket holds a little less than five."""
QUICK = Rate(200.0, 300.0)


@pytest.fixture(autouse=True)
async def _no_buckets(queue: Queue) -> None:
    await queue.connection.execute("DELETE FROM mailslot.rates")


@pytest.fixture
async def stores(shared_database: Database) -> AsyncIterator[list[Store]]:
    """Return what three workers have."""
    stores = [await opened(settings_for(shared_database.dsn)) for _ in range(3)]
    yield stores
    for store in stores:
        store.close()


async def take(store: Store, tokens: int, rate: Rate = SLOW, relay: str = "r") -> Taken:
    """Take tokens from one bucket, or put some back."""
    (taken,) = await store.take([Wish(relay, rate, tokens)])
    return taken


async def level(connection: asyncpg.Connection) -> float:
    """Return what is in the bucket."""
    tokens: float = await connection.fetchval("SELECT tokens FROM mailslot.rates WHERE relay = 'r'")
    return tokens


async def test_a_bucket_is_full_at_first_and_gives_whole_tokens(queue: Queue) -> None:
    """No more than it has, and it says how long the next one takes."""
    assert SLOW.capacity == pytest.approx(4.999)
    first = await take(queue.store, 3)
    assert (first.relay, first.taken, first.wait_s) == ("r", 3, 0)
    second = await take(queue.store, 3)
    assert second.taken == 1
    assert 0 < second.wait_s <= 1
    third = await take(queue.store, 3)
    assert third.taken == 0
    assert third.wait_s <= second.wait_s


async def test_the_first_claim_of_all_takes_no_more_than_the_bucket_holds(queue: Queue) -> None:
    """Also where nobody has made the bucket yet."""
    assert (await take(queue.store, 50)).taken == 4
    assert await level(queue.connection) == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("filled_at", "expected"),
    [("- interval '2 s'", 5), ("- interval '1 hour'", 8), ("+ interval '1 hour'", 2)],
    ids=["a little later", "never more than it holds", "a clock that was set back"],
)
async def test_a_bucket_fills_by_the_databases_clock(queue: Queue, filled_at: str, expected: int) -> None:
    """By the rate, up to its capacity; a clock that jumps back takes nothing away and goes on from there."""
    rate = Rate(1.5, 9.5)
    assert rate.capacity == pytest.approx(8.0)
    await take(queue.store, 8, rate)
    await queue.connection.execute(f"UPDATE mailslot.rates SET tokens = 2, filled_at = clock_timestamp() {filled_at}")  # noqa: S608
    assert (await take(queue.store, 100, rate)).taken == expected
    ahead = await queue.connection.fetchval("SELECT filled_at > clock_timestamp() FROM mailslot.rates")
    assert ahead is False


async def test_tokens_that_are_put_back_can_be_taken_again(queue: Queue) -> None:
    """As if they had never been taken, so never above what the bucket holds."""
    assert (await take(queue.store, 4)).taken == 4
    assert (await take(queue.store, -3)).taken == 0
    assert (await take(queue.store, 10)).taken == 3
    await take(queue.store, -100)
    assert await level(queue.connection) == pytest.approx(SLOW.capacity)


async def test_a_put_back_into_no_bucket_makes_a_full_one(queue: Queue) -> None:
    """The row may have been deleted by somebody who cleans up."""
    assert (await take(queue.store, -2)).taken == 0
    assert await level(queue.connection) == pytest.approx(SLOW.capacity)


async def test_each_relay_has_a_bucket_of_its_own(queue: Queue) -> None:
    """One statement asks for all of them."""
    found = await queue.store.take([Wish("b", SLOW, 2), Wish("a", Rate(2.0, 3.0), 9)])
    assert {each.relay: each.taken for each in found} == {"a": 2, "b": 2}
    assert await queue.store.take([]) == []


async def test_three_workers_at_once_take_no_more_than_the_rate(queue: Queue, stores: list[Store]) -> None:
    """Whatever the order in which their statements run: the bucket and what came in meanwhile, to the last token."""
    clock = "SELECT extract(epoch FROM clock_timestamp())::float8"
    before_s = await queue.connection.fetchval(clock)
    taken: list[int] = []

    async def work(store: Store) -> None:
        taken.extend([(await take(store, 3, QUICK)).taken for _ in range(150)])

    async with asyncio.TaskGroup() as tasks:
        for store in stores * 2:
            tasks.create_task(work(store))
    elapsed_s = await queue.connection.fetchval(clock) - before_s
    came = QUICK.capacity + QUICK.per_s * elapsed_s
    assert QUICK.capacity <= sum(taken) <= came
    assert sum(taken) + await level(queue.connection) <= came
    assert 0 in taken


async def test_whoever_waited_for_the_lock_counts_from_when_it_got_it(
    queue: Queue, stores: list[Store], other: asyncpg.Connection
) -> None:
    """What began earlier and comes later never sets the clock back, which would fill the bucket twice."""
    await take(queue.store, 1, QUICK)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM mailslot.rates FOR UPDATE")
    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(take(store, 1, QUICK))
        await waiting_for_locks(queue, len(stores))
        released_at = await other.fetchval("SELECT clock_timestamp()")
        await transaction.commit()
    assert await queue.connection.fetchval("SELECT filled_at > $1 FROM mailslot.rates", released_at)


async def test_buckets_are_locked_in_the_order_of_their_names(queue: Queue, other: asyncpg.Connection) -> None:
    """Two workers that name them in another order would else wait for each other: who waits for b has no d yet."""
    wishes = [Wish("d", QUICK, 1), Wish("b", QUICK, 1)]
    await queue.store.take(wishes)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM mailslot.rates WHERE relay = 'b' FOR UPDATE")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.store.take(wishes))
        await waiting_for_locks(queue, 1)
        assert await other.fetchval("SELECT relay FROM mailslot.rates WHERE relay = 'd' FOR UPDATE NOWAIT") == "d"
        await transaction.commit()


async def waiting_for_locks(queue: Queue, count: int) -> None:
    """Return when so many statements wait for a row."""
    while await queue.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < count:
        await queue.connection.fetchval("SELECT pg_sleep(0.001)")
