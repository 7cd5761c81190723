"""SIGTERM at each stage, twice, during the start, with the database away: what is handed back or waited for, exit codes."""

from __future__ import annotations

import signal
import time

from tests.faults.scene import PATIENT, Scene
from tests.support.process import Daemon
from tests.support.proxy import DOWN, Proxy

BRIEF = {"drain_timeout_s": 0.5, "reply_grace_s": 0.5}
RECORD_S = 5.0
SLACK_S = 4.0


def _order(worker: Daemon, *events: str) -> list[str]:
    """Return these events in the order in which the worker said each for the last time."""
    last = {line["event"]: place for place, line in enumerate(worker.lines)}
    return sorted(events, key=lambda event: last.get(event, -1))


async def test_drain_hands_back_what_is_before_the_dot_and_waits_for_what_is_after(scene: Scene, link: Proxy) -> None:
    """Longer than a lease the drain waits for slots before the dot, then they give their attempts back; a dot gets its answer."""
    scene.relay.hold("dot")
    worker = await scene.worker("worker", link=link, worker={"drain_timeout_s": 2.5, "concurrency": 7}, **PATIENT)
    dotted = await scene.enqueue()
    await scene.reached("dot")
    jobs = await scene.spread(link.trap("mark"), before=1)
    await scene.lease_renewed(jobs["greeting"])
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    for stage in ("greeting", "ehlo"):
        await worker.event("job.released", job_id=jobs[stage], reason="draining")
    assert len(worker.events("job.released")) == 2
    for stage in ("mail", "rcpt", "data"):
        await worker.event("job.released", job_id=jobs[stage], reason="draining")
    scene.relay.release("dot")
    assert await worker.stopped() == 0
    order = ("drain.begun", "job.released", "job.sent", "drain.ended", "daemon.stopped")
    assert _order(worker, *order) == list(order)
    assert (await scene.job(dotted))["outcome"] == "sent"
    for job_id in jobs.values():
        job = await scene.job(job_id)
        assert (job["state"], job["attempt"], job["crashes"], await scene.copies(job_id)) == ("ready", 0, 0, 0)
    scene.let_go()
    await scene.worker("next")
    await scene.all_finished()
    assert [await scene.copies(job_id) for job_id in jobs.values()] == [1] * len(jobs)


async def test_drain_lets_a_slot_finish_that_is_quick_enough(scene: Scene) -> None:
    """A message whose relay answers within the drain limit is sent and recorded, and the worker ends with 0 right after."""
    scene.relay.hold("rcpt")
    worker = await scene.worker("worker", worker={"drain_timeout_s": 20.0})
    job_id = await scene.enqueue()
    await scene.reached("rcpt")
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    later = await scene.enqueue()
    scene.relay.release("rcpt")
    assert await worker.stopped() == 0
    assert [(await scene.job(job))["state"] for job in (job_id, later)] == ["sent", "ready"]


async def test_unanswered_dot_is_recorded_as_doubt_when_the_grace_is_over(scene: Scene) -> None:
    """When reply_grace passes without an answer, the doubt is in the row before the process ends with 75."""
    scene.relay.hold("dot")
    worker = await scene.worker("worker", **{**PATIENT, "worker": BRIEF})
    jobs = {wish: await scene.enqueue(on_doubt=wish) for wish in ("resend", "hold")}
    await scene.reached("dot", 2)
    assert await worker.stop() == 75
    found = {wish: await scene.job(job_id) for wish, job_id in jobs.items()}
    assert [(found[wish]["state"], found[wish]["doubts"]) for wish in jobs] == [("ready", 1), ("in_doubt", 1)]
    assert worker.events("daemon.stopped", finished=False)


async def test_second_signal_ends_both_waits(scene: Scene) -> None:
    """SIGTERM twice: nobody waits for drain limit or grace; before the dot given back, after it in doubt, exit code 75."""
    scene.relay.hold("dot")
    worker = await scene.worker("worker", **{**PATIENT, "worker": {"drain_timeout_s": 60.0, "reply_grace_s": 60.0}})
    dotted = await scene.enqueue()
    await scene.reached("dot")
    scene.relay.hold("data")
    before = await scene.enqueue()
    await scene.reached("data", 2)
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    worker.signal(signal.SIGTERM)
    assert await worker.stopped() == 75
    assert ((await scene.job(dotted))["doubts"], (await scene.job(dotted))["marked_at"]) == (1, None)
    job = await scene.job(before)
    assert (job["state"], job["attempt"], job["doubts"]) == ("ready", 0, 0)


