"""The heartbeat's statement: held, busy or lost, for each lease by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from daemon.core.job import Job
from daemon.database import statement
from tests.store.queue import AGO, Queue, stranger

LEASE_S = 30.0
CAP_S = 1_200.0


async def extend(queue: Queue, jobs: Sequence[Job], lease_s: float = LEASE_S) -> dict[UUID, str]:
    """Extend as the heartbeat does; returns the states by token."""
    ids, tokens = [job.id for job in jobs], [job.token for job in jobs]
    rows = await queue.connection.fetch(statement("extend"), ids, tokens, lease_s, CAP_S)
    assert len(rows) == len(jobs), "one row a pair"
    return {row["token"]: row["state"] for row in rows}


async def test_every_held_lease_is_extended_from_now(queue: Queue) -> None:
    """Also one that has run out, if nobody has taken it over, and one that is marked."""
    jobs = [await queue.job() for _ in range(3)]
    await queue.change(jobs[1].id, lease_expires_at=AGO)
    await queue.mark(jobs[2])
    assert set((await extend(queue, jobs, 3_600.0)).values()) == {"held"}
    left = await queue.connection.fetch("SELECT lease_expires_at - clock_timestamp() AS left FROM mailslot.jobs")
    assert all(timedelta(minutes=59) < row["left"] <= timedelta(hours=1) for row in left)


async def test_an_extension_never_shortens_a_lease(queue: Queue) -> None:
    """An answer that was sent before may be overtaken by a later one."""
    job = await queue.job()
    await queue.change(job.id, lease_expires_at="'2999-01-01Z'")
    before = await queue.row(job.id)
    assert await extend(queue, [job]) == {job.token: "held"}
    assert (await queue.row(job.id))["lease_expires_at"] == before["lease_expires_at"]


async def test_what_isnt_held_any_more_is_lost_and_unchanged(queue: Queue) -> None:
    """Taken over, finished, given back, unknown: each is told, and the others are extended all the same."""
    held, taken, done, back = [await queue.job() for _ in range(4)]
    taker = await queue.lose(taken)
    await queue.change(done.id, completed_at="now()", outcome="'sent'")
    await queue.change(back.id, lease_token="NULL", lease_expires_at="NULL")
    unknown = replace(held, id=0, token=uuid4())
    before = [await queue.row(job.id) for job in (taken, done, back)]
    states = await extend(queue, [unknown, held, taken, done, back])
    assert states == {
        held.token: "held",
        **dict.fromkeys([taken.token, done.token, back.token, unknown.token], "lost"),
    }
    assert [await queue.row(job.id) for job in (taken, done, back)] == before
    assert (await queue.row(taken.id))["lease_token"] == taker.token


async def test_a_lease_older_than_the_hard_cap_is_lost(queue: Queue) -> None:
    """A slot that hangs for twenty minutes can't keep its job from everybody for ever."""
    young, old = await queue.job(), await queue.job()
    await queue.change(young.id, leased_at="now() - interval '1199 seconds'")
    await queue.change(old.id, leased_at="now() - interval '1201 seconds'")
    before = await queue.row(old.id)
    assert await extend(queue, [young, old]) == {young.token: "held", old.token: "lost"}
    assert await queue.row(old.id) == before


async def test_a_row_that_somebody_has_locked_is_busy_and_holds_up_nobody(queue: Queue, other: asyncpg.Connection) -> None:
    """An application's open transaction that called cancel: that lease isn't lost, and the others are extended at once."""
    first, busy, last = [await queue.job() for _ in range(3)]
    transaction = other.transaction()
    await transaction.start()
    await other.fetchval("SELECT mailslot.cancel($1)", busy.id)
    assert await extend(queue, [first, busy, last]) == {first.token: "held", busy.token: "busy", last.token: "held"}
    await transaction.commit()
    assert await extend(queue, [busy]) == {busy.token: "held"}


@pytest.mark.parametrize("stale_first", [True, False])
async def test_a_stale_token_beside_the_present_one_of_the_same_job_is_lost(queue: Queue, stale_first: bool) -> None:  # noqa: FBT001
    """A process that was stalled may hold a job twice, and must hear which of its leases is real."""
    job = await queue.job()
    stale = stranger(job)
    pair = [stale, job] if stale_first else [job, stale]
    assert await extend(queue, pair) == {stale.token: "lost", job.token: "held"}


async def test_nothing_to_extend_is_answered_with_nothing(queue: Queue) -> None:
    """An empty batch is a batch."""
    assert await extend(queue, []) == {}
