"""The record: an outcome, or back to ready, under the job's own token, as often as it has to be said."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from daemon.core.errors import StoreRefused
from daemon.core.outcome import Record, Release
from daemon.core.smtp import Stage
from daemon.store import Ending, Written
from tests.store.queue import AGO, Queue, stranger, text

ANN, BOB = "ann@example.org", "bob@example.org"
SENT = Record("sent", "sent", reason="accepted", relay="r1", reply="250 2.0.0 queued as 4F", stage=Stage.DOT, accepted=(ANN,))
LATER = Record("later", None, 60.0, reason="deferred", relay="r1", reply="450 4.2.0 later", stage=Stage.RCPT)
DEAD = Record("rejected", "dead", reason="mailbox_unknown", relay="r1", reply="550 5.1.1 no", stage=Stage.RCPT)
DOUBT = Record("doubt", None, 60.0, doubts=1, reason="timeout", stage=Stage.DOT)
HELD_DOUBT = Record("doubt", "in_doubt", doubts=1, reason="timeout", stage=Stage.DOT)
ASSUMED = Record("doubt", "sent", doubts=1, reason="timeout", assumed=True, stage=Stage.DOT)
CANCELLED = Record("rejected", "cancelled", reason="cancelled")
PARTLY = replace(LATER, accepted=(ANN,), recipients=text({ANN: {"verdict": "sent"}, BOB: {}}))
SHAPES = {
    "sent": SENT,
    "later": LATER,
    "dead": DEAD,
    "doubt": DOUBT,
    "in_doubt": HELD_DOUBT,
    "assumed": ASSUMED,
    "cancelled": CANCELLED,
    "partly": PARTLY,
}
shapes = pytest.mark.parametrize("record", SHAPES.values(), ids=SHAPES)


async def cancel(queue: Queue, job_id: int) -> str | None:
    """Ask for a job's cancellation, as an application does."""
    state: str | None = await queue.connection.fetchval("SELECT mailslot.cancel($1)", job_id)
    return state


# ---------------------------------------------------------------- what is written


async def test_sent_finishes_the_job_and_keeps_its_token(queue: Queue) -> None:
    """So that the holder whose answer was lost can tell its own record from a stranger's; no ledger row is needed."""
    job = await queue.job()
    await queue.mark(job)
    assert await queue.conclude(job, SENT) == Written("done", "sent")
    row = await queue.row(job.id)
    assert (row["state"], row["reason"], row["relay"], row["reply"]) == ("sent", "accepted", "r1", "250 2.0.0 queued as 4F")
    assert (row["lease_token"], row["lease_expires_at"], row["assumed"], row["doubts"]) == (job.token, None, False, 0)
    assert row["completed_at"] is not None
    assert row["marked_at"] is not None
    assert await queue.ledger(job.id) == []


async def test_later_makes_the_job_ready_again_after_its_delay(queue: Queue) -> None:
    """The lease and the mark are cleared, the attempt stays counted, the ledger keeps what was learnt."""
    job = await queue.job()
    await queue.mark(job)
    assert await queue.conclude(job, LATER) == Written("done", None)
    row = await queue.row(job.id)
    assert (row["state"], row["attempt"], row["doubts"], row["reason"], row["reply"]) == (
        "ready",
        1,
        0,
        "deferred",
        "450 4.2.0 later",
    )
    assert [row[name] for name in ("lease_token", "lease_owner", "leased_at", "lease_expires_at", "marked_at")] == [None] * 5
    (entry,) = await queue.ledger(job.id)
    assert timedelta(seconds=59) < row["available_at"] - entry["ended_at"] < timedelta(seconds=61)
    assert (entry["lease_token"], entry["owner"], entry["attempt"], entry["accepted"]) == (job.token, "me", 1, None)
    assert (entry["verdict"], entry["stage"], entry["reason"], entry["relay"]) == ("later", "rcpt", "deferred", "r1")


async def test_without_a_delay_the_job_keeps_its_place(queue: Queue) -> None:
    """Ready at once, and nobody overtakes it."""
    job = await queue.job()
    await queue.conclude(job, replace(LATER, delay_s=0.0))
    assert (await queue.row(job.id))["available_at"] == job.available_at


async def test_doubts_are_added_and_an_assumption_is_flagged(queue: Queue) -> None:
    """A job goes on with its doubts; sent without a 2xx says so."""
    job = await queue.job(doubts="1", attempt="1")
    await queue.conclude(job, DOUBT)
    assert (await queue.row(job.id))["doubts"] == 2
    assumed = await queue.job()
    assert await queue.conclude(assumed, ASSUMED) == Written("done", "sent")
    row = await queue.row(assumed.id)
    assert (row["assumed"], row["doubts"]) == (True, 1)


