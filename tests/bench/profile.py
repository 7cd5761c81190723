"""Where does the daemon's time go? One scene under a profiler: `make bench ARGS="--profile FILE"`.

py-spy if it is installed, attached while the work is done: FILE.svg is a flame graph, FILE.txt stacks with counts, FILE.json for
speedscope. Without it the standard library's cProfile from start to end, whatever the name says (`python -m pstats FILE`); it
makes the daemon several times as slow, and small functions look larger than they are.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench import work
from tests.bench.bench import Bench
from tests.bench.row import Row
from tests.bench.scenes import BEST, SCENES, Scene
from tests.bench.worker import worker

FORMATS = {".svg": "flamegraph", ".json": "speedscope"}
SAMPLES_PER_S = "400"
ATTACHED_S = 1.5


async def rows(bench: Bench, *, file: Path) -> list[Row]:
    """Profile one scene, smtp-50 or the one that was named, into the file; returns no rows: under a profiler all is slow."""
    name = next(iter(bench.only), "smtp-50")
    (scene,) = (each for each in (*SCENES, BEST[0]) if each.name == name)
    await _take(bench, scene, file)
    return []


async def _take(bench: Bench, scene: Scene, file: Path) -> None:
    jobs, spy = bench.jobs(scene.jobs), _py_spy()
    through = [] if spy else [sys.executable, "-m", "cProfile", "-o", str(file), "-m", "daemon"]
    async with bench.database(schema=True) as database, bench.sink(scene.delay_ms) as sink:
        await work.enqueue(database, jobs, kind=scene.kind)
        await work.hold(database)
        released = work.Round(database, jobs)
        async with worker(
            bench.scratch, database.dsn, sink.port, scene.concurrency, through=through, changes=scene.changes
        ) as daemon:
            if spy is None:
                await released.run()
            else:
                async with _watched(spy, daemon.pid, file):
                    await released.run()
            await daemon.stop()
        await released.check()
    bench.say(f"{scene.name}: {jobs / released.seconds:,.0f} jobs/s under the profiler; see {file}")


@asynccontextmanager
async def _watched(spy: str, pid: int, file: Path) -> AsyncIterator[None]:
    """Sample the process until the block is left."""
    kind = FORMATS.get(file.suffix, "raw")
    command = (spy, "record", "--pid", str(pid), "--output", str(file), "--format", kind, "--rate", SAMPLES_PER_S)
    process: Process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    await asyncio.sleep(ATTACHED_S)
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode(errors="replace")


def _py_spy() -> str | None:
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
