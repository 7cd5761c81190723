"""The sweep: what no worker will put right, judged and written under one lock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import asyncpg
import pytest

from daemon.core.outcome import Record
from daemon.database import statement
from daemon.store import FIRST, PRIORITIES, Swept
from tests.store.queue import AGO, EXPIRED, HELD, LEASED, MARKED, OVERDUE, SOON, YES, Queue, opened, settings_for, text
from tests.support.database import Database

ANN, BOB, CLEO = "ann@example.org", "bob@example.org", "cleo@example.org"
DELAY_S = 660.0


def mapped(**verdicts: str) -> str:
    """Return an SQL literal of recipients by the first letters of their names; a trailing ? means doubted, and sent? assumed."""
    names = {"a": ANN, "b": BOB, "c": CLEO}
    marks = {"": {}, "?": {"doubted": True}, "sent?": {"doubted": True, "assumed": True}}
    entries = {
        names[k]: {"verdict": v.rstrip("?"), **marks[v if v in marks else "?" if v.endswith("?") else ""]}
        for k, v in verdicts.items()
    }
    return f"'{text(entries)}'"


async def sweep(
    queue: Queue,
    *,
    window: int | None = 5_000,
    limit: int = 500,
    grace_s: float = 0.0,
    delay_s: float = DELAY_S,
    max_doubts: int = 2,
    full: bool = False,
) -> list[Swept]:
    """Sweep with other bounds than the store's."""
    rows = await queue.connection.fetch(
        statement("sweep"),
        ["default"] * 4,
        list(PRIORITIES),
        window,
        limit,
        YES,
        grace_s,
        delay_s,
        3,
        max_doubts,
        30.0,
        full,
        [FIRST] * 4,
    )
    return [Swept(**row) for row in rows]


# ---------------------------------------------------------------- the header's table


async def test_an_orphan_is_ready_again_with_one_crash_and_its_attempt_back(queue: Queue) -> None:
    """Unmarked, and the lease is over: nothing can have been sent."""
    saved = await queue.save(**{**EXPIRED, "attempt": "3"})
    before = await queue.row(saved)
    assert await queue.store.sweep() == [Swept(saved, "orphan", None)]
    row = await queue.row(saved)
    assert (row["state"], row["attempt"], row["crashes"], row["doubts"], row["reason"]) == ("ready", 2, 1, 0, "worker_lost")
    assert [row[name] for name in ("lease_token", "lease_owner", "leased_at", "lease_expires_at", "marked_at")] == [None] * 5
    assert row["available_at"] == before["available_at"]
    (entry,) = await queue.ledger(saved)
    assert (entry["lease_token"], entry["owner"], entry["attempt"]) == (before["lease_token"], "gone", 3)
    assert (entry["verdict"], entry["reason"], entry["stage"], entry["accepted"]) == ("worker_lost", "orphan", None, None)


async def test_an_orphan_that_never_lost_a_worker_is_left_to_the_claim(queue: Queue) -> None:
    """The claim takes it over beside others; made ready by a sweep it would be a suspect and run alone, one a minute."""
    just_now = {**EXPIRED, "lease_expires_at": "now() - interval '1 second'"}
    innocent, suspect = await queue.save(**just_now), await queue.save(**{**just_now, "crashes": "1"})
    assert await queue.store.sweep() == [Swept(suspect, "orphan", None)]
    assert [job.id for job in await queue.claim()] == [innocent]


async def test_a_job_that_has_lost_too_many_workers_is_dead(queue: Queue) -> None:
    """Parked after the third crash; once in doubt it is in doubt."""
    poison, doubted = await queue.save(**EXPIRED, crashes="2"), await queue.save(**EXPIRED, crashes="2", doubts="1")
    swept = {job.id: job for job in await queue.store.sweep()}
    assert swept == {poison: Swept(poison, "worker_lost", "dead"), doubted: Swept(doubted, "worker_lost", "in_doubt")}
    row = await queue.row(poison)
    assert (row["reason"], row["crashes"], row["attempt"]) == ("worker_lost", 3, 1)
    assert row["lease_token"] is not None, "a final row keeps its token"
    assert row["lease_expires_at"] is None


