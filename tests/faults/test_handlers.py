"""An operator's own functions: what they return, raise and mark, how they break, and what their worker's end means for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scene import PATIENT, Scene
from tests.support.process import Daemon

MODULE = '''
"""Functions of an operator; what they did is a line in a file each."""

import asyncio
import os
import sys
import time
from pathlib import Path

from daemon.handlers import Later, Rejected, marks_itself

FOLDER = Path(os.environ["HANDLER_FOLDER"])


def note(job, what):
    with (FOLDER / "done").open("a") as file:
        file.write(f"{job.id} {what}\\n")


async def done(job):
    note(job, "done")


async def later(job):
    note(job, "later")
    if job.attempt == 1:
        raise Later("not_yet", delay_s=0.2)


async def rejected(job):
    raise Rejected("no_such_report")


async def broken(job):
    note(job, "broken")
    if job.attempt == 1:
        raise ValueError("a surprise")


@marks_itself
async def steps(job):
    note(job, "before")
    if job.payload.get("hold") == "before":
        await asyncio.Event().wait()
    await job.mark()
    note(job, "marked")
    if job.payload.get("hold") == "after":
        await asyncio.Event().wait()
    note(job, "after")


async def cancels(job):
    note(job, "cancels")
    raise asyncio.CancelledError


async def leaves(job):
    note(job, "leaves")
    sys.exit(3)


@marks_itself
async def group(job):
    note(job, "before")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(job.mark())
    note(job, "after")


async def blocks(job):
    note(job, "blocks")
    time.sleep(4)
'''
KINDS = ("done", "later", "rejected", "broken", "steps", "cancels", "leaves", "group", "blocks")


class Functions:
    """The module of an operator, and a worker that runs its functions."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self._scene = scene
        self._folder = folder
        (folder / "operators_own.py").write_text(MODULE)

    async def worker(self, name: str, **sections: Any) -> Daemon:  # noqa: ANN401  as for the scene
        """Start a worker with the operator's module on its path."""
        handlers = {kind: f"operators_own:{kind}" for kind in KINDS} | {"noop": "daemon.handlers:noop"}
        path = os.pathsep.join([str(self._folder), str(Path(__file__).parents[2])])
        environment = {"PYTHONPATH": path, "HANDLER_FOLDER": str(self._folder)}
        return await self._scene.worker(name, environment=environment, handlers=handlers, **sections)

    @property
    def notes(self) -> list[str]:
        """Return what the functions have noted, in order."""
        file = self._folder / "done"
        return file.read_text().splitlines() if file.exists() else []

    async def noted(self, line: str) -> None:
        """Wait until a function has noted something."""

        async def there() -> bool:
            return line in self.notes

        await self._scene.wait_for(there, lambda: f"no {line} in {self.notes}")


@pytest.fixture
def functions(scene: Scene, tmp_path: Path) -> Functions:
    """Return the operator's functions."""
    return Functions(scene, tmp_path)


async def _save(scene: Scene, kind: str, **options: Any) -> int:  # noqa: ANN401  as for the scene
    return await scene.enqueue(payload=options.pop("payload", {}), kind=kind, **options)


async def test_what_a_function_says_is_what_becomes_of_its_job(scene: Scene, functions: Functions) -> None:
    """Returning is sent, Later and surprises are tried again and cost an attempt, Rejected is dead; a no-op is sent."""
    jobs = {kind: await _save(scene, kind) for kind in ("done", "later", "rejected", "broken", "noop")}
    worker = await functions.worker("worker")
    await scene.all_finished()
    found = {kind: await scene.job(job_id) for kind, job_id in jobs.items()}
    assert {kind: (job["outcome"], job["attempt"], job["doubts"]) for kind, job in found.items()} == {
        "done": ("sent", 1, 0),
        "later": ("sent", 2, 0),
        "rejected": ("dead", 1, 0),
        "broken": ("sent", 2, 0),
        "noop": ("sent", 1, 0),
    }
    assert found["rejected"]["reason"] == "no_such_report"
    (surprise,) = worker.events("attempt.failed")
    assert (surprise["job_id"], surprise["job_kind"]) == (jobs["broken"], "broken")
    scene.surprises = 1


@pytest.mark.parametrize(
    ("hold", "outcome", "doubts"),
    [("before", "sent", 0), ("after", "in_doubt", 1)],
)
async def test_killed_function_is_a_doubt_only_after_its_mark(
    scene: Scene, functions: Functions, hold: str, outcome: str, doubts: int
) -> None:
    """A function that marks itself may be run again if its worker dies before the mark; after it, on_doubt decides."""
    job_id = await _save(scene, "steps", payload={"hold": hold}, on_doubt="hold")
    worker = await functions.worker("killed")
    await functions.noted(f"{job_id} {'marked' if hold == 'after' else 'before'}")
    worker.kill()
    await worker.stopped()
    await scene.database.execute("UPDATE mailslot.jobs SET payload = '{}' WHERE id = $1", job_id)
    await functions.worker("other")
    job = await scene.until(job_id, outcome)
    assert (job["doubts"], job["crashes"], job["attempt"]) == (doubts, 1, 1)
    assert functions.notes.count(f"{job_id} after") == (1 if hold == "before" else 0)


