"""The SMTP sink of a scene, in a process of its own: Debian's smtp-sink where it is, the project's own for everything else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.bench.postfix import Tools
from tests.bench.processes import free_port

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
BACKLOG = "1000"
START_TIMEOUT_S = 10.0
LARGEST_LINE = 16 * 1024 * 1024
COUNTERS = re.compile(rb"sess=\s*\d+ quit=\s*\d+ mesg=\s*(\d+)")


class Sink(Protocol):
    """A running sink."""

    name: str
    host: str
    port: int
    pid: int

    async def count(self) -> int:
        """Return how many mails it has taken so far."""


class OwnSink:
    """The project's own; `ask` returns everything that it has counted."""

    def __init__(self, process: Process, port: int) -> None:
        self.name = "own sink"
        self.host, self.port, self.pid = HOST, port, process.pid
        self._process = process

    async def count(self) -> int:
        """Return how many mails it has taken so far."""
        return int((await self.ask())["mails"])

    async def ask(self) -> dict[str, Any]:
        """Return its counts, and its stamps if it keeps any."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


class PostfixSink:
    """Postfix's: it writes its counters to a file, over and over; the last ones hold."""

    def __init__(self, process: Process, port: int, said: Path) -> None:
        self.name = "smtp-sink"
        self.host, self.port, self.pid = HOST, port, process.pid
        self._said = said

    async def count(self) -> int:
        """Return how many mails it has taken so far."""
        found = COUNTERS.findall(self._said.read_bytes()[-200:])
        return int(found[-1]) if found else 0


@asynccontextmanager
async def own_sink(delay_ms: float, *, stamps: bool = False) -> AsyncIterator[OwnSink]:
    """Run the project's own sink."""
    arguments = ["--delay-ms", str(delay_ms), *(["--stamps"] if stamps else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.sink", *arguments), stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=LARGEST_LINE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            port = json.loads(await process.stdout.readline())["port"]
        yield OwnSink(process, port)
    finally:
        await _ended(process)


@asynccontextmanager
async def postfix_sink(tools: Tools, folder: Path) -> AsyncIterator[PostfixSink]:
    """Run Postfix's smtp-sink, which keeps nothing but counters."""
    port, said = free_port(), folder / "smtp-sink.txt"
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with said.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(tools.sink, "-c", *user, f"{HOST}:{port}", BACKLOG),
            stdin=DEVNULL,
            stdout=output,
            stderr=DEVNULL,
            env={**os.environ, **tools.environment},
        )
    try:
        await _listening(port)
        yield PostfixSink(process, port, said)
    finally:
        await _ended(process)


async def _listening(port: int) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            await reader.readline()
            writer.close()
            return


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
