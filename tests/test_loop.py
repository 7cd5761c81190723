"""The event loop: the fast one where it is there."""

from __future__ import annotations

import asyncio
import sys

import pytest
import uvloop

from daemon.loop import new_event_loop


def test_uvloop_is_used_where_it_is_installed() -> None:
    """Nobody has to ask for it."""
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)


def test_without_uvloop_the_worker_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are machines that it has no wheel for."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)