@pytest.mark.parametrize("lease", [{}, EXPIRED, {**EXPIRED, "crashes": "2"}], ids=["ready", "lost", "lost-for-good"])
@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ({}, "cancelled"),
        ({"doubts": "1"}, "in_doubt"),
        ({"recipients": mapped(a="sent", b="later")}, "sent"),
        ({"recipients": mapped(a="in_doubt", b="later")}, "in_doubt"),
    ],
)
async def test_a_job_whose_cancel_was_requested_ends(
    queue: Queue, lease: Mapping[str, str], columns: Mapping[str, str], outcome: str
) -> None:
    """As cancelled, never as dead, unless somebody may have it; whoever lost it is counted."""
    saved = await queue.save(**{**lease, **columns, "cancel_requested_at": AGO})
    assert await queue.store.sweep() == [Swept(saved, "cancelled", outcome)]
    row = await queue.row(saved)
    assert (row["outcome"], row["reason"]) == (outcome, "cancelled")
    assert row["crashes"] == int(lease.get("crashes") or 0) + ("lease_token" in lease)


@pytest.mark.parametrize("lease", [{}, EXPIRED], ids=["ready", "lost"])
@pytest.mark.parametrize(
    ("columns", "outcome"),
    [({}, "dead"), ({"doubts": "1"}, "in_doubt"), ({"recipients": mapped(a="sent", b="later")}, "sent")],
)
async def test_a_job_that_nobody_wants_any_more_ends(
    queue: Queue, lease: Mapping[str, str], columns: Mapping[str, str], outcome: str
) -> None:
    """expires_at has passed: dead, unless somebody may have it."""
    saved = await queue.save(**{**lease, **columns, "expires_at": AGO})
    assert await queue.store.sweep() == [Swept(saved, "expired", outcome)]
    assert (await queue.row(saved))["reason"] == "expired"


async def test_a_job_without_attempts_left_ends(queue: Queue) -> None:
    """Not leased, and none left; a lost lease whose attempt is given back has one."""
    used_up = await queue.save(attempt="5", max_attempts="5")
    lost = await queue.save(**{**EXPIRED, "attempt": "5", "max_attempts": "5"})
    swept = {job.id: job for job in await queue.store.sweep()}
    assert swept == {used_up: Swept(used_up, "attempts_used_up", "dead"), lost: Swept(lost, "orphan", None)}


# ---------------------------------------------------------------- doubt


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [
        ({"on_doubt": "'resend'"}, None),
        ({"on_doubt": "'resend'", "doubts": "1"}, None),
        ({"on_doubt": "'resend'", "doubts": "2"}, "in_doubt"),
        ({"on_doubt": "'resend'", "crashes": "2"}, "in_doubt"),
        ({"on_doubt": "'resend'", "attempt": "5", "max_attempts": "5"}, "in_doubt"),
        ({"on_doubt": "'resend'", "expires_at": AGO}, "in_doubt"),
        ({"on_doubt": "'resend'", "cancel_requested_at": AGO}, "in_doubt"),
        ({"on_doubt": "'hold'"}, "in_doubt"),
        ({"on_doubt": "'hold'", "doubts": "1"}, "in_doubt"),
        ({"on_doubt": "'assume_sent'"}, "sent"),
        ({"on_doubt": "'assume_sent'", "crashes": "2", "expires_at": AGO, "attempt": "5", "max_attempts": "5"}, "sent"),
        ({"on_doubt": "'assume_sent'", "cancel_requested_at": AGO}, "in_doubt"),
    ],
)
async def test_an_overdue_mark_is_a_doubt_and_on_doubt_decides(
    queue: Queue, columns: dict[str, str], outcome: str | None
) -> None:
    """Again at most twice and only while anything is left; never dead, never cancelled; counted as a doubt and a crash."""
    saved = await queue.save(**{**OVERDUE, **columns})
    before = await queue.row(saved)
    assert await queue.store.sweep() == [Swept(saved, "doubt", outcome)]
    row = await queue.row(saved)
    assert (row["outcome"], row["assumed"], row["reason"]) == (outcome, outcome == "sent", "worker_lost_after_dot")
    assert (row["doubts"], row["crashes"], row["attempt"]) == (before["doubts"] + 1, before["crashes"] + 1, before["attempt"])
    if outcome is None:
        assert (row["state"], row["lease_token"], row["marked_at"]) == ("ready", None, None)
    else:
        assert (row["lease_token"], row["marked_at"]) == (before["lease_token"], before["marked_at"])
    (entry,) = await queue.ledger(saved)
    assert (entry["stage"], entry["verdict"], entry["reason"]) == ("dot", "worker_lost", "doubt")


