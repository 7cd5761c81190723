"""The claim: who gets which jobs, in which order, and who is left alone."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from daemon.core.errors import StoreUnavailable
from daemon.core.outcome import Record, Release
from daemon.database import statement
from daemon.store import INLINE_BYTES, PRIORITIES, Closed, Level
from tests.store.queue import AGO, EXPIRED, HELD, MARKED, OVERDUE, SOON, Queue, opened, settings_for, stranger
from tests.support.database import Database

AHEAD = {"lease_expires_at": "now() + interval '3 minutes'"}
"""A lease longer than anybody was ever given: the server's clock has jumped back."""


def at(seconds_ago: int) -> dict[str, str]:
    """Return an available_at in the past."""
    return {"available_at": f"now() - interval '{seconds_ago} seconds'"}


# ---------------------------------------------------------------- which, and in which order


async def test_the_urgent_come_first_and_then_those_who_wait_longest(queue: Queue) -> None:
    """Priority, then available_at, then id."""
    late = await queue.save(priority="1", **at(10))
    bulk = await queue.save(priority="3", **at(900))
    early = await queue.save(priority="1", **at(500))
    urgent = await queue.save(priority="0", **at(1))
    same = [await queue.save(priority="2", available_at="'2025-01-01Z'") for _ in range(3)]
    assert [job.id for job in await queue.claim()] == [urgent, early, late, *same, bulk]


async def test_levels_are_served_in_the_order_in_which_they_are_asked_for(queue: Queue) -> None:
    """The caller takes turns among its queues; a queue that isn't asked for isn't served."""
    first, second, _ = [await queue.save(queue=f"'{name}'") for name in ("a", "b", "c")]
    assert [job.id for job in await queue.claim(levels=[Level("b", 1), Level("a", 1)])] == [second, first]


async def test_a_claim_takes_no_more_jobs_than_slots_wait(queue: Queue) -> None:
    """Three tokens, three jobs, of two levels together; each job has a token of its own."""
    for priority in ("0", "0", "1", "1", "1"):
        await queue.save(priority=priority)
    tokens = [uuid4() for _ in range(3)]
    jobs = await queue.store.claim([Level("default", 0), Level("default", 1)], tokens, suspects=False)
    assert [job.token for job in jobs] == tokens
    assert await queue.connection.fetchval("SELECT count(*) FROM mailslot.jobs WHERE lease_token IS NOT NULL") == 3


NAIVE = """
UPDATE mailslot.jobs SET lease_token = gen_random_uuid(), lease_expires_at = now()
WHERE id IN (SELECT id FROM mailslot.jobs WHERE completed_at IS NULL AND lease_token IS NULL LIMIT 2 FOR UPDATE SKIP LOCKED)
"""
NESTED_LOOP = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_hashagg": "off",
    "enable_sort": "off",
    "enable_material": "off",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
}


async def test_a_forced_nested_loop_doesnt_make_the_claim_take_more(queue: Queue, other: asyncpg.Connection) -> None:
    """The planner may join as it likes: the jobs are chosen once.

    The second half shows what this guards against. The naive form runs its subquery again for each row of the outer table, and
    SKIP LOCKED finds other rows each time, so LIMIT 2 takes them all.
    """
    ids = [await queue.save(**at(seconds)) for seconds in range(1, 11)]
    for name, value in NESTED_LOOP.items():
        await other.execute(f"SET {name} = {value}")
    levels = [Level("default", priority) for priority in PRIORITIES]
    claimed = await other.fetch(
        statement("claim"),
        [level.queue for level in levels],
        [level.priority for level in levels],
        [level.after_at for level in levels],
        [0] * 4,
        *(2, [uuid4(), uuid4()], "me", 30.0, True, 0.0, False, [], 1_000, 3, [], [None] * 4),
    )
    changed = await other.fetchval("SELECT count(*) FROM mailslot.jobs WHERE lease_token IS NOT NULL")
    assert ([row["id"] for row in claimed], changed) == ([ids[9], ids[8]], 2), "in order, though no index gives it"
    await other.execute("UPDATE mailslot.jobs SET lease_token = NULL, lease_expires_at = NULL")
    assert await other.execute(NAIVE) != "UPDATE 2"


