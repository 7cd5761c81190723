"""How does the demonstration run a program of its own, hear what it says, and end it?

A child lives in a session of its own, so that Ctrl-C in the terminal reaches it only through us; and it ends when we end,
however we end: by a keeper, or because it watches its standard input itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from daemon.dev import keeper

LINE_BYTES = 1024 * 1024
PACKAGE_PARENT = Path(__file__).parents[2]
FOREIGN = ("MAILSLOT_", "NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_", "CREDENTIALS_DIRECTORY")


class Child:
    """One running program whose standard output is JSON lines."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str | Path, at_end: str | None = None) -> Self:
        """Start `python -m MODULE ARGUMENTS..`, the same code as ours, and none of the environment's mailslot settings.

        Args:
            module: what to run.
            arguments: its arguments.
            at_end: what a keeper does to it when we are gone, such as `TERM:5`; None: it watches its standard input itself.
        """
        command: list[str | Path] = [sys.executable, "-P", "-m", module, *arguments]
        if at_end is not None:
            command = [sys.executable, "-I", keeper.__file__, "--at-end", at_end, "--", *command]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, env=environment(os.environ), start_new_session=True
        )
        return cls(process)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what it says, until it ends; what isn't a JSON object comes as the event `said`."""
        assert self._process.stdout is not None  # noqa: S101  it was started with a pipe
        async for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            yield (
                said
                if isinstance(said, dict)
                else {"level": "warning", "event": "said", "text": line.decode(errors="replace").rstrip()}
            )

    def order(self, signal_name: str) -> None:
        """Have its keeper send it a signal, such as TERM; nothing happens when it has ended."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(f"{signal_name}\n".encode())

    async def end(self) -> int:
        """Let it end by the end of its standard input, and return its exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        return await self._process.wait()


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: ours, without what would lead it to another database, and with our code first."""
    kept = {name: value for name, value in ours.items() if not name.startswith(FOREIGN)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), ours.get("PYTHONPATH")]))
    return kept