async def test_what_each_recipient_stands_at_is_stored_as_it_is_said(queue: Queue) -> None:
    """The new map replaces the old one; no map means that all are alike."""
    job = await queue.job(recipients=f"""'{text({ANN: {}, BOB: {}})}'""")
    await queue.conclude(job, PARTLY)
    assert await queue.verdicts(job.id) == {ANN: "sent", BOB: "later"}
    await queue.change(job.id, available_at="now()")
    (again,) = await queue.claim()
    await queue.conclude(again, SENT)
    assert await queue.verdicts(job.id) is None
    (entry,) = await queue.ledger(job.id)
    assert entry["accepted"] == [ANN]


async def test_many_outcomes_are_written_at_once_each_by_its_own_token(queue: Queue) -> None:
    """In any order, with strangers between."""
    jobs = [await queue.job() for _ in range(3)]
    endings = [Ending(jobs[2], SENT), Ending(stranger(jobs[0]), DEAD), Ending(jobs[1], LATER), Ending(jobs[0], DEAD)]
    answers = await queue.store.record(endings)
    assert answers == [Written("done", "sent"), Written("lost", None), Written("done", None), Written("done", "dead")]
    assert [(await queue.row(job.id))["state"] for job in jobs] == ["dead", "ready", "sent"]


# ---------------------------------------------------------------- what somebody else wants meanwhile


@pytest.mark.parametrize(
    ("columns", "record", "outcome", "reason"),
    [
        ({}, LATER, "cancelled", "cancelled"),
        ({"doubts": "1"}, LATER, "in_doubt", "cancelled"),
        ({}, DOUBT, "in_doubt", "cancelled"),
        ({}, PARTLY, "sent", "cancelled"),
        ({}, SENT, "sent", "accepted"),
        ({}, DEAD, "dead", "mailbox_unknown"),
        ({}, HELD_DOUBT, "in_doubt", "timeout"),
    ],
)
async def test_a_cancelled_job_doesnt_go_on(
    queue: Queue, columns: dict[str, str], record: Record, outcome: str, reason: str
) -> None:
    """Cancelled instead of tried again; what was accepted, refused or doubted keeps its outcome."""
    job = await queue.job(**columns)
    assert await cancel(queue, job.id) == "cancel_requested"
    assert await queue.conclude(job, record) == Written("done", outcome)
    row = await queue.row(job.id)
    assert (row["outcome"], row["reason"], row["lease_token"]) == (outcome, reason, job.token)


@pytest.mark.parametrize("record", [DEAD, CANCELLED])
async def test_a_job_that_was_once_in_doubt_never_ends_as_unsent(queue: Queue, record: Record) -> None:
    """A refusal of the second copy says nothing about the first."""
    job = await queue.job(doubts="1")
    assert await queue.conclude(job, record) == Written("done", "in_doubt")


@pytest.mark.parametrize("record", [DEAD, CANCELLED])
@pytest.mark.parametrize(("verdict", "outcome"), [("sent", "sent"), ("in_doubt", "in_doubt"), ("dead", None)])
async def test_a_job_that_somebody_has_never_ends_as_unsent(
    queue: Queue, record: Record, verdict: str, outcome: str | None
) -> None:
    """The row's own map is the last word."""
    job = await queue.job()
    mapped = replace(record, recipients=text({ANN: {"verdict": verdict}, BOB: {"verdict": "dead"}}))
    assert (await queue.conclude(job, mapped)).outcome == (outcome or record.outcome)


# ---------------------------------------------------------------- said again


@shapes
async def test_a_record_whose_answer_was_lost_may_be_repeated(queue: Queue, record: Record) -> None:
    """Done, with the same outcome, and nothing is counted or written twice."""
    job = await queue.job()
    await queue.mark(job)
    first = await queue.conclude(job, record)
    row, ledger = await queue.row(job.id), await queue.ledger(job.id)
    assert await queue.conclude(job, record) == first
    assert await queue.row(job.id) == row
    assert [dict(entry) for entry in await queue.ledger(job.id)] == [dict(entry) for entry in ledger]


