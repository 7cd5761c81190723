"""Payloads that no application should save, put straight into the table: each is dead with a reason, its neighbours are sent."""

from __future__ import annotations

import json
from typing import Any

from tests.faults.scene import PATIENT, Scene

MEGABYTE = 1_000_000
WRONG: dict[str, Any] = {
    "a list": [],
    "a string": "maya@example.org",
    "a number": 42,
    "null": None,
    "true": True,
    "nobody": {"subject": "hello", "text": "hello"},
    "nobody at all": {"to": [], "subject": "hello", "text": "hello"},
    "unknown key": {"to": "maya@example.org", "text": "hello", "sujbect": "hello"},
    "control in subject": {"to": "maya@example.org", "subject": "a\u0001b", "text": "hello"},
    "line break in subject": {"to": "maya@example.org", "subject": "a\r\nBcc: eve@example.org", "text": "hello"},
    "line break in a header": {"to": "maya@example.org", "text": "hello", "headers": {"X-Note": "a\r\nBcc: eve@example.org"}},
    "line break in a name": {"to": {"name": "Maya\r\nBcc: eve@example.org", "email": "maya@example.org"}, "text": "hello"},
    "header without a name": {"to": "maya@example.org", "text": "hello", "headers": {"": "x"}},
    "address with a blank": {"to": "maya@example.org> SIZE=1", "text": "hello"},
    "two addresses in one": {"to": "maya@example.org, eve@example.org", "text": "hello"},
    "wrong types": {"to": 7, "subject": ["hello"], "text": {"a": 1}},
    "text that is a number": {"to": "maya@example.org", "text": 5},
    "attachment that isn't base64": {"to": "maya@example.org", "attachments": [{"filename": "a", "content_b64": "!!"}]},
    "thirty megabytes": {"to": "maya@example.org", "text": "x" * 30 * MEGABYTE},
    "deeply nested": {"to": "maya@example.org", "text": json.loads("[" * 500 + "]" * 500)},
    "ten thousand recipients": {"to": [f"maya{number}@example.org" for number in range(10_000)], "text": "hello"},
}


async def test_payloads_of_every_wrong_kind_are_dead_with_a_reason_and_harm_nobody(scene: Scene) -> None:
    """Each ends as dead, after one attempt, with a reason; the jobs between them are sent, and the worker says no surprise."""
    jobs, neighbours = {}, []
    for kind, payload in WRONG.items():
        jobs[kind] = await scene.database.fetchval(
            "INSERT INTO mailslot.jobs (payload, expires_at) VALUES ($1, now() + interval '1 h') RETURNING id",
            json.dumps(payload),
        )
        neighbours.append(await scene.enqueue())
    worker = await scene.worker("worker", **PATIENT, environment={"MAILSLOT_DATABASE__COMMAND_TIMEOUT_S": "5.0"})
    await scene.all_finished()
    for kind, job_id in jobs.items():
        job = await scene.job(job_id)
        assert (kind, job["outcome"], job["attempt"], job["crashes"]) == (kind, "dead", 1, 0)
        assert job["reason"], kind
        assert await scene.copies(job_id) == 0
    assert [(await scene.job(job_id))["outcome"] for job_id in neighbours] == ["sent"] * len(neighbours)
    assert len(worker.events("job.dead")) == len(jobs)
    assert await worker.stop() == 0


async def test_payloads_that_cannot_be_fetched_in_time_hold_up_nobody(scene: Scene) -> None:
    """Many huge payloads, due at once before all others, take more than a statement's time: their neighbours are sent."""
    for _ in range(12):
        await scene.database.execute(
            "INSERT INTO mailslot.jobs (payload, expires_at) SELECT"
            " jsonb_build_object('to', 'maya@example.org', 'text', repeat(md5(random()::text), 1000000)), now() + interval '1 h'"
        )
    neighbours = [await scene.enqueue() for _ in range(5)]
    await scene.worker("worker", worker={"concurrency": 20}, **PATIENT)
    for job_id in neighbours:
        await scene.until(job_id, "sent")
    assert [await scene.copies(job_id) for job_id in neighbours] == [1] * 5
    assert len(scene.relay.messages) == 5
