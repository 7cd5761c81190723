"""Workers that are stopped by SIGSTOP longer than their lease, at each stage, and then go on as if nothing had happened."""

from __future__ import annotations

import signal

from tests.faults.scene import PATIENT, Scene
from tests.support.proxy import DOWN, Proxy


async def test_worker_stalled_before_the_dot_sends_nothing_and_changes_nothing(scene: Scene, link: Proxy) -> None:
    """At each stage before the dot, a worker that slept past its lease sends no mail of its own and leaves the rows alone."""
    mark = link.trap("mark")
    stalled = await scene.worker("stalled", link=link)
    jobs = await scene.spread(mark)
    stalled.signal(signal.SIGSTOP)
    scene.let_go()
    await scene.worker("other")
    await scene.all_finished()
    number = await scene.now()
    mark.release()
    stalled.signal(signal.SIGCONT)
    for stage, job_id in jobs.items():
        await stalled.event("outcome.stale", job_id=job_id)
        job = await scene.job(job_id)
        assert (stage, job["outcome"], job["attempt"], job["crashes"], job["doubts"]) == (stage, "sent", 1, 1, 0)
        assert (stage, await scene.copies(job_id)) == (stage, 1)
        assert await scene.changes_by("stalled", job_id, since=number) == []
    assert await stalled.stop() == 0


async def test_worker_stalled_between_mark_and_dot_writes_no_dot(scene: Scene, link: Proxy) -> None:
    """A mark whose answer is read past the deadline allows no dot: the copy of whoever resolves the doubt is the only one."""
    mark = link.trap("mark", DOWN)
    stalled = await scene.worker("stalled", link=link)
    job_id = await scene.enqueue()
    await mark.sprung()
    stalled.signal(signal.SIGSTOP)
    mark.release()
    await scene.worker("other", relay={"dot_timeout_s": 0.8})
    job = await scene.until(job_id, "sent")
    stalled.signal(signal.SIGCONT)
    await stalled.event("outcome.stale", job_id=job_id)
    assert await scene.copies(job_id) == 1
    assert (job["doubts"], job["crashes"], job["attempt"]) == (1, 1, 2)


async def test_short_stall_costs_nothing(scene: Scene) -> None:
    """A worker that stalls for less than its lease goes on where it was, and nobody counts anything."""
    scene.relay.hold("data")
    stalled = await scene.worker("stalled")
    job_id = await scene.enqueue()
    await scene.reached("data")
    await scene.worker("other")
    stalled.signal(signal.SIGSTOP)
    await scene.lease_over(job_id, but_s=1.0)
    stalled.signal(signal.SIGCONT)
    await scene.lease_renewed(job_id)
    scene.relay.release("data")
    job = await scene.until(job_id, "sent")
    assert (job["crashes"], job["attempt"], await scene.copies(job_id)) == (0, 1, 1)


async def test_answer_read_after_the_lease_counts_for_the_row(scene: Scene) -> None:
    """A 250 that a stalled worker reads after its lease, but before anybody may give up waiting, makes the job sent."""
    scene.relay.hold("dot")
    stalled = await scene.worker("stalled", **PATIENT)
    job_id = await scene.enqueue()
    await scene.reached("dot")
    stalled.signal(signal.SIGSTOP)
    scene.relay.release("dot")
    other = await scene.worker("other", **PATIENT)
    await scene.lease_over(job_id, but_s=-1.0)
    assert other.events("job.swept") == []
    stalled.signal(signal.SIGCONT)
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], job["attempt"], await scene.copies(job_id)) == (0, 0, 1, 1)


async def test_late_acceptance_is_kept_as_evidence_and_spares_the_second_copy(scene: Scene) -> None:
    """Its row in other hands, a worker that reads its 250 late leaves evidence, and the mark of the other one finds it."""
    scene.relay.hold("dot")
    stalled = await scene.worker("stalled")
    job_id = await scene.enqueue()
    await scene.reached("dot")
    stalled.signal(signal.SIGSTOP)
    scene.relay.release("dot")
    scene.relay.hold("data")
    await scene.worker("other")
    await scene.reached("data", 2)
    stalled.signal(signal.SIGCONT)
    await stalled.event("outcome.stale", job_id=job_id, verdict="sent")
    assert await scene.evidence(job_id) == ["maya@example.org"]
    scene.relay.release("data")
    job = await scene.until(job_id, "sent")
    assert (job["reason"], job["doubts"], job["crashes"], await scene.copies(job_id)) == ("evidence", 1, 1, 1)


async def test_second_copy_after_a_stall_is_counted(scene: Scene) -> None:
    """If the doubt was resolved by a second copy before the first answer was read, the doubt and the evidence say so."""
    scene.relay.hold("dot")
    stalled = await scene.worker("stalled")
    job_id = await scene.enqueue()
    await scene.reached("dot")
    stalled.signal(signal.SIGSTOP)
    scene.relay.release("dot")
    await scene.worker("other")
    job = await scene.until(job_id, "sent")
    number = await scene.now()
    stalled.signal(signal.SIGCONT)
    await stalled.event("outcome.stale", job_id=job_id, verdict="sent")
    assert (job["doubts"], await scene.copies(job_id)) == (1, 2)
    assert await scene.evidence(job_id) == ["maya@example.org"]
    assert await scene.changes_by("stalled", job_id, since=number) == []


async def test_job_held_in_doubt_becomes_sent_by_its_late_answer(scene: Scene) -> None:
    """Under `hold`, a doubt ends the job as in_doubt without a second copy; the late 250 under the same token makes it sent."""
    scene.relay.hold("dot")
    stalled = await scene.worker("stalled")
    job_id = await scene.enqueue(on_doubt="hold")
    await scene.reached("dot")
    stalled.signal(signal.SIGSTOP)
    scene.relay.release("dot")
    await scene.worker("other")
    await scene.until(job_id, "in_doubt")
    stalled.signal(signal.SIGCONT)
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["assumed"], await scene.copies(job_id)) == (1, False, 1)
