"""What one run is made of, and the one way to wait in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tests.conformance.behaviour import Plan
from tests.conformance.casefile import Case
from tests.conformance.jobs import Work
from tests.conformance.world import Place
from tests.support.proxy import Proxy
from tests.support.relay import ScriptedRelay

LOOK_S = 0.02
MOMENT_S = 20.0
"""How long anything that has to happen is waited for."""


@dataclass(frozen=True)
class Scene:
    """The parts of a run."""

    case: Case
    plan: Plan
    work: Work
    places: list[Place]
    connection: asyncpg.Connection
    """Ours, past the link."""
    link: Proxy
    """The daemons' way to the database."""
    folder: Path
    sections: dict[str, Any]
    environment: Mapping[str, str]

    @property
    def relays(self) -> list[ScriptedRelay]:
        """The relays, in the order that the daemons prefer."""
        return [place.relay for place in self.places]


async def until(condition: Callable[[], bool], within_s: float = MOMENT_S) -> None:
    """Look again and again until the condition holds or the time is over."""

    async def holds() -> bool:
        return condition()

    await until_so(holds, within_s)


async def until_so(condition: Callable[[], Awaitable[bool]], within_s: float = MOMENT_S) -> None:
    """Look as `until` does, where looking takes a moment itself."""
    until_mono = time.monotonic() + within_s
    while not await condition() and time.monotonic() < until_mono:  # noqa: ASYNC110  rows can't set an event
        await asyncio.sleep(LOOK_S)
