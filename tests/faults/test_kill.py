"""Workers that are killed by SIGKILL at each stage: what was unmarked runs again at once, what was marked follows `on_doubt`."""

from __future__ import annotations

import pytest

from tests.faults.scene import Scene
from tests.support.proxy import DOWN, Proxy


async def test_jobs_of_a_worker_killed_before_the_dot_are_sent_once_by_another(scene: Scene, link: Proxy) -> None:
    """Killed at any stage before the mark, a worker costs its jobs a crash and no attempt, and each is sent exactly once."""
    mark = link.trap("mark")
    killed = await scene.worker("killed", link=link)
    jobs = await scene.spread(mark)
    killed.kill()
    await killed.stopped()
    scene.let_go()
    mark.release()
    await scene.worker("other")
    await scene.all_finished()
    for stage, job_id in jobs.items():
        job = await scene.job(job_id)
        assert (stage, job["outcome"], job["attempt"], job["crashes"], job["doubts"]) == (stage, "sent", 1, 1, 0)
        assert (stage, await scene.copies(job_id)) == (stage, 1)


async def _killed_after_the_dot(scene: Scene, **options: object) -> int:
    """Return the id of a job whose worker was killed while the relay had its message and hadn't answered."""
    scene.relay.hold("stored")
    killed = await scene.worker("killed")
    job_id = await scene.enqueue(**options)
    await scene.relay.events.wait(1, "stored")
    killed.kill()
    await killed.stopped()
    scene.relay.release("stored")
    return job_id


@pytest.mark.parametrize(("on_doubt", "outcome", "copies"), [("resend", "sent", 2), ("hold", "in_doubt", 1), ("assume_sent", "sent", 1)])
async def test_job_of_a_worker_killed_after_the_dot_follows_on_doubt(
    scene: Scene, on_doubt: str, outcome: str, copies: int
) -> None:
    """What may have been sent is sent again, held for a person, or taken for sent, as its producer wished; and it is counted."""
    job_id = await _killed_after_the_dot(scene, on_doubt=on_doubt)
    await scene.worker("other")
    job = await scene.until(job_id, outcome)
    assert (job["doubts"], job["crashes"], await scene.copies(job_id)) == (1, 1, copies)
    assert job["assumed"] is (on_doubt == "assume_sent")


async def test_refused_second_copy_leaves_the_job_in_doubt(scene: Scene) -> None:
    """A 550 to the second copy says nothing about the first: the job doesn't end as dead."""
    scene.relay.script["dot"] = ["250 2.0.0 ok", "550 5.7.1 no"]
    job_id = await _killed_after_the_dot(scene)
    await scene.worker("other")
    job = await scene.until(job_id, "in_doubt")
    assert (job["doubts"], job["attempt"]) == (1, 2)


async def test_doubted_job_that_is_refused_at_rcpt_is_not_dead(scene: Scene) -> None:
    """Nor does a refusal of all its recipients before the second body make it dead."""
    job_id = await _killed_after_the_dot(scene)
    scene.relay.script["rcpt"] = {"*": "550 5.1.1 no such user"}
    await scene.worker("other")
    assert (await scene.until(job_id, "in_doubt"))["doubts"] == 1


async def test_cancelled_doubt_is_not_cancelled(scene: Scene) -> None:
    """A cancel that comes while a dot has no answer ends the job in doubt, without a second copy."""
    job_id = await _killed_after_the_dot(scene)
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", job_id) == "cancel_requested"
    await scene.worker("other")
    assert (await scene.until(job_id, "in_doubt"))["doubts"] == 1
    assert await scene.copies(job_id) == 1


async def test_job_killed_again_and_again_after_the_dot_ends_in_doubt(scene: Scene) -> None:
    """When every worker dies on its dot, the copies are bounded by max_doubts and the end is in_doubt."""
    job_id = await _killed_after_the_dot(scene)
    for copies in (2, 3):
        scene.relay.hold("stored")
        another = await scene.worker(f"killed{copies}", lease={"max_crashes": 9})
        await scene.relay.events.wait(copies, "stored")
        another.kill()
        await another.stopped()
        scene.relay.release("stored")
    await scene.worker("other", lease={"max_crashes": 9})
    job = await scene.until(job_id, "in_doubt")
    assert (job["doubts"], await scene.copies(job_id)) == (3, 3)


async def test_poison_job_is_parked_and_harms_nobody(scene: Scene) -> None:
    """A job on which three workers die before the dot is dead as worker_lost; its neighbours lose no attempt."""
    scene.relay.script["rcpt"] = {"poison@example.org": {"reply": None, "then": "hang"}, "*": "250 2.1.5 ok"}
    poison = await scene.enqueue("poison@example.org")
    neighbours = [await scene.enqueue() for _ in range(5)]
    for number in (1, 2, 3):
        worker = await scene.worker(f"victim{number}")
        await scene.relay.events.wait(number, "command", stage="rcpt", line="RCPT TO:<poison@example.org>")
        worker.kill()
        await worker.stopped()
    await scene.worker("last")
    await scene.all_finished()
    job = await scene.job(poison)
    assert (job["outcome"], job["reason"], job["crashes"]) == ("dead", "worker_lost", 3)
    for job_id in neighbours:
        assert ((await scene.job(job_id))["outcome"], (await scene.job(job_id))["attempt"]) == ("sent", 1)


async def test_mark_that_was_made_and_not_answered_follows_the_doubt(scene: Scene, link: Proxy) -> None:
    """A worker killed between its mark and the dot leaves a marked row: nobody can know, so it counts as a doubt."""
    mark = link.trap("mark", DOWN)
    killed = await scene.worker("killed", link=link)
    job_id = await scene.enqueue()
    await mark.sprung()
    killed.kill()
    await killed.stopped()
    await scene.worker("other")
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], await scene.copies(job_id)) == (1, 1, 1)
