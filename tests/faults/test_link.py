"""A link to the database that holds, loses or delays single statements, or everything: late marks, late claims, black holes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.scene import PATIENT, Scene
from tests.support.proxy import DOWN, UP, Direction, Proxy

LATE: dict[str, Any] = {"lease": {"duration_s": 8.0, "in_doubt_delay_s": 60.0}, "relay": PATIENT["relay"]}


async def test_late_mark_finds_its_job_in_other_hands(scene: Scene, link: Proxy) -> None:
    """A mark that arrives after its worker gave up and the job was claimed anew changes nothing: one mail, nobody blamed."""
    mark = link.trap("mark")
    worker = await scene.worker("worker", link=link, **LATE)
    job_id = await scene.enqueue()
    await mark.sprung()
    scene.relay.hold("data")
    await worker.event("job.released", job_id=job_id, reason="mark_unanswered")
    await scene.reached("data", 2)
    mark.release()
    await mark.over()
    assert (await scene.job(job_id))["state"] == "leased"
    scene.relay.release("data")
    job = await scene.until(job_id, "sent")
    assert (job["attempt"], job["crashes"], job["doubts"], await scene.copies(job_id)) == (1, 0, 0, 1)


async def test_late_mark_before_the_release_leaves_no_marked_row(scene: Scene, link: Proxy) -> None:
    """A mark that is made after its worker gave up, but before the job is given back, is undone: the row isn't stuck."""
    mark, release = link.trap("mark"), link.trap("release")
    worker = await scene.worker("worker", link=link, **LATE)
    job_id = await scene.enqueue()
    await mark.sprung()
    await release.sprung()
    mark.release()
    await scene.until(job_id, "marked")
    release.release()
    await worker.event("job.released", job_id=job_id, reason="mark_unanswered")
    job = await scene.until(job_id, "sent")
    assert (job["attempt"], job["crashes"], job["doubts"], await scene.copies(job_id)) == (1, 0, 0, 1)


async def test_job_given_back_without_a_dot_ends_as_asked_or_expired(scene: Scene, link: Proxy) -> None:
    """Cancelled while a mark was on its way, a job ends as cancelled; expired meanwhile, as dead. Neither was sent."""
    mark, release = link.trap("mark"), link.trap("release")
    await scene.worker("worker", link=link, **LATE)
    cancelled = await scene.enqueue()
    await mark.sprung()
    await release.sprung()
    mark.release()
    await scene.until(cancelled, "marked")
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", cancelled) == "cancel_requested"
    release.release()
    job = await scene.until(cancelled, "cancelled")
    assert (job["doubts"], await scene.copies(cancelled)) == (0, 0)
    mark, release = link.trap("mark"), link.trap("release")
    expired = await scene.enqueue(expires_in_s=1.0)
    await mark.sprung()
    await release.sprung()
    mark.release()
    await scene.until_true("SELECT expires_at < now() FROM mailslot.jobs WHERE id = $1", expired)
    release.release()
    job = await scene.until(expired, "dead")
    assert (job["reason"], job["doubts"], await scene.copies(expired)) == ("expired", 0, 0)


async def test_mark_decides_about_a_cancelled_or_expired_job(scene: Scene) -> None:
    """Cancelled or expired while its recipients were named, a leased job is turned away by its mark: no dot, no doubt."""
    scene.relay.hold("rcpt")
    await scene.worker("worker")
    cancelled, expired = await scene.enqueue(), await scene.enqueue(expires_in_s=1.0)
    await scene.reached("rcpt", 2)
    assert await scene.database.fetchval("SELECT mailslot.cancel($1)", cancelled) == "cancel_requested"
    await scene.until_true("SELECT expires_at < now() FROM mailslot.jobs WHERE id = $1", expired)
    scene.relay.release("rcpt")
    assert (await scene.until(cancelled, "cancelled"))["doubts"] == 0
    assert (await scene.until(expired, "dead"))["reason"] == "expired"
    assert scene.relay.messages == []


