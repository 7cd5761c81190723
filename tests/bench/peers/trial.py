"""One trial: one peer, one scene, one database that is dropped afterwards.

The clock runs from the start of the first handler to the moment at which the last job is seen to be recorded. So what a peer
needs to connect, and for its first claim, isn't counted against it. CPU is counted from a moment earlier: after all imports,
before the peer connects. Nothing is logged. The worker is killed afterwards: leaving isn't measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.bench import meter, work
from tests.bench.bench import Bench
from tests.bench.figures import percentile
from tests.bench.peers.catalogue import FOLDER, PICKUP, Peer, Scene
from tests.bench.peers.environment import NotMeasuredError, clean, last_line, output_of
from tests.bench.processes import peak_rss_mb
from tests.bench.row import Figures
from tests.support.database import Database

SCRIPT = FOLDER / "scripts" / "run_peer.py"
PREPARE_LIMIT_S = 120.0
READY_LIMIT_S = 30.0
HANDLED_LIMIT_S = 120.0
RECORDED_LIMIT_S = 30.0
LOOK_S = 0.005
SETTLE_S = 2.0
PAUSE_S = 0.1
LONGEST_LINE = 16 * 1024 * 1024
EVENT = b'{"event": '


class Worker:
    """A peer's worker, a process that tells its events as lines of JSON."""

    def __init__(self, process: Process, complaints: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._complaints = complaints

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def event(self, name: str, limit_s: float) -> dict[str, Any]:
        """Wait for an event and return it. Raises NotMeasuredError when anything else happens, or nothing does."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                line = await self._process.stdout.readline()
                while line and not line.startswith(EVENT):  # a peer's own word
                    line = await self._process.stdout.readline()
        except TimeoutError:
            raise NotMeasuredError(f"not {name} within {limit_s:g} s") from None
        if not line:
            raise NotMeasuredError(last_line(self._complaints.read_text(errors="replace")) or "its worker left without a word")
        event: dict[str, Any] = json.loads(line)
        if event["event"] != name:
            raise NotMeasuredError(f"its handler raised {event.get('reason')}")
        return event


class Trial:
    """What a trial needs to know: who, in which scene, with which handler."""

    def __init__(self, bench: Bench, peer: Peer, python: Path, scene: Scene, *, mode: str) -> None:
        self._bench = bench
        self._peer = peer
        self._python = python
        self._scene = scene
        self._mode = mode
        self._jobs = jobs_of(bench, peer, scene)

    async def throughput(self) -> Figures:
        """Let a worker do jobs that were all enqueued before. Raises NotMeasuredError."""
        async with AsyncExitStack() as stack:
            database = await stack.enter_async_context(self._bench.database())
            sink = await stack.enter_async_context(self._bench.sink(self._scene.delay_ms)) if self._mode != "noop" else None
            looking = await stack.enter_async_context(database.connection())
            order = {**self._order(database), "payloads": str(self._payloads())}
            if sink is not None:
                order |= {"host": sink.host, "port": sink.port}
            await self._script("prepare", order, limit_s=PREPARE_LIMIT_S)
            await database.execute("VACUUM ANALYZE")
            await database.execute("CHECKPOINT")
            async with self._working(order) as worker:
                before = await meter.read(self._bench.server, database, worker=[worker.pid], sink=sink)
                worker.go()
                handled = await worker.event("handled", HANDLED_LIMIT_S)
                recorded_mono = await self._recorded(looking)
                after = await meter.read(self._bench.server, database, worker=[worker.pid], sink=sink)
                memory_mb = peak_rss_mb(worker.pid)
            await self._check(looking, await sink.count() if sink is not None else None)
            after = await meter.settled(after, self._bench.server, database)
        figures = meter.spent(before, after, jobs=self._jobs, seconds=recorded_mono - handled["first_mono"])
        return {**figures, "peak_rss_mb": memory_mb, "most_running": handled["most_running"]}

    async def pickup(self) -> Figures:
        """Enqueue jobs one by one while a worker is idle, from another process: from the answer to the enqueue to the handler."""
        async with self._bench.database() as database:
            order = self._order(database)
            await self._script("prepare", {**order, "payloads": ""}, limit_s=PREPARE_LIMIT_S)
            async with self._working({**order, "keeps_starts": True}) as worker:
                worker.go()
                await asyncio.sleep(SETTLE_S)
                drip = {**order, "payloads": str(self._payloads()), "pause_s": PAUSE_S}
                said = await self._script("drip", drip, limit_s=PREPARE_LIMIT_S + self._jobs * PAUSE_S)
                handled = await worker.event("handled", RECORDED_LIMIT_S)
                async with database.connection() as connection:
                    await self._recorded(connection)
                    await self._check(connection, None)
        acknowledged = next(json.loads(line)["acknowledged"] for line in said.splitlines() if line.startswith(EVENT.decode()))
        waits_ms = [(start - acknowledged[whose]) * 1000 for whose, start in handled["starts"].items()]
        return {name: percentile(waits_ms, share) for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))}

    def _order(self, database: Database) -> dict[str, Any]:
        return {
            "peer": self._peer.name,
            "dsn": database.dsn,
            "mode": self._mode,
            "jobs": self._jobs,
            "settings": self._peer.way(self._scene).settings,
            "host": "",
            "port": 0,
            "keeps_starts": False,
        }

    def _payloads(self) -> Path:
        """Return the file of so many payloads: the same for every peer, and the same mails as ours."""
        file = self._bench.scratch / f"payloads-{self._jobs}.jsonl"
        if not file.exists():
            lines = (json.dumps({"from": work.SENDER, **work.payload(number)}) for number in range(self._jobs))
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file

    async def _script(self, command: str, order: dict[str, Any], *, limit_s: float) -> str:
        return await output_of([self._python, SCRIPT, command, json.dumps(order)], limit_s=limit_s, cwd=self._bench.scratch)

    @asynccontextmanager
    async def _working(self, order: dict[str, Any]) -> AsyncIterator[Worker]:
        complaints = self._bench.scratch / "peer.txt"
        with complaints.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(self._python, SCRIPT, "work", json.dumps(order)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                cwd=self._bench.scratch,
                env=clean(),
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        try:
            worker = Worker(process, complaints)
            await worker.event("ready", READY_LIMIT_S)
            yield worker
        finally:
            # All of its session: a child of its own would keep the pipes open, and so keep us waiting for their end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _recorded(self, connection: asyncpg.Connection) -> float:
        """Return the instant at which no job was left unfinished."""
        until = time.monotonic() + RECORDED_LIMIT_S
        while await connection.fetchval(f"/* bench */ {self._peer.unfinished}"):
            if time.monotonic() > until:
                raise NotMeasuredError(f"jobs not recorded {RECORDED_LIMIT_S:g} s after the last handler returned")
            await asyncio.sleep(LOOK_S)
        return time.monotonic()

    async def _check(self, connection: asyncpg.Connection, mails: int | None) -> None:
        """Check that each job is recorded as done, and that the sink has had each mail once."""
        done = await connection.fetchval(f"/* bench */ {self._peer.done}")
        if done != self._jobs:
            raise NotMeasuredError(f"{done} of {self._jobs} jobs are recorded as done")
        if mails is not None and mails != self._jobs:
            raise NotMeasuredError(f"the sink had {mails} mails for {self._jobs} jobs")


def jobs_of(bench: Bench, peer: Peer, scene: Scene) -> int:
    """Return how many jobs a trial has."""
    if scene is PICKUP:
        return 50 if bench.quick else 200
    return peer.nothings if "noop" in scene.modes else bench.jobs(peer.mails)
