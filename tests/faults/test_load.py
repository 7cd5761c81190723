"""Two workers of twenty slots, two thousand jobs."""

from __future__ import annotations

from collections import Counter

from tests.faults.scene import PATIENT, Scene

JOBS = 2000


async def test_two_workers_send_two_thousand_jobs_once_each(scene: Scene) -> None:
    """Each Message-ID arrives exactly once, nothing is left unfinished, and no job has cost a second attempt."""
    await scene.enqueue_many(JOBS)
    workers = [await scene.start(name, worker={"concurrency": 20}, **PATIENT) for name in ("one", "two")]
    await scene.all_finished(within_s=60.0)
    assert set(Counter(message.message_id for message in scene.relay.messages).values()) == {1}
    assert len(scene.relay.messages) == JOBS
    rows = await scene.database.fetch(
        "SELECT outcome, attempt, crashes, doubts, count(*) FROM mailslot.jobs GROUP BY outcome, attempt, crashes, doubts"
    )
    assert [tuple(row) for row in rows] == [("sent", 1, 0, 0, JOBS)]
    assert await scene.database.fetch("SELECT FROM mailslot.attempts") == []
    for worker in workers:
        assert worker.events("job.sent")
        assert await worker.stop() == 0
    assert await scene.database.fetch("SELECT FROM mailslot.workers") == []
