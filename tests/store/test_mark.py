"""The mark: the last word before the dot, decided under the row's lock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from daemon.core.job import Job
from daemon.core.outcome import Record
from daemon.database import statement
from daemon.store import FIRST, MarkRequest, Store
from tests.store.queue import AGO, NO, YES, Queue, opened, settings_for, stranger
from tests.support.database import Database, Databases

ANN, BOB = "ann@example.org", "bob@example.org"


async def left_evidence(queue: Queue, job: Job, *accepted: str) -> Job:
    """Let the job's lease be lost and its stale holder learn of a 2xx; returns the job as its next holder has it."""
    taken = await queue.lose(job)
    written = await queue.conclude(job, Record("sent", "sent", reason="accepted", stage=None, accepted=accepted))
    assert written.state == "lost"
    return taken


async def test_go_marks_the_row_and_renews_the_lease(queue: Queue) -> None:
    """And says for how long the job may still be sent."""
    job = await queue.job(expires_at="now() + interval '100 seconds'")
    await queue.change(job.id, lease_expires_at=AGO)
    decision = await queue.mark(job)
    row = await queue.row(job.id)
    assert (decision.verdict, decision.accepted, row["state"], row["lease_token"]) == ("go", (), "marked", job.token)
    assert 0 < decision.expires_in_s <= 100
    assert abs(row["lease_expires_at"] - row["marked_at"] - timedelta(seconds=30)) < timedelta(seconds=1)
    assert row["verdicts"] is None


async def test_a_mark_never_shortens_a_lease(queue: Queue) -> None:
    """A heartbeat's extension may have come between."""
    job = await queue.job()
    await queue.change(job.id, lease_expires_at="'2999-01-01Z'")
    await queue.mark(job)
    assert (await queue.row(job.id))["lease_expires_at"].year == 2999


async def test_go_stores_whom_the_dot_covers(queue: Queue) -> None:
    """So that whoever finds the mark later knows who is in doubt and who was refused."""
    job = await queue.job()
    await queue.mark(job, ANN, recipients={ANN: {"verdict": "marked"}, BOB: {"verdict": "later", "reply": "450"}})
    assert await queue.verdicts(job.id) == {ANN: "marked", BOB: "later"}


async def test_marks_of_many_jobs_are_answered_in_the_order_of_the_questions(queue: Queue) -> None:
    """Each by its own token, whatever the ids' order and the neighbours' answers."""
    jobs = [await queue.job() for _ in range(4)]
    await queue.change(jobs[0].id, expires_at=AGO)
    await queue.connection.fetchval("SELECT mailslot.cancel($1)", jobs[2].id)
    questions = [MarkRequest(job, None, (ANN,)) for job in (jobs[3], stranger(jobs[1]), jobs[2], jobs[0])]
    assert [found.verdict for found in await queue.store.mark(questions)] == ["go", "lost", "cancelled", "expired"]


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ({"cancel_requested_at": AGO}, "cancelled"),
        ({"expires_at": AGO}, "expired"),
        ({"completed_at": AGO, "outcome": "'in_doubt'"}, "lost"),
        ({"lease_token": "NULL", "lease_expires_at": "NULL"}, "lost"),
        ({"lease_token": "gen_random_uuid()"}, "lost"),
    ],
)
async def test_any_answer_but_go_changes_nothing(queue: Queue, columns: dict[str, str], verdict: str) -> None:
    """Cancelled, expired or somebody else's: the caller writes no dot, and the row is as it was."""
    job = await queue.job()
    await queue.change(job.id, **columns)
    before = await queue.row(job.id)
    assert (await queue.mark(job)).verdict == verdict
    assert await queue.row(job.id) == before


async def test_a_stale_token_gets_no_go_beside_the_present_one(queue: Queue) -> None:
    """One process may hold one job twice after a stall; two goes would be two dots."""
    job = await queue.job()
    questions = [MarkRequest(found, None, (ANN,)) for found in (stranger(job), job, stranger(job))]
    assert [found.verdict for found in await queue.store.mark(questions)] == ["lost", "go", "lost"]


@pytest.mark.parametrize(("columns", "verdict"), [({"cancel_requested_at": AGO}, "cancelled"), ({"expires_at": AGO}, "expired")])
async def test_only_the_present_holder_hears_why_not(queue: Queue, columns: dict[str, str], verdict: str) -> None:
    """A stale one hears that it is stale, alone and beside the present one: the job's end isn't its to record."""
    job = await queue.job()
    await queue.change(job.id, **columns)
    assert (await queue.mark(stranger(job))).verdict == "lost"
    questions = [MarkRequest(found, None, (ANN,)) for found in (stranger(job), job)]
    assert [found.verdict for found in await queue.store.mark(questions)] == ["lost", verdict]


async def test_a_mark_that_comes_after_a_takeover_is_lost(queue: Queue) -> None:
    """The taker's lease is untouched, and its own mark is answered with go."""
    job = await queue.job()
    taken = await queue.lose(job)
    before = await queue.row(job.id)
    assert (await queue.mark(job)).verdict == "lost"
    assert await queue.row(job.id) == before
    assert (await queue.mark(taken)).verdict == "go"