@pytest.mark.parametrize(("max_doubts", "outcome"), [(0, "in_doubt"), (1, None)])
async def test_no_doubts_may_be_allowed_at_all(queue: Queue, max_doubts: int, outcome: str | None) -> None:
    """Then the first one waits for a person."""
    saved = await queue.save(**OVERDUE)
    assert await sweep(queue, max_doubts=max_doubts) == [Swept(saved, "doubt", outcome)]


@pytest.mark.parametrize(
    ("columns", "before", "outcome", "after"),
    [
        # While the job may go on, whoever is to be sent to keeps it going, and the doubted follow on_doubt.
        ({"on_doubt": "'resend'"}, {"a": "marked", "b": "later"}, None, {"a": "later?", "b": "later"}),
        ({"on_doubt": "'hold'"}, {"a": "marked", "b": "later"}, None, {"a": "in_doubt?", "b": "later"}),
        ({"on_doubt": "'assume_sent'"}, {"a": "marked", "b": "later"}, None, {"a": "sent?", "b": "later"}),
        ({"on_doubt": "'resend'"}, {"a": "marked", "b": "sent", "c": "dead"}, None, {"a": "later?", "b": "sent", "c": "dead"}),
        ({"on_doubt": "'hold'"}, {"a": "marked", "b": "sent"}, "in_doubt", {"a": "in_doubt?", "b": "sent"}),
        ({"on_doubt": "'assume_sent'"}, {"a": "marked", "b": "dead"}, "sent", {"a": "sent?", "b": "dead"}),
        ({"on_doubt": "'assume_sent'"}, {"a": "marked", "b": "in_doubt?"}, "in_doubt", {"a": "sent?", "b": "in_doubt?"}),
        # When it may not, nobody remains.
        ({"on_doubt": "'resend'", "expires_at": AGO}, {"a": "marked", "b": "later"}, "in_doubt", {"a": "in_doubt?", "b": "dead"}),
        ({"on_doubt": "'hold'", "crashes": "2"}, {"a": "marked", "b": "later"}, "in_doubt", {"a": "in_doubt?", "b": "dead"}),
        ({"on_doubt": "'assume_sent'", "expires_at": AGO}, {"a": "marked", "b": "later"}, "sent", {"a": "sent?", "b": "dead"}),
        ({"cancel_requested_at": AGO}, {"a": "marked", "b": "later"}, "in_doubt", {"a": "in_doubt?", "b": "dead"}),
        ({"doubts": "1", "expires_at": AGO}, {"a": "marked", "b": "later?"}, "in_doubt", {"a": "in_doubt?", "b": "in_doubt?"}),
        # The budget of doubts is the dot's: the others go on.
        ({"doubts": "2"}, {"a": "marked?", "b": "later"}, None, {"a": "in_doubt?", "b": "later"}),
    ],
)
async def test_each_recipient_follows_from_where_the_mark_left_it(
    queue: Queue, columns: dict[str, str], before: dict[str, str], outcome: str | None, after: dict[str, str]
) -> None:
    """The marked are in doubt, the deferred are tried again if the job may go on, the others keep what they have."""
    saved = await queue.save(**{**OVERDUE, **columns, "recipients": mapped(**before)})
    assert await queue.store.sweep() == [Swept(saved, "doubt", outcome)]
    names = {"a": ANN, "b": BOB, "c": CLEO}
    assert await queue.verdicts(saved) == {names[k]: v for k, v in after.items()}
    assert (await queue.row(saved))["assumed"] is (outcome == "sent")