async def test_two_claims_at_the_same_moment_share_nothing(queue: Queue, other: asyncpg.Connection) -> None:
    """What another worker's open claim has locked is passed over, not waited for."""
    ids = [await queue.save() for _ in range(4)]
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM mailslot.jobs WHERE id = ANY ($1::bigint[]) FOR UPDATE", ids[:2])
    assert [job.id for job in await queue.claim()] == ids[2:]
    await transaction.rollback()
    assert [job.id for job in await queue.claim()] == ids[:2]


async def test_a_paused_queue_is_left_alone_until_it_goes_on(queue: Queue) -> None:
    """Another queue is served meanwhile; a queue that is known and not paused is like any other."""
    paused, open_ = await queue.save(queue="'newsletter'"), await queue.save(queue="'default'")
    await queue.connection.execute("INSERT INTO mailslot.queues VALUES ('newsletter', true), ('default', false)")
    levels = [Level("newsletter", 1), Level("default", 1)]
    assert [job.id for job in await queue.claim(levels=levels)] == [open_]
    await queue.connection.execute("UPDATE mailslot.queues SET paused = false")
    assert [job.id for job in await queue.claim(levels=levels)] == [paused]


async def test_a_kind_whose_means_are_away_is_left_alone(queue: Queue) -> None:
    """Without a usable relay mail waits; what needs none goes on."""
    await queue.save(kind="'email'")
    report = await queue.save(kind="'report.build'")
    assert [job.id for job in await queue.claim(closed=Closed(queues=("other", "default")))] == [report]


async def test_mail_that_asks_for_a_relay_goes_by_that_relay_alone(queue: Queue) -> None:
    """Closed is what it asks for, or else its queue; the job says what it asks for."""
    anywhere, away, there = [await queue.save(relay_wanted=wanted) for wanted in ("NULL", "'away'", "'there'")]
    assert [j.id for j in await queue.claim(closed=Closed(queues=("default",), relays=("away", "x")))] == [there]
    assert [(j.id, j.relay_wanted) for j in await queue.claim(closed=Closed(relays=("away",)))] == [(anywhere, None)]
    assert [(j.id, j.relay_wanted) for j in await queue.claim(closed=Closed(queues=("default",)))] == [(away, "away")]


@pytest.mark.parametrize(
    "columns",
    [
        {"available_at": SOON},
        {"expires_at": AGO},
        {"cancel_requested_at": AGO},
        {"attempt": "5", "max_attempts": "5"},
        {"completed_at": AGO, "outcome": "'sent'"},
        HELD,
        MARKED,
        OVERDUE,
        {**OVERDUE, **AHEAD},
        {**EXPIRED, "expires_at": AGO},
        {**EXPIRED, "cancel_requested_at": AGO},
    ],
    ids=[
        "future",
        "expired",
        "cancel",
        "used-up",
        "done",
        "held",
        "marked",
        "overdue",
        "marked-ahead",
        "lost-expired",
        "lost-cancel",
    ],
)
@pytest.mark.parametrize("suspects", [False, True])
async def test_what_isnt_due_is_never_claimed(queue: Queue, columns: dict[str, str], suspects: bool) -> None:  # noqa: FBT001
    """Not yet, not any more, not twice, and never while a dot may be on its way."""
    saved = await queue.save(**columns, crashes=str(int(suspects)))
    before = await queue.row(saved)
    assert await queue.claim(suspects=suspects) == []
    assert await queue.row(saved) == before
    assert await queue.ledger(saved) == []


@pytest.mark.parametrize("columns", [OVERDUE, HELD, {"cancel_requested_at": AGO}, {"expires_at": AGO}, {"crashes": "1"}])
async def test_what_is_passed_by_takes_nobodys_place(queue: Queue, columns: dict[str, str]) -> None:
    """One slot, and the first in the row can't be claimed: the slot gets the second."""
    await queue.save(**columns, available_at="'2025-01-01Z'")
    ready = await queue.save()
    assert [job.id for job in await queue.claim(1)] == [ready]


