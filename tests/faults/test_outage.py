"""The database or the relay away: stopped, restarted, crashed, full, read-only. An outage costs time and nothing else (P5)."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from daemon.dev.postgres import Server
from tests.faults.scene import PATIENT, Scene
from tests.support.process import Daemon
from tests.support.proxy import DOWN, UP, Direction, Proxy

OUTAGE_S = 5.0
RESUMES_S = 5.0
CALM: dict[str, Any] = {"lease": {"takeover_grace_s": 2.0, "in_doubt_delay_s": 6.0}}
CALM_VARIABLES = {"MAILSLOT_DATABASE__RECONNECT_MAX_S": "1.0"}
DISK_FULL = """
CREATE FUNCTION public.disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100';
END $$;
CREATE TRIGGER disk_full BEFORE UPDATE ON mailslot.jobs
    FOR EACH ROW WHEN (new.outcome IS NOT NULL) EXECUTE FUNCTION public.disk_full();
"""


def _cpu_s(worker: Daemon) -> float:
    """Return the processor time that a worker has used up."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_three_restarts_of_the_database_blame_nobody(
    private_scene: Scene, private_server: Server, private_link: Proxy
) -> None:
    """With jobs before and after the dot, three restarts, longer than a lease, cost no crash, no attempt, no doubt, no copy.

    Nor is a worker blamed that finds its way back a little later than the others.
    """
    scene = private_scene
    lease = {**CALM["lease"], **PATIENT["lease"]}
    await scene.worker("one", link=private_link, lease=lease, relay=PATIENT["relay"])
    await scene.worker("two", lease=lease, relay=PATIENT["relay"])
    jobs: list[int] = []
    for number in (1, 2, 3):
        for stage in ("dot", "rcpt"):
            scene.relay.hold(stage)
            before = len(scene.relay.events.of("command", stage=stage))
            jobs += [await scene.enqueue() for _ in range(6)]
            await scene.reached(stage, before + 6)
        await private_link.go_away()
        await asyncio.to_thread(private_server.down, "fast")
        await scene.lasting(2.2 if number == 2 else 0.0)
        await asyncio.to_thread(private_server.up)
        await scene.lasting(0.7)
        await private_link.come_back()
        scene.relay.release("rcpt")
        scene.relay.release("dot")
        await scene.all_finished()
        assert len(scene.relay.messages) == 12 * number
    await scene.check_all_sent_once(len(jobs))


async def test_crash_of_the_database_between_the_250_and_the_record(
    private_scene: Scene, private_link: Proxy, private_server: Server
) -> None:
    """The outcome of an accepted mail survives an immediate stop that meets its record: one mail, recorded as sent."""
    scene, record = private_scene, private_link.trap("record")
    worker = await scene.worker("worker", link=private_link, **PATIENT)
    job_id = await scene.enqueue()
    await record.sprung()
    await asyncio.to_thread(private_server.restart, "immediate")
    record.cut()
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], job["attempt"], await scene.copies(job_id)) == (0, 0, 1, 1)
    await worker.event("job.sent", job_id=job_id)


async def test_mark_is_on_disk_when_the_dot_leaves(private_scene: Scene, private_server: Server) -> None:
    """With synchronous_commit off on the server, a crash right after a mark doesn't lose it; the mail is sent once."""
    scene = private_scene
    job_id = await scene.enqueue()
    for setting in ("synchronous_commit = off", "wal_writer_delay = '10s'"):
        await scene.database.execute(f"ALTER SYSTEM SET {setting}")
    await scene.database.execute("SELECT pg_reload_conf()")
    scene.relay.hold("dot")
    rare = {"duration_s": 30.0, "heartbeat_s": 9.0, "in_doubt_delay_s": 90.0}  # a heartbeat's commit would flush the mark too
    await scene.worker("worker", lease=rare, relay=PATIENT["relay"])
    await scene.reached("dot")
    await asyncio.to_thread(private_server.restart, "immediate")
    assert (await scene.job(job_id))["state"] == "marked"
    scene.relay.release("dot")
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], await scene.copies(job_id)) == (0, 1)