@pytest.mark.parametrize("record", [LATER, DOUBT, PARTLY], ids=["later", "doubt", "partly"])
async def test_a_repeat_doesnt_touch_the_next_holders_lease(queue: Queue, record: Record) -> None:
    """Back to ready, claimed by another, and only then the repeat arrives: it was done already."""
    job = await queue.job()
    await queue.conclude(job, record)
    await queue.change(job.id, available_at="now()")
    await queue.claim()
    before = await queue.row(job.id)
    assert await queue.conclude(job, record) == Written("done", None)
    assert await queue.row(job.id) == before
    assert len(await queue.ledger(job.id)) == 1


async def test_a_stale_record_beside_the_present_one_of_the_same_job_is_lost(queue: Queue) -> None:
    """One process may conclude one job twice after a stall; only the present token's word counts."""
    job = await queue.job()
    stale = stranger(job)
    assert await queue.store.record([Ending(stale, DEAD), Ending(job, SENT)]) == [Written("lost", None), Written("done", "sent")]
    assert (await queue.row(job.id))["state"] == "sent"


# ---------------------------------------------------------------- too late


@shapes
async def test_a_stale_holder_changes_nothing_and_leaves_evidence_of_a_2xx(queue: Queue, record: Record) -> None:
    """The row is the taker's; the ledger keeps what a relay accepted, and nothing else is news."""
    job = await queue.job()
    await queue.lose(job)
    before = await queue.row(job.id)
    assert await queue.conclude(job, record) == Written("lost", None)
    assert await queue.row(job.id) == before
    (entry,) = await queue.ledger(job.id)
    assert entry["accepted"] == (list(record.accepted) or None)
    assert entry["verdict"] == (record.verdict if record.accepted else "worker_lost")


async def test_evidence_is_left_only_on_the_very_same_job(queue: Queue) -> None:
    """Ids repeat after a failover or a restore; the uid doesn't."""
    job = await queue.job()
    await queue.lose(job)
    other = replace(job, uid=uuid4())
    assert await queue.conclude(other, SENT) == Written("lost", None)
    assert await queue.conclude(replace(job, id=0), SENT) == Written("lost", None)
    (entry,) = await queue.ledger(job.id)
    assert entry["accepted"] is None


async def test_evidence_once_left_is_never_cleared(queue: Queue) -> None:
    """Accepted beats everything that is written about the same lease later, a repeat and a takeover included."""
    job = await queue.job()
    taken = await queue.lose(job)
    await queue.conclude(job, SENT)
    await queue.conclude(job, SENT)
    await queue.conclude(job, replace(LATER, accepted=()))
    (entry,) = await queue.ledger(job.id)
    assert entry["accepted"] == [ANN]
    await queue.lose(taken)
    assert [found["accepted"] for found in await queue.ledger(job.id)] == [[ANN], None]


async def test_a_record_without_a_2xx_clears_no_evidence_of_the_same_lease(queue: Queue) -> None:
    """However it got there first: the upsert takes everything from the newer write but that."""
    job = await queue.job()
    await queue.connection.execute(
        "INSERT INTO mailslot.attempts (job_id, lease_token, attempt, verdict, accepted) VALUES ($1, $2, 1, 'sent', $3)",
        job.id,
        job.token,
        [ANN],
    )
    assert await queue.conclude(job, LATER) == Written("done", None)
    assert [(entry["verdict"], entry["accepted"]) for entry in await queue.ledger(job.id)] == [("later", [ANN])]


async def test_a_late_2xx_makes_its_own_doubt_sent(queue: Queue) -> None:
    """The sweep had given the answer up; it came after all, under the row's own token."""
    job = await queue.job(on_doubt="'hold'")
    await queue.mark(job)
    await queue.change(job.id, lease_expires_at=AGO)
    (swept,) = await queue.store.sweep()
    assert (swept.why, swept.outcome) == ("doubt", "in_doubt")
    assert await queue.conclude(job, SENT) == Written("done", "sent")
    row = await queue.row(job.id)
    assert (row["state"], row["doubts"], row["reply"], row["assumed"]) == ("sent", 1, SENT.reply, False)


@pytest.mark.parametrize("record", [DEAD, LATER, DOUBT, HELD_DOUBT], ids=["dead", "later", "doubt", "in_doubt"])
async def test_only_a_2xx_changes_a_job_that_ended_in_doubt(queue: Queue, record: Record) -> None:
    """Anything else that comes late says no more than is known."""
    job = await queue.job(on_doubt="'hold'")
    await queue.mark(job)
    await queue.change(job.id, lease_expires_at=AGO)
    await queue.store.sweep()
    before = await queue.row(job.id)
    assert (await queue.conclude(job, record)).state == "done"
    assert await queue.row(job.id) == before