async def test_drain_during_the_start_ends_with_0(scene: Scene, link: Proxy) -> None:
    """A worker that still waits for its database stops at once, also when the database accepts connections and says nothing."""
    await link.go_away()
    refused = await scene.start("refused", link=link)
    await refused.event("database.awaited")
    assert await refused.stop() == 0
    await link.come_back()
    link.hold()
    silent = await scene.start("silent", link=link)
    await silent.event("database.awaited")
    silent.signal(signal.SIGTERM)
    silent.signal(signal.SIGTERM)
    assert await silent.stopped() == 0


async def test_idle_worker_drains_with_its_database_away(scene: Scene, link: Proxy) -> None:
    """Nothing held, nothing to record: a black hole where the database was doesn't keep the worker from ending with 0."""
    worker = await scene.worker("worker", link=link)
    link.hold()
    await worker.event("database.lost")
    begun_mono = time.monotonic()
    assert await worker.stop() == 0
    assert time.monotonic() - begun_mono < RECORD_S + SLACK_S


async def test_drain_without_a_database_says_that_outcomes_are_unrecorded(scene: Scene, link: Proxy) -> None:
    """An answer that can't be recorded is waited for within the limits, then the exit code is 75; the row says marked."""
    record = link.trap("record")
    worker = await scene.worker("worker", link=link, worker=BRIEF)
    job_id = await scene.enqueue()
    await record.sprung()
    await link.go_away()
    await worker.event("outcome.unrecorded")
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    begun_mono = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert await worker.stopped() == 75
    assert time.monotonic() - begun_mono < RECORD_S + SLACK_S
    assert (await scene.job(job_id))["state"] == "marked"


async def test_drain_records_when_the_database_comes_back_in_time(scene: Scene, link: Proxy) -> None:
    """The drain waits for an outcome while it may still be recorded: one mail, sent, exit code 0."""
    record = link.trap("record")
    worker = await scene.worker("worker", link=link, worker={"drain_timeout_s": 30.0})
    job_id = await scene.enqueue()
    await record.sprung()
    await link.go_away()
    worker.signal(signal.SIGTERM)
    await worker.event("outcome.unrecorded")
    await link.come_back()
    assert await worker.stopped() == 0
    job = await scene.job(job_id)
    assert (job["outcome"], job["doubts"], await scene.copies(job_id)) == ("sent", 0, 1)


async def test_claim_under_way_at_sigterm_is_given_back(scene: Scene, link: Proxy) -> None:
    """Jobs that a claim has taken while the worker was asked to stop are ready again, their attempts unused, before it ends."""
    claim = link.trap("claim", DOWN)
    jobs = [await scene.enqueue() for _ in range(3)]
    worker = await scene.worker("worker", link=link)
    await claim.sprung()
    assert [(await scene.job(job_id))["state"] for job_id in jobs] == ["leased"] * 3
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    claim.release()
    assert await worker.stopped() == 0
    rows = [await scene.job(job_id) for job_id in jobs]
    assert [(row["state"], row["attempt"], row["crashes"]) for row in rows] == [("ready", 0, 0)] * 3


async def test_claim_whose_answer_is_lost_at_sigterm_is_given_back(scene: Scene, link: Proxy) -> None:
    """The same when the claim's answer never comes: its tokens are known, so it is given back before the worker ends."""
    claim = link.trap("claim", DOWN)
    job_id = await scene.enqueue()
    worker = await scene.worker("worker", link=link)
    await claim.sprung()
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    claim.cut()
    assert await worker.stopped() == 0
    row = await scene.job(job_id)
    assert (row["state"], row["attempt"], row["crashes"]) == ("ready", 0, 0)


async def test_mark_whose_answer_is_lost_leaves_something_unfinished(scene: Scene, link: Proxy) -> None:
    """The mark is committed, its answer and then the database are gone: the row can't be handed back, so the exit code is 75."""
    mark = link.trap("mark", DOWN)
    worker = await scene.worker("worker", link=link, worker={"drain_timeout_s": 0.5, "reply_grace_s": 0.5}, **PATIENT)
    job_id = await scene.enqueue()
    await mark.sprung()
    await link.go_away()
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    worker.signal(signal.SIGTERM)
    assert await worker.stopped() == 75
    assert (await scene.job(job_id))["state"] == "marked"


async def test_drain_is_heard_while_a_function_waits_for_its_large_payload(scene: Scene, link: Proxy) -> None:
    """The payload is on its way and the function hasn't begun: handed back, the attempt unused."""
    payload = link.trap("payload")
    worker = await scene.worker("worker", link=link, handlers={"noop": "daemon.handlers:noop"}, **PATIENT)
    job_id = await scene.enqueue(payload={"x": "y" * 400_000}, kind="noop")
    await payload.sprung()
    worker.signal(signal.SIGTERM)
    await worker.event("drain.begun")
    assert await worker.stopped() == 0
    row = await scene.job(job_id)
    assert (row["state"], row["attempt"], row["crashes"]) == ("ready", 0, 0)