async def test_a_mark_repeated_after_its_answer_was_lost_is_still_a_go(queue: Queue) -> None:
    """The same token asks the same question again."""
    job = await queue.job()
    assert [(await queue.mark(job)).verdict, (await queue.mark(job)).verdict] == ["go", "go"]


async def test_a_row_that_somebody_has_locked_is_busy(queue: Queue, other: asyncpg.Connection) -> None:
    """An open transaction that may be about to cancel: neither go nor lost, and the neighbour isn't held up."""
    busy, free = await queue.job(), await queue.job()
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT mailslot.cancel($1)", busy.id)
    questions = [MarkRequest(job, None, (ANN,)) for job in (busy, free)]
    assert [found.verdict for found in await queue.store.mark(questions)] == ["busy", "go"]
    await transaction.commit()
    assert (await queue.mark(busy)).verdict == "cancelled"


# ---------------------------------------------------------------- evidence


async def test_evidence_of_an_earlier_lease_stops_the_dot(queue: Queue) -> None:
    """All whom the dot would cover have it: nothing is marked."""
    taken = await left_evidence(queue, await queue.job(), ANN, BOB)
    decision = await queue.mark(taken, ANN, BOB)
    assert (decision.verdict, sorted(decision.accepted)) == ("evidence", [ANN, BOB])
    assert (await queue.row(taken.id))["marked_at"] is None


async def test_evidence_for_some_names_those_and_no_others(queue: Queue) -> None:
    """Once each, however many leases say so; those whom this dot wouldn't cover are not its business."""
    taken = await left_evidence(queue, await queue.job(), ANN, "cleo@example.org")
    again = await left_evidence(queue, taken, ANN)
    decision = await queue.mark(again, ANN, BOB)
    assert (decision.verdict, decision.accepted) == ("evidence", (ANN,))
    assert (await queue.row(again.id))["marked_at"] is None


async def test_evidence_for_others_stops_nobody(queue: Queue) -> None:
    """The dot covers only those who still need it."""
    taken = await left_evidence(queue, await queue.job(), ANN)
    assert (await queue.mark(taken, BOB)).verdict == "go"


async def test_evidence_outranks_cancel_and_expiry(queue: Queue) -> None:
    """A job that a relay has accepted is neither cancelled nor dead."""
    taken = await left_evidence(queue, await queue.job(), ANN)
    await queue.change(taken.id, cancel_requested_at=AGO, expires_at=AGO)
    assert (await queue.mark(taken, ANN)).verdict == "evidence"


# ---------------------------------------------------------------- durability


@pytest.fixture
async def careless(databases: Databases) -> AsyncIterator[tuple[Database, Store]]:
    """Return a database whose default is to answer commits before they are on disk, and a store on it."""
    async with databases.fresh() as database:
        await database.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
        store = await opened(settings_for(database.dsn))
        yield database, store
        store.close()


async def test_a_mark_is_on_disk_when_it_is_answered_whatever_the_servers_default(careless: tuple[Database, Store]) -> None:
    """The log is flushed past what the statement wrote; a claim, which may be lost, isn't waited for.

    With synchronous_commit = off the flushed position stays behind what was just inserted until the log writer comes round, so
    a burst of claims shows a gap now and then, and marks never do.
    """
    database, store = careless
    connection = await database.connect()
    assert await connection.fetchval("SHOW synchronous_commit") == "off"
    queue = Queue(connection, store)
    flushed = "SELECT pg_current_wal_flush_lsn()"
    for _ in range(20):
        job = await queue.job()
        before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        assert (await queue.mark(job)).verdict == "go"
        assert await connection.fetchval(flushed) > before, "what the mark wrote is on disk"
        for conclusion in (Record("later", None, 60.0), Record("sent", "sent")):
            before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
            await queue.conclude(job, conclusion)
            if conclusion.outcome is None:
                assert await connection.fetchval(flushed) > before
    assert await connection.fetchval("SELECT current_setting('synchronous_commit')") == "off", "set for the statement alone"


@pytest.mark.parametrize(("default", "kept"), [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")])
async def test_durability_is_raised_to_on_and_never_lowered(
    queue: Queue, other: asyncpg.Connection, default: str, kept: str
) -> None:
    """Whoever asks for remote_apply asks for more than on."""
    del queue
    await other.execute(f"SET synchronous_commit = {default}")
    async with other.transaction():
        assert await other.fetchval("SELECT mailslot.commit_durably()") is True
        assert await other.fetchval("SHOW synchronous_commit") == kept
    assert await other.fetchval("SHOW synchronous_commit") == default


@pytest.mark.parametrize(("default", "lowered"), [("off", "off"), ("on", "off"), ("remote_apply", "remote_apply")])
async def test_only_the_claim_commits_lazily(queue: Queue, other: asyncpg.Connection, default: str, lowered: str) -> None:
    """A claim that a crash of the server forgets makes the mark find no row; remote_apply stays even so."""
    await queue.save()
    await other.execute(f"SET synchronous_commit = {default}")
    async with other.transaction():
        levels = (["default"], [1], [FIRST], [0])
        rows = await other.fetch(statement("claim"), *levels, 1, [uuid4()], "me", 30.0, YES, 0.0, NO, [], 1_000, 3, [], [None])
        assert len(rows) == 1
        assert await other.fetchval("SHOW synchronous_commit") == lowered
