"""What stands above the daemon: the same SMTP without its queue, the same statements without SMTP, and Postfix's own source."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Sequence

from tests.bench import meter, work
from tests.bench.bench import Bench
from tests.bench.processes import cpu_s
from tests.bench.row import LIMIT, Figures, Row
from tests.bench.scenes import BEST, SCENES, Scene, best_of, measured
from tests.bench.worker import sections
from tests.support.process import ROOT, write_configuration

MESSAGE_BYTES = "1000"


async def scenes_beside_them(bench: Bench) -> list[Row]:
    """Measure the daemon in every scene that is wanted, and right after it the limits of that scene."""
    rows: list[Row] = []
    for scene in SCENES:
        if bench.wanted(scene.name):
            rows += [await measured(bench, scene), *await of_scene(bench, scene)]
    if bench.wanted(BEST[0].name):
        rows += [await best_of(bench, BEST), *await of_scene(bench, BEST[0])]
    return rows


async def of_scene(bench: Bench, scene: Scene) -> list[Row]:
    """Measure every limit of a scene."""
    rows = []
    if scene.kind == "email":
        rows.append(await _row(bench, scene, "same SMTP, no queue", _transactions))
        if scene.delay_ms:
            rows.append(Row(scene.name, LIMIT, [{"jobs_per_s": scene.concurrency / scene.delay_ms * 1000}], "slots / delay"))
        elif bench.tools is not None:
            rows.append(await _row(bench, scene, "smtp-source", _source))
    rows.append(await _row(bench, scene, "same statements, no SMTP", _statements))
    return rows


async def _row(bench: Bench, scene: Scene, how: str, once: Callable[[Bench, Scene], Awaitable[Figures]]) -> Row:
    repeats = [await once(bench, scene) for _ in range(bench.repeats)]
    row = Row(scene.name, LIMIT, repeats, how)
    bench.say(f"{scene.name}, limit: {how}: {row.figures['jobs_per_s']:,.0f} jobs/s")
    return row


async def _transactions(bench: Bench, scene: Scene) -> Figures:
    mails = bench.jobs(scene.jobs)
    async with bench.sink(scene.delay_ms) as sink:
        config = write_configuration(bench.scratch, sections("postgresql:///nowhere", sink.port, scene.concurrency, {}))
        used = cpu_s([sink.pid])
        arguments = ["--config", str(config), "--coroutines", str(scene.concurrency), "--mails", str(mails)]
        said = await _module("tests.bench.transactions", arguments)
        used = cpu_s([sink.pid]) - used
        came = await sink.count()
        assert came == mails, f"{came} mails came of {mails}"
    return {
        "jobs_per_s": mails / said["seconds"],
        "worker_cpu_ms": said["cpu_s"] * 1000 / mails,
        "sink_cpu_ms": used * 1000 / mails,
    }


async def _statements(bench: Bench, scene: Scene) -> Figures:
    jobs = bench.jobs(scene.jobs)
    async with bench.database(schema=True) as database:
        await work.enqueue(database, jobs, kind=scene.kind)
        config = write_configuration(bench.scratch, sections(database.dsn, 9, scene.concurrency, {}))
        before = await meter.read(bench.server, database, worker=[])
        said = await _module("tests.bench.statements", ["--config", str(config)])
        after = await meter.settled(await meter.read(bench.server, database, worker=[]), bench.server, database)
        assert said["jobs"] == jobs, f"{said['jobs']} jobs were worked off of {jobs}"
    return {**meter.spent(before, after, jobs=jobs, seconds=said["seconds"]), "worker_cpu_ms": said["cpu_s"] * 1000 / jobs}


async def _source(bench: Bench, scene: Scene) -> Figures:
    mails, tools = bench.jobs(scene.jobs), bench.tools
    assert tools is not None
    async with bench.sink() as sink:
        used, begun = cpu_s([sink.pid]), time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(
                tools.source,
                "-d",
                "-s",
                str(scene.concurrency),
                "-m",
                str(mails),
                "-l",
                MESSAGE_BYTES,
                f"{sink.host}:{sink.port}",
            ),
            env={**os.environ, **tools.environment},
        )
        assert await process.wait() == 0
        seconds = time.perf_counter() - begun
        used = cpu_s([sink.pid]) - used
        came = await sink.count()
        assert came == mails, f"{came} mails came of {mails}"
    return {"jobs_per_s": mails / seconds, "sink_cpu_ms": used * 1000 / mails}


async def _module(name: str, arguments: Sequence[str]) -> dict[str, float]:
    """Run a module of the bench in a process of its own, and return what it has printed."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", name, *arguments, stdout=PIPE, cwd=ROOT)
    said, _ = await process.communicate()
    assert process.returncode == 0, f"{name} has failed"
    found: dict[str, float] = json.loads(said)
    return found