@pytest.mark.parametrize("direction", [UP, DOWN])
async def test_connection_cut_between_the_250_and_the_record(scene: Scene, link: Proxy, direction: Direction) -> None:
    """Whether the record was lost or only its answer, it is repeated: one mail, recorded as sent, and said so once."""
    record = link.trap("record", direction)
    worker = await scene.worker("worker", link=link, **PATIENT)
    job_id = await scene.enqueue()
    await record.sprung()
    record.cut()
    await worker.event("outcome.recorded_again")
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], job["attempt"], await scene.copies(job_id)) == (0, 0, 1, 1)
    await worker.event("job.sent", job_id=job_id)
    assert await worker.stop() == 0
    assert len(worker.events("job.sent")) == 1
    assert worker.events("job.deferred") == []


@pytest.mark.parametrize("direction", [UP, DOWN])
async def test_nobody_is_forgotten_and_nobody_gets_it_twice_when_the_record_is_cut(
    scene: Scene, link: Proxy, direction: Direction
) -> None:
    """One recipient has it, the other was put off, and the record or its answer was lost: each gets the mail exactly once."""
    scene.relay.script["rcpt"] = {"later@example.org": ["450 4.3.0 busy", "250 2.1.5 ok"], "*": "250 2.1.5 ok"}
    record = link.trap("record", direction)
    await scene.worker("worker", link=link, **PATIENT)
    job_id = await scene.enqueue("now@example.org", "later@example.org")
    await record.sprung()
    record.cut()
    job = await scene.until(job_id, "sent")
    assert (job["doubts"], job["crashes"], job["attempt"]) == (0, 0, 2)
    assert [message.recipients for message in scene.relay.messages] == [("now@example.org",), ("later@example.org",)]
    assert len({message.content for message in scene.relay.messages}) == 1


async def test_worker_that_starts_before_its_database_works_once_it_is_there(scene: Scene, link: Proxy) -> None:
    """It waits, says so once, becomes ready when the database answers, and works."""
    await link.go_away()
    job_id = await scene.enqueue()
    worker = await scene.start("worker", link=link)
    await worker.event("database.awaited")
    await link.come_back()
    await worker.wait_ready()
    await scene.until(job_id, "sent")
    assert len(worker.events("database.awaited")) == 1


async def test_database_away_costs_time_and_nothing_else(scene: Scene, link: Proxy) -> None:
    """Refused or silent, to the idle and to the busy, 5 s without a database are outlived calmly; all resume within 5 s."""
    options = {"relay": PATIENT["relay"], "lease": {**CALM["lease"], **PATIENT["lease"]}, "environment": CALM_VARIABLES}
    async with Proxy.to_database(scene.database.dsn) as silent_link:
        workers = {
            "idle": await scene.worker("idle", link=link, worker={"queues": ["nothing"]}, **options),
            "refused": await scene.worker("refused", link=link, worker={"queues": ["refused"]}, **options),
            "silent": await scene.worker("silent", link=silent_link, worker={"queues": ["silent"]}, **options),
        }
        scene.relay.hold("dot")
        jobs = [await scene.enqueue(queue=queue) for queue in ("refused", "silent")]
        await scene.reached("dot", 2)
        scene.relay.hold("rcpt")
        jobs += [await scene.enqueue(queue=queue) for queue in ("refused", "silent") for _ in range(2)]
        await scene.reached("rcpt", 6)
        before = {name: (worker.position, _cpu_s(worker)) for name, worker in workers.items()}
        await link.go_away()
        silent_link.hold()
        scene.relay.release("dot")
        scene.relay.release("rcpt")
        await scene.lasting(OUTAGE_S)
        for name, worker in workers.items():
            lines, cpu_s = before[name]
            assert (name, len(worker.events("database.lost"))) == (name, 1)
            assert worker.position - lines <= 2 * OUTAGE_S, scene.story()
            assert _cpu_s(worker) - cpu_s < OUTAGE_S / 5
        await link.come_back()
        silent_link.release()
        await scene.all_finished(within_s=RESUMES_S)
        await scene.check_all_sent_once(6)


