"""Two workers of twenty slots, two thousand jobs."""

from __future__ import annotations

from tests.faults.scene import PATIENT, Scene

JOBS = 2000


async def test_two_workers_send_two_thousand_jobs_once_each(scene: Scene) -> None:
    """Each Message-ID arrives exactly once, nothing is left unfinished, and no job has cost a second attempt."""
    await scene.enqueue_many(JOBS)
    workers = [await scene.start(name, worker={"concurrency": 20}, **PATIENT) for name in ("one", "two")]
    await scene.all_finished(within_s=60.0)
    await scene.check_all_sent_once(JOBS)
    assert await scene.database.fetch("SELECT FROM mailslot.attempts") == []
    for worker in workers:
        assert worker.events("job.sent")
        assert await worker.stop() == 0
    assert await scene.database.fetch("SELECT FROM mailslot.workers") == []
