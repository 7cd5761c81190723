"""The real daemon as a process of its own, for tests that stop, stall and kill it.

`Daemon` writes a configuration whose times are short, starts `python -m daemon run`, and collects its JSON lines. Every wait
is for an event or for the end of the process; when the process ends first, the wait fails and shows what it said.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.database import Database

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
READY = "daemon.ready"

# Short, and still keeping the rules between them: three heartbeats fit into a lease, and nobody calls a mark overdue early.
SHORT: Mapping[str, Mapping[str, Any]] = {
    "database": {"connect_timeout_s": 0.5, "command_timeout_s": 1.0, "reconnect_max_s": 0.2},
    "worker": {
        "poll_interval_s": 0.2,
        "rescan_interval_s": 0.5,
        "sweep_interval_s": 0.3,
        "drain_timeout_s": 5.0,
        "reply_grace_s": 5.0,
        "function_timeout_s": 5.0,
    },
    "lease": {
        "duration_s": 3.0,
        "heartbeat_s": 0.6,
        "heartbeat_timeout_s": 0.5,
        "margin_s": 0.5,
        "hard_cap_s": 60.0,
        "takeover_grace_s": 1.0,
        "in_doubt_delay_s": 10.0,
    },
    "mail": {"from": "sender@example.org"},
    "relay": {
        "name": "relay",
        "host": "127.0.0.1",
        "tls": "none",
        "connect_timeout_s": 2.0,
        "command_timeout_s": 3.0,
        "data_timeout_s": 3.0,
        "body_timeout_s": 3.0,
        "dot_timeout_s": 5.0,
        "pause_s": 1.0,
    },
    "log": {"level": "debug", "format": "json"},
}
FOREIGN = ("NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY")


def configuration(dsn: str, relay_port: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short configuration, with the overrides put over it section by section.

    A list is of several `[[relay]]` or `[[rule]]`; each relay is put over the short one.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys([*SHORT, *overrides]):
        short, over = SHORT.get(name, {}), overrides.get(name, {})
        merged[name] = [{**short, **each} for each in over] if isinstance(over, list) else {**short, **over}
    merged["database"].setdefault("dsn", dsn)
    for relay in merged["relay"] if isinstance(merged["relay"], list) else [merged["relay"]]:
        relay.setdefault("port", relay_port)
    return merged


def as_toml(sections: Mapping[str, Any]) -> str:
    """Write the sections as TOML; strings, numbers, booleans and lists look the same in JSON."""
    lines: list[str] = []
    for name, values in sections.items():
        header = f"[[{name}]]" if name == "relay" or isinstance(values, list) else f"[{name}]"
        for table in values if isinstance(values, list) else [values]:
            lines.append(header)
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def write_configuration(folder: Path, sections: Mapping[str, Any]) -> Path:
    """Write the sections into a new file in the folder, and return its path."""
    config = folder / f"config-{len(list(folder.glob('config-*.toml')))}.toml"
    config.write_text(as_toml(sections))
    return config


async def agree(database: Database, sections: Mapping[str, Any]) -> None:
    """Make the database's settings those of the configuration, for a daemon refuses to start on others."""
    lease = sections["lease"]
    await database.execute(
        "UPDATE mailslot.settings SET lease_s = $1, in_doubt_delay_s = $2, hard_cap_s = $3,"
        " max_crashes = coalesce($4, max_crashes), max_doubts = coalesce($5, max_doubts)",
        lease["duration_s"],
        lease["in_doubt_delay_s"],
        lease["hard_cap_s"],
        lease.get("max_crashes"),
        lease.get("max_doubts"),
    )


class Daemon(asyncio.SubprocessProtocol):
    """One process of the daemon, and what it has said so far."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.config = Path()
        self._rest = {1: b"", 2: b""}
        self._errors: list[str] = []
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None

    @classmethod
    async def start(
        cls, folder: Path, sections: Mapping[str, Any], arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Self:
        """Write the configuration into the folder and start `python -m daemon run` there."""
        config = write_configuration(folder, sections)
        inherited = {
            name: value for name, value in os.environ.items() if name not in FOREIGN and not name.startswith("MAILSLOT_")
        }
        _, protocol = await asyncio.get_running_loop().subprocess_exec(
            cls,
            *(sys.executable, "-m", "daemon", "run", "--config", str(config), *arguments),
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        )
        protocol.config = config
        return protocol

    @property
    def pid(self) -> int:
        """Return the process id."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def errors(self) -> str:
        """Return what was written to standard error."""
        return "\n".join(self._errors)

    @property
    def position(self) -> int:
        """Return how many lines there are: give it to `event` as `since`, to wait for a later one."""
        return len(self.lines)

    def events(self, name: str, *, since: int = 0, **fields: object) -> list[dict[str, Any]]:
        """Return the lines so far of this event, with these fields."""
        return [
            line
            for line in self.lines[since:]
            if line.get("event") == name and all(line.get(key) == value for key, value in fields.items())
        ]

    async def event(self, name: str, *, since: int = 0, **fields: object) -> dict[str, Any]:
        """Wait for the first line of this event with these fields, also one that has come already."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not (found := self.events(name, since=since, **fields)):
                    assert not self._ended.is_set(), self._story(f"ended before {name} {fields}")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(self._story(f"said no {name} {fields} for {WAIT_S:g} s")) from None
        return found[0]

    async def wait_ready(self) -> None:
        """Wait until the daemon takes work."""
        await self.event(READY)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if not self._ended.is_set():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.signal(signal.SIGKILL)

    async def stopped(self) -> int:
        """Wait until the process has ended, and return its exit code; minus the signal's number if one ended it."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._ended.wait()
        except TimeoutError:
            raise AssertionError(self._story(f"didn't end for {WAIT_S:g} s")) from None
        assert self._transport is not None
        code = self._transport.get_returncode()
        assert code is not None
        return code

    async def stop(self) -> int:
        """Ask for a drain, wait for its end, and return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.stopped()

    def stop_reading(self) -> None:
        """Read no more of what the process says, so that the pipe fills; the end isn't noticed until `close_output`."""
        self._output().pause_reading()

    def close_output(self) -> None:
        """Close our end of the pipe, as a log collector does that dies."""
        self._output().close()

    async def close(self) -> None:
        """End the process if it still runs, also a stopped one, and wait for it."""
        self.kill()
        await self.stopped()
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the process."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep each whole line."""
        *whole, self._rest[fd] = (self._rest[fd] + data).split(b"\n")
        for line in whole:
            if fd == 1:
                self.lines.append(json.loads(line))
            else:
                self._errors.append(line.decode(errors="replace"))
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Note the end; everything that the process said has been read by now."""
        self._ended.set()
        self._changed.set()

    def _output(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(1)
        assert isinstance(pipe, asyncio.ReadTransport)
        return pipe

    def _story(self, what: str) -> str:
        said = "\n".join(json.dumps(line) for line in self.lines[-40:])
        code = self._transport.get_returncode() if self._transport else None
        return f"the daemon {what} (exit code {code})\n{said}\n{self.errors}"
