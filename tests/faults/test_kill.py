"""Workers that are killed by SIGKILL at each stage: what was unmarked runs again at once, what was marked follows `on_doubt`."""

from __future__ import annotations

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
    await scene.worker("other")
    await scene.all_finished()
    for stage, job_id in jobs.items():
        job = await scene.job(job_id)
        assert (stage, job["outcome"], job["attempt"], job["crashes"], job["doubts"]) == (stage, "sent", 1, 1, 0)
        assert (stage, await scene.copies(job_id)) == (stage, 1)


async def _killed_after_the_dot(scene: Scene, *jobs: int) -> None:
    """Kill a worker when the relay has the messages of these jobs and hasn't answered for any."""
    scene.relay.hold("stored")
    killed = await scene.worker("killed", worker={"concurrency": len(jobs)})
    await scene.seen(len(jobs), "stored")
    killed.kill()
    await killed.stopped()
    scene.relay.release("stored")


async def test_jobs_of_a_worker_killed_after_the_dot_follow_on_doubt(scene: Scene) -> None:
    """What may have been sent is sent again, held for a person, or taken for sent, as its producer wished; and it is counted."""
    wishes = {"resend": ("sent", False, 2), "hold": ("in_doubt", False, 1), "assume_sent": ("sent", True, 1)}
    jobs = {wish: await scene.enqueue(on_doubt=wish) for wish in wishes}
    await _killed_after_the_dot(scene, *jobs.values())
    await scene.worker("other")
    await scene.all_finished()
    for wish, job_id in jobs.items():
        job = await scene.job(job_id)
        assert (wish, job["outcome"], job["assumed"], await scene.copies(job_id)) == (wish, *wishes[wish])
        assert (job["doubts"], job["crashes"]) == (1, 1)


async def test_job_once_in_doubt_never_ends_as_dead_or_cancelled(scene: Scene) -> None:
    """Neither a 550 to the second copy or its recipients, nor a cancel, nor a spent budget says anything about the first copy.

    Only a recipient that the lost dot didn't cover is dead when it is refused.
    """
    scene.relay.script["rcpt"] = {"later@example.org": "450 4.3.0 busy", "*": "250 2.1.5 ok"}
    jobs = {
        "partial": await scene.enqueue("covered@example.org", "later@example.org"),
        "dot": await scene.enqueue("dot@example.org"),
        "rcpt": await scene.enqueue("rcpt@example.org"),
        "cancel": await scene.enqueue(),
        "expires": await scene.enqueue(expires_in_s=4.0),
        "attempts": await scene.enqueue(max_attempts=1),
        "doubts": await scene.enqueue(),
    }
    await scene.database.execute("UPDATE mailslot.jobs SET doubts = 2 WHERE id = $1", jobs["doubts"])
    await _killed_after_the_dot(scene, *jobs.values())
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", jobs["cancel"]) == "cancel_requested"
    scene.relay.script["dot_by_rcpt"] = {"dot@example.org": "550 5.7.1 no"}
    refused = ("rcpt@example.org", "covered@example.org", "later@example.org")
    scene.relay.script["rcpt"] = {**dict.fromkeys(refused, "550 5.1.1 no such user"), "*": "250 2.1.5 ok"}
    await scene.worker("other")
    await scene.all_finished()
    for what, job_id in jobs.items():
        job = await scene.job(job_id)
        assert (what, job["outcome"], await scene.copies(job_id)) == (what, "in_doubt", 1)
        assert (what, job["doubts"]) == (what, 3 if what == "doubts" else 1)
    recipients = (await scene.job(jobs["partial"]))["recipients"]
    assert {address: entry["verdict"] for address, entry in recipients.items()} == {
        "covered@example.org": "in_doubt",
        "later@example.org": "dead",
    }


async def test_waiting_job_that_was_in_doubt_ends_in_doubt(scene: Scene) -> None:
    """Resent after a doubt, and then cancelled, expired or out of attempts while it waits: still nobody knows about the first."""
    cancelled, expired, spent = [await scene.enqueue() for _ in range(3)]
    await scene.database.execute("UPDATE mailslot.jobs SET doubts = 1")
    await scene.database.execute("UPDATE mailslot.jobs SET expires_at = now() WHERE id = $1", expired)
    await scene.database.execute("UPDATE mailslot.jobs SET attempt = max_attempts WHERE id = $1", spent)
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", cancelled) == "in_doubt"
    await scene.worker("worker")
    await scene.all_finished()
    assert [(await scene.job(job_id))["outcome"] for job_id in (cancelled, expired, spent)] == ["in_doubt"] * 3
    assert scene.relay.messages == []


async def test_poison_job_is_parked_and_harms_nobody(scene: Scene) -> None:
    """A job on which three workers die before the dot is dead as worker_lost; its neighbours lose no attempt."""
    scene.relay.script["rcpt"] = {"poison@example.org": {"reply": None, "then": "hang"}, "*": "250 2.1.5 ok"}
    poison = await scene.enqueue("poison@example.org")
    neighbours = [await scene.enqueue() for _ in range(5)]
    for number in (1, 2, 3):
        worker = await scene.worker(f"victim{number}")
        await scene.seen(number, "command", stage="rcpt", line="RCPT TO:<poison@example.org>")
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