@pytest.mark.parametrize(
    ("fault", "cure"),
    [
        ("SET default_transaction_read_only = on", "RESET default_transaction_read_only"),
        ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1"),
    ],
)
async def test_database_that_takes_nothing_is_waited_for(scene: Scene, fault: str, cure: str) -> None:
    """Read-only or full of connections, the database is asked again until it takes writes; nobody is blamed."""
    worker = await scene.worker("worker", **PATIENT)
    scene.relay.hold("rcpt")
    jobs = [await scene.enqueue() for _ in range(3)]
    await scene.reached("rcpt", 3)
    await scene.database.execute(f"ALTER DATABASE {scene.database.name} {fault}")
    await scene.cut_backends()
    await worker.event("database.lost")
    scene.relay.release("rcpt")
    await scene.lasting(1.0)
    await scene.database.execute(f"BEGIN READ WRITE; ALTER DATABASE {scene.database.name} {cure}; COMMIT")
    await scene.all_finished(within_s=RESUMES_S)
    rows = [await scene.job(job_id) for job_id in jobs]
    assert {(row["outcome"], row["crashes"], row["doubts"]) for row in rows} == {("sent", 0, 0)}
    assert [await scene.copies(job_id) for job_id in jobs] == [1] * 3


async def test_no_dot_leaves_while_outcomes_cannot_be_recorded(scene: Scene) -> None:
    """With the disk full for outcomes but not for marks, the first accepted mail is the last: more would risk second copies."""
    await scene.database.execute(DISK_FULL)
    worker = await scene.worker("worker", **PATIENT)
    await scene.enqueue()
    await worker.event("outcome.unrecorded")
    await scene.enqueue_many(5)
    await scene.lasting(1.5)
    assert len(scene.relay.messages) == 1
    assert worker.events("job.sent") == []
    await scene.database.execute("DROP TRIGGER disk_full ON mailslot.jobs")
    await scene.all_finished(within_s=RESUMES_S)
    await scene.check_all_sent_once(6)


async def test_backends_that_are_terminated_again_and_again_cost_nothing(scene: Scene) -> None:
    """Under load, cutting every connection of two workers 15 times loses no job, doubles none, and blames nobody."""
    for name in ("one", "two"):
        await scene.worker(name, **PATIENT)
    await scene.enqueue_many(400)
    for target in range(20, 320, 20):
        await scene.seen(target, "stored")
        await scene.cut_backends()
    await scene.all_finished()
    await scene.check_all_sent_once(400)


async def test_relay_away_uses_up_no_attempt(scene: Scene) -> None:
    """While nobody listens at the relay, jobs wait with their attempts unused; after its return they are sent, once each."""
    worker = await scene.worker("worker")
    await scene.relay.stop()
    await scene.enqueue_many(10)
    await worker.event("relay.lost")
    await scene.until_true("SELECT count(*) = 10 FROM mailslot.job_states WHERE state = 'ready' AND attempt = 0")
    await scene.lasting(1.0)
    lines = worker.position
    await scene.lasting(2.0)
    assert worker.position - lines <= 2
    async with scene.relay:
        await scene.all_finished(within_s=RESUMES_S)
        await scene.check_all_sent_once(10)
        assert len(worker.events("relay.lost")) == 1
        assert await worker.stop() == 0


async def test_relay_that_drops_every_connection_uses_up_no_attempt(scene: Scene) -> None:
    """Connections that end at any stage before the body are the relay's fault: jobs keep their attempts, and are sent at last."""
    drops = [
        {"refuse": True},
        {"greeting": {"reply": None, "then": "close"}},
        {"greeting": "421 4.3.2 not now"},
        {"ehlo": {"reply": None, "then": "rst"}},
        {"mail": {"reply": None, "then": "close"}},
        {"rcpt": {"*": {"reply": None, "then": "rst"}}},
        {"data": {"reply": None, "then": "close"}},
        {"data": "421 4.3.2 closing"},
    ]
    scene.relay.script["connections"] = [*itertools.chain(drops, drops), {}]
    await scene.enqueue_many(4)
    await scene.worker("worker")
    await scene.all_finished()
    await scene.check_all_sent_once(4)