# ---------------------------------------------------------------- what the claimed row says


async def test_a_claim_grants_a_lease_and_counts_the_attempt(queue: Queue) -> None:
    """Token, owner, start and end of the lease are written; the job says what the row says."""
    saved = await queue.save(
        {"to": ["ann@example.org"], "n": 1}, attempt="2", doubts="1", traceparent="'00-" + "a" * 32 + "-" + "b" * 16 + "-01'"
    )
    (job,) = await queue.claim()
    row = await queue.row(saved)
    assert (row["state"], row["lease_token"], row["lease_owner"], row["attempt"]) == ("leased", job.token, "me", 3)
    assert row["lease_expires_at"] - row["leased_at"] - timedelta(seconds=30) < timedelta(seconds=1)
    for name in ("uid", "queue", "kind", "priority", "attempt", "max_attempts", "crashes", "doubts", "on_doubt", "traceparent"):
        assert getattr(job, name) == row[name]
    for name in ("created_at", "available_at", "expires_at"):
        assert getattr(job, name) == row[name]
    assert (job.payload, job.payload_bytes, job.taken_over) == ('{"n": 1, "to": ["ann@example.org"]}', 35, False)


async def test_a_payload_that_is_too_large_stays_behind(queue: Queue) -> None:
    """The job comes with its size alone; its neighbour is unharmed, and exactly the limit is not too large."""
    frame = len('{"text": ""}')
    await queue.save({"text": "x" * (INLINE_BYTES - frame + 1)})
    await queue.save({"text": "x" * (INLINE_BYTES - frame)})
    large, fits = await queue.claim()
    assert (large.payload, large.payload_bytes) == (None, INLINE_BYTES + 1)
    assert fits.payload is not None
    assert len(fits.payload) == fits.payload_bytes == INLINE_BYTES


async def test_a_payload_that_stayed_behind_is_handed_to_its_holder_alone(queue: Queue) -> None:
    """Fetched by token; a stranger, a loser and whoever has finished get nothing."""
    job = await queue.job()
    assert await queue.store.payload(job) == job.payload
    assert await queue.store.payload(stranger(job)) is None
    taken = await queue.lose(job)
    assert await queue.store.payload(job) is None
    await queue.conclude(taken, Record("sent", "sent"))
    assert await queue.store.payload(taken) is None


async def test_verdicts_of_earlier_attempts_come_with_the_job(queue: Queue) -> None:
    """As JSON text, or None."""
    await queue.save(recipients="""'{"ann@example.org": {"verdict": "sent"}}'""")
    await queue.save()
    assert [job.recipients for job in await queue.claim()] == ['{"ann@example.org": {"verdict": "sent"}}', None]


# ---------------------------------------------------------------- taking over


@pytest.mark.parametrize("lease", [{}, AHEAD], ids=["expired", "ahead"])
async def test_a_lost_lease_is_taken_over_with_one_crash_and_no_attempt_more(queue: Queue, lease: dict[str, str]) -> None:
    """The ledger says whose lease it was; a lease further ahead than two leases is a jump of the clock and counts as expired."""
    saved = await queue.save(**{**EXPIRED, **lease, "attempt": "3"})
    before = await queue.row(saved)
    (job,) = await queue.claim()
    row = await queue.row(saved)
    assert (job.taken_over, job.attempt, job.crashes) == (True, 3, 1)
    assert (row["attempt"], row["crashes"], row["lease_token"], row["lease_owner"]) == (3, 1, job.token, "me")
    (lost,) = await queue.ledger(saved)
    assert (lost["lease_token"], lost["owner"], lost["verdict"]) == (before["lease_token"], "gone", "worker_lost")
    assert (lost["attempt"], lost["leased_at"], lost["accepted"]) == (3, before["leased_at"], None)


