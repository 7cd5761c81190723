"""Fixtures of the fault tests: the scene on a shared server, and on one that may be stopped and crashed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import StartDaemon
from tests.faults.scene import Scene
from tests.support.database import Database
from tests.support.proxy import Proxy
from tests.support.relay import ScriptedRelay


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    """Return a relay that accepts everything until its script is changed."""
    async with ScriptedRelay() as relay:
        yield relay


@pytest.fixture
async def scene(database: Database, relay: ScriptedRelay, start_daemon: StartDaemon) -> AsyncIterator[Scene]:
    """Return the scene; when the test is over, what always holds is checked."""
    scene = Scene(database, relay, start_daemon)
    await scene.prepare()
    yield scene
    scene.check()


@pytest.fixture
async def private_scene(private_database: Database, relay: ScriptedRelay, start_daemon: StartDaemon) -> AsyncIterator[Scene]:
    """Return a scene whose server may be stopped and crashed (`private_server`)."""
    scene = Scene(private_database, relay, start_daemon)
    await scene.prepare()
    yield scene
    scene.check()


@pytest.fixture
async def link(scene: Scene) -> AsyncIterator[Proxy]:
    """Return a way to the scene's database that can be held and cut."""
    async with Proxy.to_database(scene.database.dsn) as proxy:
        yield proxy


@pytest.fixture
async def private_link(private_scene: Scene) -> AsyncIterator[Proxy]:
    """Return a way to the private database that can be held and cut."""
    async with Proxy.to_database(private_scene.database.dsn) as proxy:
        yield proxy
