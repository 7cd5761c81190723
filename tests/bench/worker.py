"""The daemon as its users run it: `mailslot run --config F --concurrency N`, JSON lines into a file, every guarantee on.

Metrics aren't in the figures: the daemon has none yet.
"""

from __future__ import annotations

import asyncio
import compileall
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.bench.work import SENDER
from tests.support.process import FOREIGN, READY, ROOT, write_configuration

MESSAGES_PER_CONNECTION = 1000
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.002


class Worker:
    """One running daemon."""

    def __init__(self, process: Process, log: Path, ready_s: float) -> None:
        self.pid = process.pid
        self.log = log
        self.ready_s = ready_s
        """Seconds from its start to READY, to about two milliseconds."""
        self._process = process

    async def stop(self) -> None:
        """Let it drain; returns when it has left. Raises AssertionError when it leaves with anything but 0."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            code = await self._process.wait()
        assert code == 0, f"the daemon left with {code}:\n{_tail(self.log)}"


def sections(dsn: str, port: int, concurrency: int, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configuration of a scene: the defaults, a relay for as many connections as there are slots, and the changes."""
    wanted: dict[str, dict[str, Any]] = {
        "database": {"dsn": dsn},
        "worker": {"name": "bench"},
        "mail": {"from": SENDER},
        "relay": {
            "name": "sink",
            "host": "127.0.0.1",
            "port": port,
            "tls": "none",
            "ehlo_name": "bench.example.org",
            "connections": concurrency,
            "messages_per_connection": MESSAGES_PER_CONNECTION,
        },
        "log": {"level": "info", "format": "json"},
    }
    for name, values in changes.items():
        wanted[name] = {**wanted.get(name, {}), **values}
    return wanted


@asynccontextmanager
async def worker(
    folder: Path,
    dsn: str,
    port: int,
    concurrency: int,
    *,
    through: Sequence[str] = (),
    changes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> AsyncIterator[Worker]:
    """Run a daemon, from READY on; it is killed if it hasn't been stopped before.

    Args:
        folder: where its configuration and its log go.
        dsn: its database.
        port: the sink's.
        concurrency: its slots, and the connections of its relay.
        through: a program and its arguments that `mailslot` is run with in place of the installed script, such as a profiler.
        changes: more of the configuration, section by section.
    """
    config = write_configuration(folder, sections(dsn, port, concurrency, changes))
    log = config.with_suffix(".jsonl")
    unset = (*FOREIGN, "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in unset and not name.startswith("MAILSLOT_")}
    environment["PYTHONPATH"] = str(ROOT)
    begun = time.monotonic()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(through or mailslot()),
            *("run", "--config", str(config), "--concurrency", str(concurrency)),
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            cwd=folder,
            env=environment,
        )
    try:
        await _ready(process, log)
        yield Worker(process, log, time.monotonic() - begun)
    except BaseException as error:
        error.add_note(f"the daemon's last lines:\n{_tail(log)}")
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def compile_daemon() -> None:
    """Compile the daemon's modules, as pip does when it installs them: a first start that compiles isn't what users see."""
    compileall.compile_dir(ROOT / "daemon", quiet=2)


def mailslot() -> list[str]:
    """Return the installed command, or the module where there is none beside this Python."""
    script = shutil.which("mailslot", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-m", "daemon"]


async def _ready(process: Process, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while READY not in _tail(log):
        assert process.returncode is None, f"the daemon ended before it was ready:\n{_tail(log)}"
        assert time.monotonic() < deadline, f"the daemon isn't ready:\n{_tail(log)}"
        await asyncio.sleep(LOOK_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
