"""Runs a test on each event loop that the daemon may run on: asyncio's own, and uvloop's where it is installed."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
if find_spec("uvloop") is not None:
    FACTORIES["uvloop"] = import_module("uvloop").new_event_loop


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn an async test into one that runs on a fresh loop of each kind; its fixtures must be synchronous."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:  # noqa: ANN401 - the test's own
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**arguments))

    own = inspect.signature(test)
    kind = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), kind])  # type: ignore[attr-defined]
    both: Callable[..., None] = pytest.mark.parametrize("new_loop", list(FACTORIES.values()), ids=list(FACTORIES))(run)
    return both