async def test_no_dot_after_send_by_although_the_mark_came_before_it(scene: Scene) -> None:
    """A body that takes until after expires_at isn't finished by a dot, though the job was marked in time and its lease lives."""
    async with Proxy.to_port(scene.relay.port) as smtp:
        scene.relay.script["ehlo"] = ["8BITMIME"]
        scene.relay.hold("data")
        await scene.worker(
            "worker", relay_port=smtp.port, relay={**PATIENT["relay"], "body_timeout_s": 30.0}, lease=LATE["lease"]
        )
        attachment = {"filename": "big.bin", "content_b64": "QUFB" * 4_000_000}
        job_id = await scene.enqueue(payload={"to": "maya@example.org", "text": "big", "attachments": [attachment]})
        await scene.reached("data")
        smtp.hold(UP)
        await scene.database.execute("UPDATE mailslot.jobs SET expires_at = now() + interval '2 s' WHERE id = $1", job_id)
        scene.relay.release("data")
        await scene.until(job_id, "marked")
        await scene.lease_renewed(job_id)
        await scene.until_true("SELECT expires_at < now() FROM mailslot.jobs WHERE id = $1", job_id)
        smtp.release()
        job = await scene.until(job_id, "dead")
        assert (job["reason"], job["doubts"], scene.relay.messages) == ("expired", 0, [])


@pytest.mark.parametrize("direction", [UP, DOWN])
async def test_claim_that_got_no_answer_is_given_back(scene: Scene, link: Proxy, direction: Direction) -> None:
    """Whether a claim was made late or only its answer was lost, what it took is given back: no attempt, no crash, one mail."""
    claim, abandon = link.trap("claim", direction), link.trap("abandon", DOWN)
    await scene.enqueue_many(3)
    worker = await scene.worker("worker", link=link, **LATE)
    await claim.sprung()
    await worker.event("claim.failed")
    await abandon.sprung()
    claim.release()
    await claim.over()
    abandon.release()
    await scene.all_finished()
    await scene.check_all_sent_once(3)


async def test_lost_heartbeats_that_fit_into_the_lease_cost_nothing(scene: Scene, link: Proxy) -> None:
    """Two extensions in a row that get no answer are forgotten once a third succeeds; the job in flight never notices."""
    scene.relay.hold("dot")
    await scene.worker("worker", link=link, **PATIENT)
    job_id = await scene.enqueue()
    await scene.reached("dot")
    for direction in (UP, DOWN):
        beat = link.trap("extend", direction)
        await beat.sprung()
        beat.cut()
    await scene.lease_renewed(job_id)
    scene.relay.release("dot")
    job = await scene.until(job_id, "sent")
    assert (job["crashes"], job["attempt"], job["doubts"], await scene.copies(job_id)) == (0, 1, 0, 1)


async def test_black_hole_before_the_dot_hands_the_job_to_another(scene: Scene, link: Proxy) -> None:
    """Cut off before its mark, a worker writes no dot; another takes over, and what the returned one says changes nothing."""
    scene.relay.hold("data")
    cut_off = await scene.worker("cut_off", link=link)
    job_id = await scene.enqueue()
    await scene.reached("data")
    link.hold()
    await scene.worker("other")
    await scene.reached("data", 2)
    number = await scene.now()
    link.release()
    await cut_off.event("outcome.stale", job_id=job_id)
    job = await scene.job(job_id)
    assert (job["state"], job["lease_owner"].partition(":")[0]) == ("leased", "other")
    scene.relay.release("data")
    job = await scene.until(job_id, "sent")
    assert (job["crashes"], job["attempt"], job["doubts"], await scene.copies(job_id)) == (1, 1, 0, 1)
    assert await scene.changes_by("cut_off", job_id, since=number) == []


async def test_black_hole_after_the_dot_keeps_the_outcome(scene: Scene, link: Proxy) -> None:
    """Cut off while it waits for the dot, a worker keeps the answer longer than its lease and records it; nobody interferes."""
    scene.relay.hold("dot")
    cut_off = await scene.worker("cut_off", link=link, **PATIENT)
    job_id = await scene.enqueue()
    await scene.reached("dot")
    link.hold()
    other = await scene.worker("other", **PATIENT)
    scene.relay.release("dot")
    await cut_off.event("outcome.unrecorded")
    await scene.lease_over(job_id, but_s=-1.0)
    later = await scene.enqueue()
    await scene.until(later, "sent")
    link.release()
    job = await scene.until(job_id, "sent")
    assert (job["crashes"], job["attempt"], job["doubts"], await scene.copies(job_id)) == (0, 1, 0, 1)
    assert other.events("job.swept") == []


