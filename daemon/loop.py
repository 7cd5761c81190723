"""Which event loop? uvloop's where it is installed, which is everywhere but where it has no wheel; asyncio's own otherwise.

A mail costs the daemon much less CPU on uvloop. Both keep what `smtp.wire` rests on, whose tests run on both: a write to a plain
connection whose buffer is empty reaches the kernel before it returns.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the fastest kind that there is."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    return loop