@pytest.mark.parametrize("outcome", ["dead", "cancelled", "sent"])
async def test_a_2xx_changes_no_other_end(queue: Queue, outcome: str) -> None:
    """Under its own token too: what was decided with an answer stays."""
    job = await queue.job()
    await queue.change(job.id, completed_at=AGO, outcome=f"'{outcome}'", reason="'x'")
    before = await queue.row(job.id)
    assert await queue.conclude(job, SENT) == Written("done", outcome)
    assert await queue.row(job.id) == before


async def test_a_2xx_under_a_strangers_token_leaves_a_doubt_as_it_is(queue: Queue) -> None:
    """It is evidence about another lease, and a person decides."""
    job = await queue.job()
    await queue.change(job.id, completed_at=AGO, outcome="'in_doubt'", doubts="1")
    before = await queue.row(job.id)
    assert await queue.conclude(stranger(job), SENT) == Written("lost", None)
    assert await queue.row(job.id) == before
    assert [entry["accepted"] for entry in await queue.ledger(job.id)] == [[ANN]]


async def test_part_of_a_late_2xx_is_kept_as_evidence(queue: Queue) -> None:
    """Ann has it, Bob was deferred, and the job ended in doubt meanwhile: a person must be able to see that Ann has it."""
    job = await queue.job(on_doubt="'hold'")
    await queue.mark(job, ANN, recipients={ANN: {"verdict": "marked"}, BOB: {}})
    await queue.change(job.id, lease_expires_at=AGO, expires_at=AGO)
    (swept,) = await queue.store.sweep()
    assert swept.outcome == "in_doubt"
    assert (await queue.conclude(job, PARTLY)).state == "done"
    assert [entry["accepted"] for entry in await queue.ledger(job.id)] == [[ANN]]


# ---------------------------------------------------------------- busy and refused


async def test_a_row_that_somebody_has_locked_is_asked_for_again(queue: Queue, other: asyncpg.Connection) -> None:
    """Busy is no answer about the job, and it holds up no other."""
    busy, free = await queue.job(), await queue.job()
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT mailslot.cancel($1)", busy.id)
    answers = await queue.store.record([Ending(busy, LATER), Ending(free, SENT)])
    assert answers == [Written("busy", None), Written("done", "sent")]
    assert await queue.store.release([Ending(busy, Release("x"))]) == [Written("busy", None)]
    await transaction.commit()
    assert await queue.conclude(busy, LATER) == Written("done", "cancelled")


async def test_two_who_leave_the_same_evidence_wait_for_each_other_in_the_same_order(
    queue: Queue, other: asyncpg.Connection
) -> None:
    """By id, however they were asked: the other way round they would wait for each other for ever."""
    first, second = stranger(await queue.job()), stranger(await queue.job())
    evidence = "INSERT INTO mailslot.attempts (job_id, lease_token, attempt, verdict) VALUES ($1, $2, 1, 'later')"
    transaction = other.transaction()
    await transaction.start()
    await other.execute(evidence, first.id, first.token)
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(queue.store.record([Ending(second, SENT), Ending(first, SENT)]))
        while not await queue.connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            assert not writing.done()
        await other.execute(evidence, second.id, second.token)
        await transaction.commit()
    assert writing.result() == [Written("lost", None)] * 2
    assert [len(await queue.ledger(job.id)) for job in (first, second)] == [1, 1]


@pytest.mark.parametrize("relay", ["x" * 201, "nul \0", "half \ud800"], ids=["long", "nul", "surrogate"])
async def test_a_text_that_the_database_wont_store_is_an_answer(queue: Queue, relay: str) -> None:
    """Refused, not unavailable: repeating it can't help, and nothing was written."""
    job = await queue.job()
    before = await queue.row(job.id)
    with pytest.raises(StoreRefused):
        await queue.conclude(job, replace(SENT, relay=relay))
    assert await queue.row(job.id) == before


async def test_what_others_wrote_is_cut_and_cleaned_before_it_is_stored(queue: Queue) -> None:
    """A relay's longest reply and an operator's longest reason fit; controls don't come along."""
    job = await queue.job()
    await queue.conclude(job, replace(DEAD, reason="r\0" * 300, reply="550 5.1.1 " + "y" * 500))
    row = await queue.row(job.id)
    assert row["state"] == "dead"
    assert len(row["reply"]) == 500
    assert len(row["reason"]) <= 200