async def test_answer_that_outlived_the_doubt_delay_spares_the_second_copy(scene: Scene, link: Proxy) -> None:
    """Cut off for so long that its job was resolved as a doubt, a worker leaves its 250 as evidence; the next mark finds it."""
    scene.relay.hold("dot")
    cut_off = await scene.worker("cut_off", link=link)
    resent, kept = await scene.enqueue(), await scene.enqueue(on_doubt="hold")
    await scene.reached("dot", 2)
    link.hold()
    scene.relay.release("dot")
    await cut_off.event("outcome.unrecorded")
    scene.relay.hold("data")
    await scene.worker("other")
    await scene.until(kept, "in_doubt")
    await scene.reached("data", 3)
    link.release()
    await cut_off.event("outcome.stale", job_id=resent, verdict="sent")
    scene.relay.release("data")
    job = await scene.until(resent, "sent")
    assert (job["reason"], job["doubts"], await scene.copies(resent)) == ("evidence", 1, 1)
    job = await scene.until(kept, "sent")
    assert (job["doubts"], await scene.copies(kept)) == (1, 1)


async def test_deaf_worker_under_load_loses_nothing(scene: Scene, link: Proxy) -> None:
    """With every answer of the database held back for 2 s in the midst of 300 jobs, all are sent once and nobody is blamed."""
    await scene.worker("worker", link=link, **LATE)
    await scene.enqueue_many(300)
    await scene.seen(30, "stored")
    link.hold(DOWN)
    await scene.lasting(2.0)
    link.release()
    await scene.all_finished()
    await scene.check_all_sent_once(300)


async def test_silence_of_the_relay_after_the_dot_is_a_doubt(scene: Scene) -> None:
    """A relay that vanishes or keeps silent after the dot leaves a doubt at once, under the living worker; then it is resent."""
    scene.relay.script["dot"] = [
        {"reply": None, "then": "hang", "server_stores_message": True},
        {"reply": None, "then": "rst", "server_stores_message": True},
        "250 2.0.0 ok",
    ]
    await scene.worker("worker")
    job_id = await scene.enqueue()
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], job["attempt"], await scene.copies(job_id)) == (2, 0, 3, 3)


async def test_locked_job_stalls_neither_the_others_nor_their_leases(scene: Scene) -> None:
    """An application that cancels and keeps its transaction open delays that one job only, also for longer than a lease."""
    scene.relay.script["dot_by_rcpt"] = {"slow@example.org": {"reply": "250 2.0.0 ok", "delay_s": 3.0}}
    scene.relay.hold("rcpt")
    worker = await scene.worker("worker", **PATIENT)
    locked = await scene.enqueue("locked@example.org")
    neighbours = [await scene.enqueue("slow@example.org"), await scene.enqueue()]
    await scene.reached("rcpt", 3)
    async with scene.database.connection() as application:
        async with application.transaction():
            await application.fetchval("SELECT mailslot.cancel($1)", locked)
            scene.relay.release("rcpt")
            for job_id in reversed(neighbours):
                await scene.until(job_id, "sent")
            await scene.lease_over(locked)
            others = [await scene.enqueue() for _ in range(20)]
            for job_id in others:
                await scene.until(job_id, "sent")
        job = await scene.until(locked, "cancelled")
    assert (job["doubts"], await scene.copies(locked)) == (0, 0)
    assert [line["job_id"] for line in worker.events("job.released")] in ([], [locked])
    assert worker.events("lease.lost") + worker.events("job.swept", outcome="ready") == []
    rows = [await scene.job(job_id) for job_id in (*neighbours, *others)]
    assert {(row["attempt"], row["crashes"], await scene.copies(row["id"])) for row in rows} == {(1, 0, 1)}


async def test_worker_whose_log_nobody_reads_goes_on(scene: Scene) -> None:
    """A full pipe, or one whose reader is gone, costs log lines and nothing else."""
    worker = await scene.worker("worker")
    worker.stop_reading()
    await scene.enqueue_many(300)
    await scene.all_finished()
    worker.close_output()
    await scene.enqueue_many(20)
    await scene.all_finished()
    assert len(scene.relay.messages) == 320
    assert await worker.stop() == 0