async def test_a_job_on_its_last_attempt_is_taken_over_all_the_same(queue: Queue) -> None:
    """The attempt was begun and says nothing about the message."""
    await queue.save(**{**EXPIRED, "attempt": "5", "max_attempts": "5"})
    (job,) = await queue.claim()
    assert (job.attempt, job.taken_over) == (5, True)


async def test_a_lease_of_less_than_twice_its_length_is_somebodys(queue: Queue) -> None:
    """What an extension can have granted is believed."""
    await queue.save(**{**HELD, "lease_expires_at": "now() + interval '58 seconds'"})
    assert await queue.claim() == []


async def test_a_job_that_would_crash_too_often_is_left_to_the_sweep(queue: Queue) -> None:
    """The claim never gives a job up, nor gives it another chance."""
    await queue.save(**{**EXPIRED, "crashes": "2"})
    assert await queue.claim(suspects=True) == []


async def test_nobody_is_taken_over_while_the_server_is_young(queue: Queue, shared_database: Database) -> None:
    """Right after a restart all leases look abandoned, for their holders are still reconnecting; what nobody held is claimed."""
    lost, ready = await queue.save(**EXPIRED), await queue.save()
    store = await opened(settings_for(shared_database.dsn, grace_s=1e9))
    store._settled_at_mono = 0.0  # noqa: SLF001  this worker has been connected for ever
    assert store.may_take_over
    jobs = await store.claim([Level("default", 1)], [uuid4(), uuid4()], suspects=False)
    store.close()
    assert [job.id for job in jobs] == [ready]
    assert (await queue.row(lost))["lease_owner"] == "gone"


async def test_nobody_is_taken_over_by_a_worker_that_has_only_just_connected(queue: Queue, shared_database: Database) -> None:
    """The first connection counts, and every trouble since begins the grace anew."""
    lost, ready = await queue.save(**EXPIRED), await queue.save()
    now_mono = 1_000.0
    store = await opened(settings_for(shared_database.dsn, grace_s=0.0))
    store._ports = type(store._ports)(boottime_s=lambda: now_mono)  # noqa: SLF001
    store._settled_at_mono = now_mono + 10.0  # noqa: SLF001
    assert not store.may_take_over
    jobs = await store.claim([Level("default", 1)], [uuid4(), uuid4()], suspects=False)
    store.close()
    assert [job.id for job in jobs] == [ready]
    assert (await queue.row(lost))["lease_owner"] == "gone"


async def test_trouble_begins_the_grace_anew(queue: Queue, shared_database: Database) -> None:
    """A worker whose link broke waits as long as one that has just started."""
    clock = [100.0]
    store = await opened(settings_for(shared_database.dsn, grace_s=10.0))
    store._ports = type(store._ports)(boottime_s=lambda: clock[0])  # noqa: SLF001
    store.trouble()
    may = []
    for clock[0] in (109.9, 110.0):
        may.append(store.may_take_over)
    assert may == [False, True]
    await queue.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'mailslot me' AND datname = current_database()"
    )
    store.close()
    with pytest.raises(StoreUnavailable):
        await store.queues()
    assert not store.may_take_over


# ---------------------------------------------------------------- suspects


async def test_a_suspect_is_passed_by_and_claimed_only_when_asked_for(queue: Queue) -> None:
    """Whoever has lost a worker before doesn't run beside others."""
    suspect, ready = await queue.save(crashes="1", priority="0"), await queue.save()
    assert [job.id for job in await queue.claim()] == [ready]
    await queue.save()
    assert [(job.id, job.crashes) for job in await queue.claim(suspects=True)] == [(suspect, 1)]


async def test_a_suspect_that_is_lost_again_is_taken_over_as_a_suspect(queue: Queue) -> None:
    """The ordinary claim still passes it by."""
    await queue.save(**{**EXPIRED, "crashes": "1"})
    assert await queue.claim() == []
    (job,) = await queue.claim(suspects=True)
    assert (job.crashes, job.taken_over) == (2, True)


# ---------------------------------------------------------------- cursors