async def test_unknown_kind_is_put_back_unharmed_with_an_alarm(scene: Scene) -> None:
    """A kind that this worker doesn't know waits with its attempt unused; mail goes on; the log says which kind is missing."""
    unknown, mail = await _save(scene, "report.build"), await scene.enqueue()
    worker = await scene.worker("worker")
    await scene.until(mail, "sent")
    alarm = await worker.event("kind.unknown", job_id=unknown)
    assert (alarm["level"], alarm["job_kind"]) == ("error", "report.build")
    await worker.event("job.released", job_id=unknown)
    job = await scene.job(unknown)
    assert (job["state"], job["attempt"], job["crashes"]) == ("ready", 0, 0)
    assert await scene.database.fetchval(
        "SELECT available_at > now() + interval '20 s' FROM mailslot.jobs WHERE id = $1", unknown
    )


async def test_cancelled_while_its_function_works_up_to_the_mark(scene: Scene, functions: Functions) -> None:
    """A function that can't get its mark is left by an exception: the job ends as cancelled, and its last step isn't done."""
    held = await _save(scene, "steps", payload={"hold": "before"})
    worker = await functions.worker("worker", worker={"drain_timeout_s": 0.3, "reply_grace_s": 0.3})
    await functions.noted(f"{held} before")
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", held) == "cancel_requested"
    assert await worker.stop() == 0
    job = await scene.job(held)
    assert (job["outcome"], job["doubts"], functions.notes) == ("cancelled", 0, [f"{held} before"])


async def test_drain_leaves_a_working_function_in_doubt(scene: Scene, functions: Functions) -> None:
    """SIGTERM twice while a function is past its mark: it is not handed back as unsent, its doubt is on record, exit code 75."""
    job_id = await _save(scene, "steps", payload={"hold": "after"}, on_doubt="hold")
    worker = await functions.worker("worker", worker={"function_timeout_s": 50.0}, **PATIENT)
    await functions.noted(f"{job_id} marked")
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    worker.signal(signal.SIGTERM)
    assert await worker.stopped() == 75
    job = await scene.job(job_id)
    assert (job["state"], job["doubts"]) == ("in_doubt", 1)


@pytest.mark.parametrize("kind", ["cancels", "leaves"])
async def test_function_that_raises_what_nobody_should_harms_itself_only(scene: Scene, functions: Functions, kind: str) -> None:
    """CancelledError or SystemExit out of a function ends neither a slot nor the worker: all its neighbours are sent."""
    bad = [await _save(scene, kind, max_attempts=1, on_doubt="hold") for _ in range(3)]
    worker = await functions.worker("worker", worker={"concurrency": 2}, **PATIENT)
    neighbours = [await scene.enqueue() for _ in range(6)]
    for job_id in neighbours:
        await scene.until(job_id, "sent")
    await scene.all_finished()
    assert {(await scene.job(job_id))["outcome"] for job_id in bad} <= {"dead", "in_doubt"}
    assert await worker.stop() == 0
    scene.surprises = len(bad)


async def test_mark_that_is_refused_inside_a_group_of_tasks_ends_its_job_only(
    scene: Scene, functions: Functions, tmp_path: Path
) -> None:
    """The function marks in a TaskGroup of its own and was cancelled meanwhile: cancelled, and its neighbour is sent."""
    job_id = await _save(scene, "group")
    worker = await functions.worker("worker")
    await functions.noted(f"{job_id} before")
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", job_id) == "cancel_requested"
    (tmp_path / "go").touch()
    assert (await scene.until(job_id, "cancelled"))["outcome"] == "cancelled"
    await scene.until(await scene.enqueue(), "sent")
    assert f"{job_id} after" not in functions.notes
    assert await worker.stop() == 0


async def test_function_that_blocks_the_loop_costs_its_worker_the_leases(scene: Scene, functions: Functions) -> None:
    """While a function blocks the event loop past the lease, a mail before its dot is taken over: one copy, from the other."""
    scene.relay.hold("data")
    blocked = await functions.worker("blocked", worker={"queues": ["default", "own"]})
    mail = await scene.enqueue()
    await scene.reached("data")
    blocking = await _save(scene, "blocks", queue="own")
    await functions.noted(f"{blocking} blocks")
    scene.relay.release("data")
    await scene.worker("other")
    job = await scene.until(mail, "sent")
    assert job["lease_owner"].startswith("other:")
    await blocked.event("outcome.stale", job_id=mail)
    assert (job["crashes"], job["attempt"], job["doubts"], await scene.copies(mail)) == (1, 1, 0, 1)
    assert (await scene.until(blocking, "sent"))["doubts"] == 0
