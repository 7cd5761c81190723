"""What every scene needs: the server, sinks, folders, how often and how much, and a way to say how far it is."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.bench import postfix, sinks
from tests.bench.server import Postgres
from tests.support.database import Database

LEAST_JOBS = 1000
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Bench:
    """One run."""

    server: Postgres
    scratch: Path
    """Removed at the end of the run."""
    keep: Path
    """Stays: what took long to fetch or to make."""
    tools: postfix.Tools | None
    quick: bool = False
    only: Sequence[str] = ()
    repeats: int = REPEATS
    """How often each scene is measured."""

    def jobs(self, number: int) -> int:
        """Return how many jobs a scene has: all, or a tenth when it has to be quick."""
        return max(number // 10, LEAST_JOBS) if self.quick else number

    def wanted(self, name: str) -> bool:
        """Return whether a scene was asked for: by its name, by a pattern such as smtp*, or because none was named."""
        return not self.only or any(fnmatch(name, pattern) for pattern in self.only)

    def say(self, text: str) -> None:
        """Say on standard error what is going on."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    @asynccontextmanager
    async def database(self, *, schema: bool = False) -> AsyncIterator[Database]:
        """Hold a fresh database, empty or with mailslot's schema."""
        async with self.server.database(schema=schema) as database:
            yield database

    @asynccontextmanager
    async def sink(self, delay_ms: float = 0.0) -> AsyncIterator[sinks.Sink]:
        """Run a sink: Postfix's where it is there and no delay is asked for, else the project's own."""
        if self.tools is not None and not delay_ms:
            async with sinks.postfix_sink(self.tools, self.scratch) as theirs:
                yield theirs
        else:
            async with sinks.own_sink(delay_ms) as own:
                yield own
