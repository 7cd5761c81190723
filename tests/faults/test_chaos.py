"""Many faults in one story, and the promises that hold all the same: nothing lost, no copy without a reason, nobody stuck."""

from __future__ import annotations

import resource
import signal
from collections import Counter

from tests.faults.scene import PATIENT, Scene
from tests.support.proxy import DOWN, Proxy

JOBS = 240


async def test_promises_hold_through_kills_stalls_cuts_and_silences(scene: Scene, link: Proxy) -> None:
    """Whatever meets two workers of one name, each job ends; `hold` has no second copy; each second copy is a counted doubt."""
    scene.relay.script["dot"] = {"reply": "250 2.0.0 ok", "delay_s": 0.02}
    for on_doubt in ("hold", "resend"):
        await scene.database.execute(
            "SELECT mailslot.enqueue(jsonb_build_object('to', 'maya@example.org', 'text', 'At eight.'), on_doubt => $2)"
            " FROM generate_series(1, $1)",
            JOBS // 2,
            on_doubt,
        )
    steady = await scene.worker("worker", link=link, lease={"max_crashes": 20})
    killed = await scene.worker("worker", lease={"max_crashes": 20})
    for round_number in range(1, 5):
        await scene.seen(30 * round_number, "stored")
        killed.kill()
        link.cut()
        await killed.stopped()
        killed = await scene.worker("worker", lease={"max_crashes": 20})
        steady.signal(signal.SIGSTOP)
        await scene.lasting(0.5 * round_number)
        steady.signal(signal.SIGCONT)
        link.hold(DOWN)
        await scene.lasting(0.4)
        link.release()
        await scene.cut_backends()
    await scene.all_finished()
    copies = Counter(message.message_id.partition("@")[0].strip("<") for message in scene.relay.messages)
    rows = await scene.database.fetch("SELECT uid::text, outcome, on_doubt, doubts, attempt FROM mailslot.jobs")
    assert len(rows) == JOBS
    for row in rows:
        seen = copies[row["uid"]]
        assert row["outcome"] == "sent" or (row["outcome"] == "in_doubt" and row["doubts"] > 0), dict(row)
        assert seen >= (row["outcome"] == "sent"), dict(row)
        assert seen <= 1 + (row["doubts"] if row["on_doubt"] == "resend" else 0), dict(row)


async def test_table_locked_for_longer_than_a_lease_blames_nobody(scene: Scene) -> None:
    """A migration that locks the table stops claims, marks, records and heartbeats alike; afterwards all goes on where it was."""
    for name in ("one", "two"):
        await scene.worker(name, **PATIENT)
    scene.relay.hold("rcpt")
    await scene.enqueue_many(8)
    await scene.reached("rcpt", 8)
    async with scene.database.connection() as migration, migration.transaction():
        await migration.execute("LOCK TABLE mailslot.jobs IN ACCESS EXCLUSIVE MODE")
        scene.relay.release("rcpt")
        await scene.lasting(3.0)
    await scene.all_finished()
    await scene.check_all_sent_once(8)


async def test_worker_out_of_file_descriptors_recovers(scene: Scene) -> None:
    """With no descriptor left for a connection, jobs wait with their attempts unused; with descriptors again they are sent."""
    worker = await scene.worker("worker", **PATIENT)
    await scene.until(await scene.enqueue(), "sent")
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (4, hard))
    await scene.enqueue_many(20)
    await scene.cut_backends()
    await worker.event("database.lost")
    await scene.lasting(1.0)
    assert len(scene.relay.messages) == 1
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (hard, hard))
    await scene.all_finished()
    await scene.check_all_sent_once(21)
