"""A relay that refuses us: jobs wait unharmed, the relay is left in peace, and one line says why."""

from __future__ import annotations

from tests.faults.scene import Scene


async def test_wrong_password_costs_one_try_a_pause_and_no_attempt(scene: Scene) -> None:
    """However many jobs wait, a wrong password is tried once each pause and said once; with the right one all are sent."""
    scene.relay.script["ehlo"] = ["AUTH PLAIN LOGIN"]
    scene.relay.script["auth"] = ["535 5.7.8 bad credentials", "535 5.7.8 bad credentials", "235 2.7.0 welcome"]
    jobs = [await scene.enqueue() for _ in range(20)]
    password = {"MAILSLOT_RELAY__0__PASSWORD": "wrong"}
    worker = await scene.worker("worker", relay={"pause_s": 1.5, "username": "mailslot"}, environment=password)
    await worker.event("relay.paused")
    await scene.until_true("SELECT count(*) = 20 FROM mailslot.job_states WHERE state = 'ready' AND attempt = 0")
    assert scene.relay.log_ins == 1
    await worker.event("relay.resumed")
    assert scene.relay.log_ins == 3
    await scene.all_finished()
    assert len(worker.events("relay.paused")) == 1
    assert "wrong" not in "".join(map(str, worker.lines))
    assert len({line["owner"] for line in worker.lines}) == 1, "every line says which worker speaks"
    rows = [await scene.job(job_id) for job_id in jobs]
    assert {(row["outcome"], row["attempt"], row["crashes"]) for row in rows} == {("sent", 1, 0)}
    assert [await scene.copies(row["id"]) for row in rows] == [1] * 20


async def test_refusal_after_the_dot_is_no_doubt(scene: Scene) -> None:
    """4xx and 5xx to the dot are answers: put off and sent later, or dead; nothing is counted as a doubt."""
    scene.relay.script["dot_by_rcpt"] = {"never@example.org": "554 5.6.0 no"}
    scene.relay.script["dot"] = ["451 4.3.0 later", "250 2.0.0 ok"]
    later = await scene.enqueue()
    await scene.worker("worker")
    job = await scene.until(later, "sent")
    assert (job["attempt"], job["doubts"], await scene.copies(later)) == (2, 0, 1)
    job = await scene.until(await scene.enqueue("never@example.org"), "dead")
    assert (job["attempt"], job["doubts"]) == (1, 0)


async def test_relay_that_answers_no_dot_is_paused_after_three(scene: Scene) -> None:
    """Three missing answers in a row pause the relay, so that a hundred jobs don't become a hundred doubts."""
    scene.relay.script["dot"] = {"reply": None, "then": "close"}
    await scene.enqueue_many(100)
    worker = await scene.worker("worker", worker={"concurrency": 3}, relay={"pause_s": 60.0})
    await worker.event("relay.paused", reason="answers_missing")
    await scene.until_true("SELECT count(*) = 0 FROM mailslot.job_states WHERE state IN ('leased', 'marked')")
    assert await scene.database.fetchval("SELECT sum(doubts) FROM mailslot.jobs") <= 5
