"""The limit by the database: the daemon's own statements without SMTP: `python -m tests.bench.statements --config F ..`.

Tasks claim fifty jobs, mark them and record them as sent, over and over, each batch by three statements of the daemon's store. As
in the daemon there is one claim at a time: a second one would lock, for a moment, rows that the first has just taken.
What is left out: slots, messages, the wait for a relay, the log. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from daemon import config
from daemon.core.job import Job
from daemon.core.outcome import Record
from daemon.core.settings import Settings
from daemon.core.smtp import Stage
from daemon.loop import new_event_loop
from daemon.ports import Ports
from daemon.store import Ending, Level, MarkRequest, Store
from tests.bench import work

BATCH = 50
TASKS = 3
SENT = Record("sent", "sent", reason="accepted", relay="sink", reply="250 2.0.0 Ok: queued", stage=Stage.DOT)


class Batches:
    """Tasks that share one queue and its cursor."""

    def __init__(self, settings: Settings) -> None:
        self._ports = Ports()
        self._store = Store(settings, "bench", self._ports)
        self._from = Level(work.QUEUE, 1)
        self._claiming = asyncio.Lock()
        self.jobs = 0

    async def run(self) -> None:
        """Work off the whole queue."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(self._work())
        self._store.close()

    async def _work(self) -> None:
        while jobs := await self._claim():
            marked = await self._store.mark([MarkRequest(job, None, ("user@example.org",)) for job in jobs])
            assert {each.verdict for each in marked} == {"go"}, marked
            written = await self._store.record([Ending(job, SENT) for job in jobs])
            assert {each.state for each in written} == {"done"}, written
            self.jobs += len(jobs)

    async def _claim(self) -> list[Job]:
        async with self._claiming:
            tokens = [self._ports.token() for _ in range(BATCH)]
            jobs = await self._store.claim([self._from], tokens, suspects=False)
            if jobs:
                self._from = Level(work.QUEUE, 1, jobs[-1].available_at, jobs[-1].id)
            return jobs


async def measure(settings: Settings) -> dict[str, float]:
    """Work off the queue, and return the jobs, the seconds that passed and those of CPU."""
    batches = Batches(settings)
    begun, used = time.perf_counter(), time.process_time()
    await batches.run()
    return {"jobs": batches.jobs, "seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - used}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Claim, mark and record by the daemon's own statements, without SMTP.")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    settings = config.load(arguments.config, {}, {}, sends=True)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(measure(settings))))


if __name__ == "__main__":
    main()