async def test_a_cursor_skips_what_lies_before_it_and_nothing_else(queue: Queue) -> None:
    """By available_at and then by id, in its own level only."""
    ids = [await queue.save(available_at="'2025-01-01Z'") for _ in range(3)]
    later = await queue.save(available_at="'2025-01-02Z'")
    bulk = await queue.save(priority="3", available_at="'2024-01-01Z'")
    when = (await queue.row(ids[1]))["available_at"]
    levels = [Level("default", 1, when, ids[1]), Level("default", 3)]
    assert [job.id for job in await queue.claim(levels=levels)] == [ids[2], later, bulk]
    assert [job.id for job in await queue.claim()] == ids[:2]


# ---------------------------------------------------------------- giving a claim back


async def levels_of(queue: Queue, *jobs: int) -> list[Level]:
    """Return levels that begin after the given job."""
    rows = [await queue.row(job_id) for job_id in jobs]
    return [Level(row["queue"], row["priority"], row["available_at"], row["id"]) for row in rows]


async def test_an_abandoned_claim_gives_the_jobs_and_their_attempts_back(queue: Queue) -> None:
    """By token alone: the answer with the ids never came."""
    ids = [await queue.save(priority=priority) for priority in ("0", "2", "2")]
    tokens = [uuid4() for _ in range(5)]
    levels = [Level("default", priority) for priority in PRIORITIES]
    assert len(await queue.store.claim(levels, tokens, suspects=False)) == 3
    assert await queue.store.abandon(levels, tokens) == 3
    for row in [await queue.row(job_id) for job_id in ids]:
        assert (row["state"], row["attempt"], row["crashes"], row["lease_owner"], row["leased_at"]) == ("ready", 0, 0, None, None)
    assert [job.id for job in await queue.claim()] == ids


async def test_abandoning_leaves_everybody_elses_jobs_alone(queue: Queue) -> None:
    """Other tokens, marked jobs and finished jobs are not given back, and a claim that never happened gives nothing."""
    other, marked, done = await queue.save(**HELD), await queue.save(**MARKED), await queue.save(**HELD)
    await queue.change(done, completed_at="now()", outcome="'sent'")
    tokens = [(await queue.row(job_id))["lease_token"] for job_id in (marked, done)]
    before = [await queue.row(job_id) for job_id in (other, marked, done)]
    assert await queue.store.abandon([Level("default", 1)], [*tokens, uuid4()]) == 0
    assert [await queue.row(job_id) for job_id in (other, marked, done)] == before


async def test_abandoning_begins_where_the_claim_began(queue: Queue) -> None:
    """The cursor that the claim had is the cursor that finds its jobs."""
    first = await queue.save()
    (level,) = await levels_of(queue, first)
    second = await queue.save()
    tokens = [uuid4()]
    (job,) = await queue.store.claim([level], tokens, suspects=False)
    assert job.id == second
    assert await queue.store.abandon([level], tokens) == 1


async def test_an_abandoned_takeover_keeps_the_crash_and_gives_the_attempt_back(queue: Queue) -> None:
    """The first holder is gone in any case; its attempt said nothing."""
    saved = await queue.save(**EXPIRED)
    (job,) = await queue.claim()
    assert await queue.store.abandon([Level("default", 1)], [job.token]) == 1
    row = await queue.row(saved)
    assert (row["state"], row["attempt"], row["crashes"]) == ("ready", 0, 1)


@pytest.mark.parametrize(
    ("columns", "outcome"),
    [({}, "cancelled"), ({"doubts": "1"}, "in_doubt"), ({"recipients": """'{"a": {"verdict": "sent"}}'"""}, "sent")],
)
async def test_an_abandoned_job_that_was_cancelled_meanwhile_ends(queue: Queue, columns: dict[str, str], outcome: str) -> None:
    """As cancelled, unless somebody may have it."""
    job = await queue.job(**columns)
    assert await queue.connection.fetchval("SELECT mailslot.cancel($1)", job.id) == "cancel_requested"
    assert await queue.store.abandon([Level("default", 1)], [job.token]) == 1
    row = await queue.row(job.id)
    assert (row["outcome"], row["reason"]) == (outcome, "cancelled")
    assert row["completed_at"] is not None


