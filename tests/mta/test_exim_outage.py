"""A real mail server that is killed and comes back: what waited is sent, nothing is lost, and a second copy has a reason."""

from __future__ import annotations

from tests.mta.conftest import StartPost
from tests.mta.exim import DOT
from tests.mta.post import Post

QUICK = {"probe_first_s": 0.1, "probe_max_s": 0.3, "pause_s": 0.5}


async def test_jobs_are_sent_when_the_server_has_come_back(post: Post) -> None:
    """While it is away nobody's attempts are used up and nobody is blamed; then each job is sent once."""
    worker = await post.worker(relay=QUICK)
    post.exim.kill()
    jobs = [await post.enqueue() for _ in range(5)]
    await worker.event("relay.lost")
    await post.until_true("SELECT bool_and(lease_token IS NULL) FROM mailslot.jobs")
    post.exim.start()
    await worker.event("relay.resumed")
    await post.all_sent_once(jobs)


async def test_server_that_is_killed_at_work_loses_no_job(start_post: StartPost) -> None:
    """Killed twice with dots unanswered: every job is sent, and a second copy goes only to who was in doubt."""
    post = start_post(DOT_DELAY="1s")
    worker = await post.worker(relay=QUICK, worker={"concurrency": 6}, lease={"max_doubts": 20})
    jobs: list[int] = []
    for _ in range(2):
        since, dots = worker.position, len(post.exim.logged(DOT))
        jobs += [await post.enqueue() for _ in range(12)]
        # Six at a time: when the eighth dot has come, the first ones are answered, and that one isn't.
        await post.exim.has_logged(DOT, dots + 8)
        post.exim.kill()
        await worker.event("attempt.in_doubt", since=since)
        post.exim.start()
    await post.all_finished()
    accepted = [uid for uid, _ in {(copy.job_uid, copy.queue_id) for copy in await post.exim.settled()}]
    for job_id in jobs:
        job = await post.job(job_id)
        assert (job["outcome"], job["crashes"]) == ("sent", 0)
        assert 1 <= accepted.count(str(job["uid"])) <= 1 + job["doubts"]
