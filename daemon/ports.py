"""The clock and the dice, as ports: what is passed in can be replaced by a simulation.

Nothing else in the worker reads a clock for a decision, or draws a random number.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4


def boottime_s() -> float:
    """Return CLOCK_BOOTTIME in seconds: it never steps, and it counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Ports:
    """The boot clock in seconds, random numbers in [0, 1), and random tokens."""

    boottime_s: Callable[[], float] = boottime_s
    number: Callable[[], float] = random.random
    token: Callable[[], UUID] = uuid4
