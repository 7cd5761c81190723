"""Jobs that lie ready, and one daemon that works them off: mails by SMTP, and a function that does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench import meter, work
from tests.bench.bench import Bench
from tests.bench.processes import peak_rss_mb
from tests.bench.row import OURS, Figures, Row
from tests.bench.worker import worker


@dataclass(frozen=True, slots=True)
class Scene:
    """What lies ready, and how the daemon is started."""

    name: str
    concurrency: int
    jobs: int
    kind: str = "email"
    delay_ms: float = 0.0
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


NOOP = {"handlers": {"noop": "daemon.handlers:noop"}}
SCENES: Sequence[Scene] = (
    Scene("smtp-10", 10, 20_000),
    Scene("smtp-50", 50, 40_000),
    Scene("smtp-50ms-200", 200, 20_000, delay_ms=50.0),
    Scene("noop-50", 50, 40_000, kind="noop", changes=NOOP),
)
BEST = tuple(Scene("noop-best", concurrency, 80_000, kind="noop", changes=NOOP) for concurrency in (200, 500))
"""Of these the best one is the row."""


async def once(bench: Bench, scene: Scene) -> Figures:
    """Run one scene once. Raises AssertionError when a job wasn't sent, or the sink has counted another number."""
    jobs = bench.jobs(scene.jobs)
    async with bench.database(schema=True) as database, bench.sink(scene.delay_ms) as sink:
        await work.enqueue(database, jobs, kind=scene.kind)
        await work.hold(database)
        released = work.Round(database, jobs)
        async with worker(bench.scratch, database.dsn, sink.port, scene.concurrency, changes=scene.changes) as daemon:
            before = await meter.read(bench.server, database, worker=[daemon.pid], sink=sink)
            await released.run()
            after = await meter.read(bench.server, database, worker=[daemon.pid], sink=sink)
            memory = peak_rss_mb(daemon.pid)
            await daemon.stop()
            log_bytes = daemon.log.stat().st_size
            daemon.log.unlink()
        await released.check()
        came = await sink.count()
        assert came == (jobs if scene.kind == "email" else 0), f"{came} mails came of {jobs}"
        after = await meter.settled(after, bench.server, database)
    figures = meter.spent(before, after, jobs=jobs, seconds=released.seconds)
    return {**figures, "peak_rss_mb": memory, "ready_s": daemon.ready_s, "log_bytes": log_bytes / jobs}


async def measured(bench: Bench, scene: Scene) -> Row:
    """Run one scene as often as it is to be repeated."""
    repeats = []
    for number in range(1, bench.repeats + 1):
        repeats.append(await once(bench, scene))
        bench.say(
            f"{scene.name}, concurrency {scene.concurrency}, {number} of {bench.repeats}: {repeats[-1]['jobs_per_s']:,.0f} jobs/s"
        )
    return Row(scene.name, OURS, repeats, how=f"concurrency {scene.concurrency}")


async def best_of(bench: Bench, scenes: Sequence[Scene]) -> Row:
    """Run several settings of one scene, and return the row of the one that got most done."""
    rows = [await measured(bench, scene) for scene in scenes]
    return max(rows, key=lambda row: row.figures["jobs_per_s"])
