"""The release: a job goes back unharmed, by a slot that knows that it wrote no dot."""

from __future__ import annotations

from datetime import timedelta

import pytest

from daemon.core.outcome import Release
from daemon.store import Ending, Written
from tests.store.queue import Queue, stranger, text

ANN, BOB = "ann@example.org", "bob@example.org"


@pytest.mark.parametrize("marked", [False, True])
async def test_a_released_job_is_as_if_it_had_never_been_claimed(queue: Queue, marked: bool) -> None:  # noqa: FBT001
    """Marked or not: attempt given back, lease and mark cleared, its place in the queue kept, no crash, no doubt, no ledger."""
    job = await queue.job(attempt="3")
    if marked:
        assert (await queue.mark(job)).verdict == "go"
    assert await queue.conclude(job, Release("draining", 0.0, "r1", "451 busy")) == Written("done", None)
    row = await queue.row(job.id)
    assert (row["state"], row["attempt"], row["crashes"], row["doubts"]) == ("ready", 3, 0, 0)
    assert [row[name] for name in ("lease_token", "lease_owner", "leased_at", "lease_expires_at", "marked_at")] == [None] * 5
    assert (row["available_at"], row["reason"], row["relay"], row["reply"]) == (job.available_at, "draining", "r1", "451 busy")
    assert await queue.ledger(job.id) == []


async def test_a_delay_holds_the_job_back(queue: Queue) -> None:
    """It isn't due before that."""
    job = await queue.job()
    await queue.conclude(job, Release("kind_unknown", 60.0))
    waits = await queue.connection.fetchval("SELECT available_at - clock_timestamp() FROM mailslot.jobs")
    assert timedelta(seconds=58) < waits <= timedelta(seconds=60)
    assert await queue.claim() == []


@pytest.mark.parametrize("before", [None, {ANN: {"verdict": "sent"}, BOB: {"verdict": "later", "reply": "450"}}])
async def test_the_recipients_are_again_as_they_were_at_the_claim(queue: Queue, before: object) -> None:
    """The mark had noted who was covered; without the dot that never happened."""
    job = await queue.job(recipients="NULL" if before is None else f"'{text(before)}'")
    await queue.mark(job, BOB, recipients={ANN: {"verdict": "dead"}, BOB: {"verdict": "marked"}})
    assert await queue.verdicts(job.id) == {ANN: "dead", BOB: "marked"}
    await queue.conclude(job, Release("draining"))
    assert await queue.verdicts(job.id) == (before and {ANN: "sent", BOB: "later"})


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ({}, "cancelled"),
        ({"doubts": "1"}, "in_doubt"),
        ({"recipients": f"'{text({ANN: {'verdict': 'sent'}, BOB: {}})}'"}, "sent"),
        ({"recipients": f"'{text({ANN: {'verdict': 'in_doubt'}, BOB: {}})}'"}, "in_doubt"),
    ],
)
@pytest.mark.parametrize("marked", [False, True])
async def test_a_released_job_whose_cancel_was_requested_ends(
    queue: Queue,
    columns: dict[str, str],
    outcome: str,
    marked: bool,  # noqa: FBT001
) -> None:
    """As cancelled, unless somebody may have it; its token stays with it, and no mark that nobody wrote a dot for."""
    job = await queue.job(**columns)
    if marked:
        await queue.mark(job)
    await queue.connection.fetchval("SELECT mailslot.cancel($1)", job.id)
    assert await queue.conclude(job, Release("draining")) == Written("done", outcome)
    row = await queue.row(job.id)
    assert (row["outcome"], row["reason"], row["lease_token"], row["marked_at"]) == (outcome, "cancelled", job.token, None)
    assert row["completed_at"] is not None


async def test_a_stale_release_changes_nothing(queue: Queue) -> None:
    """Taken over, finished, or a stranger's: the row is as it was."""
    taken, done = await queue.job(), await queue.job()
    await queue.change(done.id, completed_at="now()", outcome="'sent'")
    await queue.change(taken.id, lease_token="gen_random_uuid()")
    before = [await queue.row(job.id) for job in (taken, done)]
    endings = [Ending(job, Release("draining")) for job in (taken, done)]
    assert [written.state for written in await queue.store.release(endings)] == ["lost", "lost"]
    assert [await queue.row(job.id) for job in (taken, done)] == before


async def test_a_stale_release_beside_the_present_one_of_the_same_job_is_lost(queue: Queue) -> None:
    """Answers are told apart by token, and in the order of the questions."""
    jobs = [await queue.job() for _ in range(2)]
    asked = [jobs[1], stranger(jobs[0]), jobs[0]]
    answers = await queue.store.release([Ending(job, Release("draining")) for job in asked])
    assert [written.state for written in answers] == ["done", "lost", "done"]


async def test_an_attempt_is_never_given_back_below_zero(queue: Queue) -> None:
    """An operator's retry may have set it to nothing meanwhile."""
    job = await queue.job()
    await queue.change(job.id, attempt="0")
    await queue.conclude(job, Release("draining"))
    assert (await queue.row(job.id))["attempt"] == 0
