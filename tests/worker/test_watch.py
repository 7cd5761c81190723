"""The watchdog's question: have both loops come round in time?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from daemon import watch as module
from daemon.core.settings import Settings
from daemon.slots import Held
from daemon.watch import ONCE_PATIENCE_S, Watch, give_up_on_relays
from tests.worker.fakes import Clock, ports, running, turns

CLAIM_LIMIT_S = 1.0 + 3 * (3.0 + 5.0 + 2.0)
BEAT_LIMIT_S = 7.0 + 2.5 + 3 * (3.0 + 5.0 + 2.0)


class Told:
    """Stands in for the service manager."""

    watchdog_interval_s = 0.001

    def __init__(self) -> None:
        self.fed = 0
        self.said: list[str] = []
        self.spoken = asyncio.Event()

    def watchdog(self) -> None:
        """Note that it was fed."""
        self.fed += 1

    def status(self, text: str) -> None:
        """Note what was said."""
        self.said.append(text)
        self.spoken.set()

    async def again(self, times: int) -> None:
        """Wait until more was said, so many times."""
        for _ in range(times):
            self.spoken.clear()
            await self.spoken.wait()


def watching(clock: Clock, claimed_mono: float, beaten_mono: float, *, healthy: bool = True) -> Watch:
    """Return a watch over two loops that came round then."""
    claimer: Any = SimpleNamespace(round_mono=claimed_mono)
    heartbeat: Any = SimpleNamespace(round_mono=beaten_mono, healthy=healthy)
    return Watch(Settings(), claimer, heartbeat, Held(10), ports(clock))


@pytest.mark.parametrize(
    ("claim_age_s", "beat_age_s", "alive"),
    [
        (0.0, 0.0, True),
        (CLAIM_LIMIT_S - 0.1, BEAT_LIMIT_S - 0.1, True),
        (CLAIM_LIMIT_S, 0.0, False),
        (0.0, BEAT_LIMIT_S, False),
        (1e6, 1e6, False),
    ],
)
def test_alive_means_that_both_loops_have_come_round_in_time(claim_age_s: float, beat_age_s: float, alive: bool) -> None:  # noqa: FBT001
    """With success or without: the limits have room for every time-out of a database that is away."""
    clock = Clock()
    assert watching(clock, clock() - claim_age_s, clock() - beat_age_s).alive is alive


async def test_a_hang_starves_the_watchdog_and_an_outage_doesnt() -> None:
    """What is said goes on being said."""
    clock, told = Clock(), Told()
    watch = watching(clock, clock(), clock(), healthy=False)
    async with running(watch.run(told)):  # type: ignore[arg-type]
        await told.again(3)
        clock.pass_s(CLAIM_LIMIT_S)
        await turns()
        fed = told.fed
        await told.again(3)
        assert told.fed == fed
    assert set(told.said) == {"0/10 in flight, database away"}


async def test_once_gives_up_when_no_relay_has_been_usable_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A usable moment begins the half minute anew."""
    clock = Clock()
    stopped: list[float] = []
    usable_at = {1_000.0 + ONCE_PATIENCE_S - 1}

    async def next_second(_pause_s: float) -> None:
        clock.pass_s(1.0)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=next_second))
    await give_up_on_relays(lambda: clock() in usable_at, lambda: stopped.append(clock()), ports(clock))
    assert stopped == [1_000.0 + 2 * ONCE_PATIENCE_S - 1]