async def test_a_swept_doubt_goes_on_where_the_worker_would_have_sent_it_on(queue: Queue) -> None:
    """Marked by the store, lost, swept, claimed again: the recipients stand as the mark left them."""
    job = await queue.job()
    await queue.mark(job, ANN, recipients={ANN: {"verdict": "marked"}, BOB: {"verdict": "dead", "reply": "550"}})
    await queue.change(job.id, lease_expires_at=AGO)
    await queue.store.sweep()
    (again,) = await queue.claim(suspects=True)
    assert (again.doubts, again.crashes, again.attempt) == (1, 1, 2)
    assert await queue.verdicts(job.id) == {ANN: "later?", BOB: "dead"}


async def test_a_sweep_of_a_job_with_an_assumed_recipient_keeps_the_flag(queue: Queue) -> None:
    """Ann was assumed, Bob expires: whatever the job is called, nobody may take it for accepted."""
    saved = await queue.save(on_doubt="'assume_sent'", doubts="1", expires_at=AGO, recipients=mapped(a="sent?", b="later"))
    (swept,) = await queue.store.sweep()
    assert (swept.outcome, (await queue.row(saved))["assumed"]) in {("in_doubt", False), ("sent", True)}


# ---------------------------------------------------------------- not yet


@pytest.mark.parametrize(
    "columns",
    [
        {},
        HELD,
        MARKED,
        {**LEASED, "lease_expires_at": "now() - interval '659 seconds'", "marked_at": AGO},
        {**OVERDUE, "lease_expires_at": "now() + interval '1 day'"},
        {**HELD, "expires_at": AGO},
        {**HELD, "cancel_requested_at": AGO},
        {**HELD, "attempt": "5", "max_attempts": "5"},
        {"available_at": SOON, "crashes": "2", "doubts": "5"},
        {"completed_at": AGO, "outcome": "'dead'", "expires_at": AGO},
        {**OVERDUE, "completed_at": AGO, "outcome": "'in_doubt'"},
    ],
    ids=["due", "held", "marked", "delay", "ahead", "held-expired", "held-cancel", "held-last", "future", "done", "done-marked"],
)
async def test_what_somebody_still_sees_to_is_left_alone(queue: Queue, columns: dict[str, str]) -> None:
    """A lease that holds is its holder's, whatever else is true; a mark waits until every answer that can come has come."""
    saved = await queue.save(**columns)
    before = await queue.row(saved)
    assert await queue.store.sweep() == []
    assert await queue.store.sweep(queues=["default"]) == []
    assert await queue.row(saved) == before


async def test_a_lease_far_ahead_counts_as_over_when_nothing_is_marked(queue: Queue) -> None:
    """The server's clock has jumped back: otherwise nobody would have the job for as long as the jump."""
    saved = await queue.save(**{**LEASED, "lease_expires_at": "now() + interval '61 seconds'"})
    assert await queue.store.sweep() == [Swept(saved, "orphan", None)]


@pytest.mark.parametrize("columns", [EXPIRED, OVERDUE, {**EXPIRED, "expires_at": AGO}, {**EXPIRED, "crashes": "2"}])
async def test_nobody_is_blamed_within_the_grace(queue: Queue, columns: dict[str, str], shared_database: Database) -> None:
    """Neither while the server is young nor while this worker's link is; what nobody holds is put right meanwhile."""
    saved, expired = await queue.save(**columns), await queue.save(expires_at=AGO)
    before = await queue.row(saved)
    assert await sweep(queue, grace_s=1e9) == [Swept(expired, "expired", "dead")]
    store = await opened(settings_for(shared_database.dsn))
    store._settled_at_mono = float("inf")  # noqa: SLF001  it has just connected
    assert await store.sweep() == []
    store.close()
    assert await queue.row(saved) == before


async def test_the_delay_begins_with_the_end_of_the_lease(queue: Queue) -> None:
    """Not with the mark, which a heartbeat may have outlived by far."""
    saved = await queue.save(**{**LEASED, "lease_expires_at": "now() - interval '100 seconds'", "marked_at": AGO})
    assert await sweep(queue, delay_s=101.0) == []
    assert await sweep(queue, delay_s=99.0) == [Swept(saved, "doubt", None)]


