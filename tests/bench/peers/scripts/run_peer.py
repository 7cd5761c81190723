"""A peer at work, in an environment of its own: what is the same for every peer.

    run_peer.py prepare '{"peer": .., "dsn": .., "payloads": FILE}'     makes the peer's tables, enqueues FILE's jobs in bulk
    run_peer.py work '{"peer": .., "dsn": .., "mode": .., ..}'          is a worker, until it is killed
    run_peer.py drip '{.., "payloads": FILE, "pause_s": S}'             enqueues FILE's jobs one by one

Started by `tests.bench.peers.trial`, never imported by it: this runs under the peer's own interpreter, where nothing of the
project is installed. A peer is a module `peer_NAME` beside this one, with `install`, `enqueue`, `enqueuer` and `work`.

A worker writes a line `ready` once everything is imported, waits for a line on its input, works, and writes `handled` when its
handler has returned for the last job, with the instant at which the first one began. A line is JSON. Instants are of the
monotonic clock, which all processes of a machine share, in seconds.

Modes say what a handler does: `noop` nothing; `fresh` what the documentation of aiosmtplib shows first, one `send` for a message,
with a connection that is opened and closed for it; `reused` the same with connections kept open, one for each job that runs at
that moment. Both build a standard EmailMessage. The name for EHLO is given: else aiosmtplib asks the resolver in a thread, for
each connection.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Protocol

import aiosmtplib
import uvloop

Payload = dict[str, Any]
Handler = Callable[[Payload], Awaitable[None]]
LOCAL_NAME = "localhost"
TIMEOUT_S = 60.0


class Peer(Protocol):
    """What a module `peer_NAME` does."""

    async def install(self, dsn: str) -> None:
        """Make the peer's tables."""

    async def enqueue(self, dsn: str, payloads: list[Payload]) -> None:
        """Enqueue all, by the peer's own fastest way."""

    def enqueuer(self, dsn: str, payloads: Iterable[Payload]) -> AsyncIterator[None]:
        """Enqueue one job, committed, each time that the next value is asked for."""

    async def work(self, dsn: str, handle: Handler, settings: dict[str, Any]) -> None:
        """Hand the payload of each job to `handle`, for ever."""


class Mailer:
    """Sends messages through aiosmtplib, on fresh or on reused connections."""

    def __init__(self, host: str, port: int) -> None:
        self._connection: dict[str, Any] = {
            "hostname": host,
            "port": port,
            "local_hostname": LOCAL_NAME,
            "timeout": TIMEOUT_S,
            "start_tls": False,
        }
        self._idle: list[aiosmtplib.SMTP] = []

    async def send_fresh(self, payload: Payload) -> None:
        """Send one message on a connection of its own."""
        await aiosmtplib.send(message_of(payload), **self._connection)

    async def send_reused(self, payload: Payload) -> None:
        """Send one message on the connection that was used last, or on a new one while all are busy."""
        client = self._idle.pop() if self._idle else await self._open()
        await client.send_message(message_of(payload))
        self._idle.append(client)

    async def _open(self) -> aiosmtplib.SMTP:
        client = aiosmtplib.SMTP(**self._connection)
        await client.connect()
        return client


def message_of(payload: Payload) -> EmailMessage:
    """Build the message of a job as everybody does."""
    message = EmailMessage()
    message["From"] = payload["from"]
    message["To"] = ", ".join(payload["to"])
    message["Subject"] = payload["subject"]
    message.set_content(payload["text"])
    return message


async def do_nothing(_payload: Payload) -> None:
    """Stand for a handler that costs nothing."""


class Counter:
    """Counts what the handler did, and says so when the last job is through."""

    def __init__(self, handler: Handler, jobs: int, *, keeps_starts: bool) -> None:
        self._handler = handler
        self._jobs = jobs
        self._handled = 0
        self._running = 0
        self._most_running = 0
        self._starts: dict[str, float] | None = {} if keeps_starts else None
        self._first_mono: float | None = None
        self._has_failed = False

    async def handle(self, payload: Payload) -> None:
        """Run the handler for one job. What it raises is said once, and goes on to the peer."""
        if self._first_mono is None:
            self._first_mono = time.monotonic()
        if self._starts is not None:
            self._starts[payload["to"][0]] = time.monotonic()
        self._running += 1
        self._most_running = max(self._most_running, self._running)
        try:
            await self._handler(payload)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                say("failed", reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            self._running -= 1
        self._handled += 1
        if self._handled == self._jobs:
            say("handled", first_mono=self._first_mono, most_running=self._most_running, starts=self._starts)


def say(event: str, **values: object) -> None:
    """Write one line for the process that started this one."""
    print(json.dumps({"event": event, **values}), flush=True)


def payloads_of(path: str) -> list[Payload]:
    """Read one payload from each line."""
    with Path(path).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


async def prepare(peer: Peer, order: dict[str, Any]) -> None:
    """Make the tables, and enqueue."""
    await peer.install(order["dsn"])
    if order["payloads"]:
        await peer.enqueue(order["dsn"], payloads_of(order["payloads"]))


async def work(peer: Peer, order: dict[str, Any]) -> None:
    """Be a worker."""
    mailer = Mailer(order["host"], order["port"])
    handlers: dict[str, Handler] = {"noop": do_nothing, "fresh": mailer.send_fresh, "reused": mailer.send_reused}
    counter = Counter(handlers[order["mode"]], order["jobs"], keeps_starts=order["keeps_starts"])
    say("ready")
    sys.stdin.readline()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), leave)  # its end is the end of who started us
    await peer.work(order["dsn"], counter.handle, order["settings"])


def leave() -> None:
    """Leave at once: who measures is gone."""
    os._exit(1)


async def drip(peer: Peer, order: dict[str, Any]) -> None:
    """Enqueue one job after each pause, and say when each was acknowledged."""
    payloads = payloads_of(order["payloads"])
    acknowledged: dict[str, float] = {}
    due = time.monotonic()
    enqueued = peer.enqueuer(order["dsn"], payloads)
    for payload in payloads:
        due += order["pause_s"]
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await anext(enqueued)
        acknowledged[payload["to"][0]] = time.monotonic()
    say("enqueued", acknowledged=acknowledged)


def main() -> None:
    """Do what the arguments say, on uvloop."""
    command, order = sys.argv[1], json.loads(sys.argv[2])
    peer: Any = importlib.import_module("peer_" + order["peer"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run({"prepare": prepare, "work": work, "drip": drip}[command](peer, order))


if __name__ == "__main__":
    main()