async def test_abandoning_passes_over_a_row_that_an_application_has_locked(queue: Queue, other: asyncpg.Connection) -> None:
    """An open transaction that called cancel holds up nobody; its job comes back by the next try."""
    first, second = await queue.save(), await queue.save()
    jobs = await queue.claim()
    tokens = [job.token for job in jobs]
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT mailslot.cancel($1)", first)
    assert await queue.store.abandon([Level("default", 1)], tokens) == 1
    assert (await queue.row(second))["state"] == "ready"
    await transaction.commit()
    assert await queue.store.abandon([Level("default", 1)], tokens) == 1
    assert (await queue.row(first))["state"] == "cancelled"


# ---------------------------------------------------------------- who is there at all


async def test_each_queue_with_an_unfinished_job_is_found_once(queue: Queue) -> None:
    """In order; a queue whose jobs are all finished isn't there."""
    for name in ("b", "a", "b", "c:x"):
        await queue.save(queue=f"'{name}'")
    await queue.save(queue="'done'", completed_at=AGO, outcome="'sent'")
    assert await queue.store.queues() == ["a", "b", "c:x"]


async def test_no_queue_is_found_in_an_empty_table(queue: Queue) -> None:
    """Nothing unfinished, nothing to look at."""
    assert await queue.store.queues() == []


@pytest.mark.parametrize(
    ("columns", "due"),
    [
        ({"crashes": "1"}, True),
        ({"crashes": "0"}, False),
        ({"crashes": "3"}, False),
        ({"crashes": "1", "available_at": SOON}, False),
        ({"crashes": "1", "expires_at": AGO}, False),
        ({"crashes": "1", **HELD}, False),
        ({"crashes": "1", "queue": "'elsewhere'"}, False),
        ({"crashes": "1", "completed_at": AGO, "outcome": "'sent'"}, False),
    ],
)
async def test_a_suspect_is_due_only_when_it_could_be_claimed(queue: Queue, columns: dict[str, str], due: bool) -> None:  # noqa: FBT001
    """Slots are let run dry for it, so it had better be there."""
    await queue.save(**columns)
    assert (await queue.store.front()).suspect_is_due is due


async def test_a_suspect_in_a_paused_queue_isnt_due(queue: Queue) -> None:
    """Nobody may claim it, so nobody waits for it."""
    await queue.save(crashes="1")
    await queue.connection.execute("INSERT INTO mailslot.queues VALUES ('default', true)")
    assert (await queue.store.front()).suspect_is_due is False


async def test_a_released_job_is_due_again_at_its_old_place(queue: Queue) -> None:
    """Nobody who came later overtakes it."""
    first = await queue.save()
    (job,) = await queue.claim()
    second = await queue.save()
    await queue.conclude(job, Release("draining"))
    assert [found.id for found in await queue.claim()] == [first, second]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"relay_wanted": "'away'"}, True),
        ({"relay_wanted": "'away'", "available_at": "now() + interval '20 s'"}, True),
        ({"relay_wanted": "'away'", "available_at": "now() + interval '1 hour'"}, False),
        ({"relay_wanted": "'away'", "kind": "'report.build'"}, False),
        ({"relay_wanted": "'away'", "queue": "'other'"}, False),
        ({"relay_wanted": "'there'"}, False),
        ({}, False),
    ],
    ids=["due", "soon", "later", "no mail", "not ours", "another relay", "any relay"],
)
async def test_mail_that_waits_for_a_relay_by_name_is_found(queue: Queue, columns: dict[str, str], expected: bool) -> None:  # noqa: FBT001
    """It is what a claim leaves alone while that relay is away, or will in a moment."""
    await queue.save(**columns)
    assert await queue.store.asked_for(["away", "gone"], within_s=30.0) is expected
    if expected:
        await queue.connection.execute("UPDATE mailslot.jobs SET cancel_requested_at = now()")
        assert await queue.store.asked_for(["away", "gone"], within_s=30.0) is False