# ---------------------------------------------------------------- how much, and who


async def test_a_sweep_changes_no_more_than_its_limit(queue: Queue) -> None:
    """The rest comes by the next."""
    for _ in range(5):
        await queue.save(**EXPIRED)
    assert [len(await sweep(queue, limit=3)) for _ in range(3)] == [3, 2, 0]


async def test_only_a_full_pass_looks_beyond_the_front(queue: Queue) -> None:
    """Leased rows lie in front; what was written there late is found once a minute."""
    await queue.save(available_at="'2020-01-01Z'")
    saved = await queue.save(**EXPIRED, available_at="'2021-01-01Z'")
    assert await sweep(queue, window=1) == []
    assert await sweep(queue, window=None, full=True) == [Swept(saved, "orphan", None)]


async def test_a_full_pass_takes_the_queues_that_it_is_given(queue: Queue) -> None:
    """Also those that no worker here serves."""
    ours, theirs = await queue.save(**EXPIRED), await queue.save(**EXPIRED, queue="'elsewhere'", priority="3")
    assert await queue.store.sweep() == [Swept(ours, "orphan", None)]
    assert await queue.store.sweep(queues=await queue.store.queues()) == [Swept(theirs, "orphan", None)]


async def test_one_full_pass_at_a_time(queue: Queue, other: asyncpg.Connection) -> None:
    """While one process makes it, another finds nothing; ordinary sweeps go on."""
    first = await queue.save(**EXPIRED)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(statement("sweep"), [], [], None, 1, YES, 0.0, DELAY_S, 3, 2, 30.0, YES, [])
    assert await queue.store.sweep(queues=["default"]) == []
    assert await queue.store.sweep() == [Swept(first, "orphan", None)]
    second = await queue.save(**EXPIRED)
    await transaction.rollback()
    assert await queue.store.sweep(queues=["default"]) == [Swept(second, "orphan", None)]


async def test_a_row_that_its_holder_is_writing_is_passed_over(queue: Queue, other: asyncpg.Connection) -> None:
    """The record that comes in the last moment wins, before and after it is committed; nobody waits for the other."""
    saved = await queue.save(**OVERDUE)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE mailslot.jobs SET completed_at = now(), outcome = 'sent', lease_expires_at = NULL")
    assert await queue.store.sweep() == []
    await transaction.commit()
    assert await queue.store.sweep() == []
    assert (await queue.row(saved))["state"] == "sent"


async def test_a_stale_holder_finds_its_swept_job_lost(queue: Queue) -> None:
    """Its record changes nothing, and its 2xx is kept as evidence beside the crash."""
    job = await queue.job()
    await queue.change(job.id, lease_expires_at=AGO)
    assert await queue.store.sweep() == [Swept(job.id, "orphan", None)]
    before = await queue.row(job.id)
    assert (await queue.conclude(job, Record("sent", "sent", accepted=(ANN,)))).state == "lost"
    assert await queue.row(job.id) == before
    assert [entry["accepted"] for entry in await queue.ledger(job.id)] == [[ANN]]


async def test_sweeping_keeps_evidence_that_came_first(queue: Queue) -> None:
    """A ledger row of the same lease is left as it is."""
    saved = await queue.save(**OVERDUE)
    token = (await queue.row(saved))["lease_token"]
    await queue.connection.execute(
        "INSERT INTO mailslot.attempts (job_id, lease_token, attempt, verdict, accepted) VALUES ($1, $2, 1, 'sent', '{x}')",
        saved,
        token,
    )
    await queue.store.sweep()
    assert [(entry["verdict"], entry["accepted"]) for entry in await queue.ledger(saved)] == [("sent", ["x"])]


async def test_a_swept_job_completes_at_the_servers_clock(queue: Queue) -> None:
    """Stored instants are the server's."""
    saved = await queue.save(expires_at=AGO)
    await queue.store.sweep()
    age = await queue.connection.fetchval("SELECT clock_timestamp() - completed_at FROM mailslot.jobs WHERE id = $1", saved)
    assert timedelta(0) <= age < timedelta(minutes=1)
