"""The one timer of many waits: it passes when it should, once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from math import inf
from unittest import mock

from daemon.deadline import Deadline
from tests.support.loops import on_both_loops

SOON_S = 0.02
LATER_S = 100.0


class Passed:
    """Counts how often it was called, and lets a test wait for that."""

    def __init__(self) -> None:
        self.times = 0
        self.event = asyncio.Event()

    def __call__(self) -> None:
        """Count."""
        self.times += 1
        self.event.set()


def after(seconds: float) -> float:
    """Return the loop's second that is so far away."""
    return asyncio.get_running_loop().time() + seconds


@on_both_loops
async def test_it_passes_once_and_not_before_its_time() -> None:
    """Then it is as if it had never been set."""
    passed = Passed()
    deadline = Deadline(passed)
    at = after(SOON_S)
    deadline.set(at)
    await passed.event.wait()
    assert asyncio.get_running_loop().time() >= at
    assert deadline.at == inf
    await asyncio.sleep(SOON_S)
    assert passed.times == 1


@on_both_loops
async def test_moved_away_it_passes_at_the_later_time() -> None:
    """The timer that rings in between is only set anew."""
    passed = Passed()
    deadline = Deadline(passed)
    deadline.set(after(SOON_S / 2))
    at = after(2 * SOON_S)
    deadline.set(at)
    await passed.event.wait()
    assert asyncio.get_running_loop().time() >= at
    assert passed.times == 1


@on_both_loops
async def test_moved_nearer_it_passes_at_the_nearer_time() -> None:
    """A wait with a short limit may follow one with a long one."""
    passed = Passed()
    deadline = Deadline(passed)
    deadline.set(after(LATER_S))
    deadline.set(after(SOON_S))
    async with asyncio.timeout(LATER_S / 2):
        await passed.event.wait()
    assert passed.times == 1


@on_both_loops
async def test_one_that_is_over_passes_at_once() -> None:
    """But not inside `set`."""
    passed = Passed()
    deadline = Deadline(passed)
    deadline.set(after(-1.0))
    assert passed.times == 0
    await passed.event.wait()


@on_both_loops
async def test_cleared_it_never_passes() -> None:
    """Until it is set again."""
    passed = Passed()
    deadline = Deadline(passed)
    deadline.set(after(SOON_S))
    deadline.clear()
    await asyncio.sleep(2 * SOON_S)
    assert passed.times == 0
    deadline.set(after(SOON_S))
    await passed.event.wait()


@on_both_loops
async def test_many_waits_take_one_timer() -> None:
    """That is what it is for: the loop hears of the first wait and of none of the others."""
    deadline = Deadline(Passed())
    loop = asyncio.get_running_loop()
    with mock.patch.object(deadline, "_loop", mock.Mock(wraps=loop)) as seen:
        for _ in range(1000):
            deadline.set(loop.time() + 5 * LATER_S)
            deadline.clear()
            deadline.set(loop.time() + 10 * LATER_S)
            deadline.clear()
        assert seen.call_at.call_count == 1
    deadline.close()


@on_both_loops
async def test_closed_it_keeps_nothing_alive() -> None:
    """A connection that ends in a minute isn't remembered for the ten that its answer had."""
    passed = Passed()
    deadline = Deadline(passed)
    deadline.set(after(LATER_S))
    deadline.close()
    gone = weakref.ref(passed)
    del passed, deadline
    gc.collect()
    assert gone() is None
