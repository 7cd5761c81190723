"""Until the dot everything may be interrupted, from the dot on nothing; and what forbids the dot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.attempt import MailAttempt
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.job import Job
from daemon.core.message import Message, Unbuildable
from daemon.core.outcome import RELEASED_S, Record, Release, standing
from daemon.core.rate import NoToken, Permit
from daemon.core.settings import Mail, Settings
from daemon.fence import Interrupts, Means, ask_mark, forbidden, instead_of_go
from daemon.slots import DRAINING, LOST, Lease
from daemon.store import Marked, MarkRequest
from tests.worker.fakes import Clock, made, ports, running, turns

ANN, BOB = "ann@example.org", "bob@example.org"


async def waited(lease: Lease, clock: Clock, ends: asyncio.Event) -> str:
    """Wait inside an interruptible block, and say how it ended."""
    block = Interrupts(clock).under(lease)
    try:
        with block:
            await ends.wait()
    except TimeoutError:
        return "interrupted" if block.interrupted else "something else"
    return "finished"


@pytest.mark.parametrize(
    ("cause", "how"),
    [
        (lambda lease: lease.give_up(DRAINING), "interrupted"),
        (lambda lease: lease.give_up(LOST), "interrupted"),
        (lambda lease: lease.expire(1_000.0), "interrupted"),
        (lambda lease: lease.extend(9_000.0), "finished"),
        (lambda lease: lease.expire(8_000.0), "finished"),
    ],
)
async def test_a_waiting_block_is_interrupted_when_its_lease_ends(cause: Any, how: str) -> None:  # noqa: ANN401
    """Given up, lost, or out of time; an extension interrupts nobody."""
    clock, ends = Clock(), asyncio.Event()
    lease = Lease(made(), 5_000.0)
    async with running(waited(lease, clock, ends)) as (block,):
        await turns()
        cause(lease)
        await turns()
        assert block.done() is (how == "interrupted")
        ends.set()
        assert await block == how
    assert lease.rearm is None


@pytest.mark.parametrize("given_up", [None, DRAINING])
async def test_a_block_that_may_not_run_any_more_is_interrupted_at_its_first_wait(given_up: str | None) -> None:
    """The window had ended, or the lease had been given up, before the block began."""
    clock = Clock()
    lease = Lease(made(), 999.0 if given_up is None else 5_000.0)
    if given_up:
        lease.give_up(given_up)
    assert await waited(lease, clock, asyncio.Event()) == "interrupted"


async def test_an_extension_moves_the_timer() -> None:
    """By as much as the window grew, on the loop's own clock."""
    clock, ends = Clock(), asyncio.Event()
    lease = Lease(made(), clock() + 0.05)
    async with running(waited(lease, clock, ends)) as (block,):
        await turns()
        lease.extend(clock() + 50.0)
        clock.pass_s(49.0)
        await asyncio.sleep(0.1)  # the timer of before has rung
        assert not block.done()
        clock.pass_s(1.0)
        lease.expire(clock())
        assert await block == "interrupted"


async def test_one_timer_serves_all_blocks() -> None:
    """Each is interrupted when its own time is over, whoever set the timer."""
    clock = Clock()
    interrupts = Interrupts(clock)
    ended: list[str] = []

    async def block(name: str, ends_mono: float) -> None:
        try:
            with interrupts.under(Lease(made(), ends_mono)):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(name)

    async with running(block("late", clock() + 0.04), block("early", clock() + 0.02), block("later", clock() + 900.0)) as blocks:
        await turns()
        clock.pass_s(0.03)
        await blocks[1]
        assert ended == ["early"]
        clock.pass_s(0.03)
        await blocks[0]
        assert ended == ["early", "late"]
        assert not blocks[2].done()


async def test_who_is_cancelled_by_others_as_well_stays_cancelled() -> None:
    """The drain's end wins over the lease's."""
    clock = Clock()
    lease = Lease(made(), 5_000.0)
    async with running(waited(lease, clock, asyncio.Event())) as (block,):
        await turns()
        block.cancel()
        lease.give_up(LOST)
        with pytest.raises(asyncio.CancelledError):
            await block


async def test_past_the_mark_of_a_function_only_its_budget_interrupts() -> None:
    """Neither a drain, nor a lost lease, nor the end of the trust window; and a hang-up is the end of the budget."""
    clock, ends = Clock(), asyncio.Event()
    lease = Lease(made(), 5_000.0)
    async with running(waited(lease, clock, ends)) as (block,):
        await turns()
        lease.begin(1_600.0)
        lease.give_up(LOST)
        lease.expire(0.0)
        await turns()
        assert not block.done()
        lease.begin(clock())
        assert await block == "interrupted"


async def test_a_time_out_of_the_blocks_own_is_told_apart() -> None:
    """It passes through, and nobody says that the lease ended."""
    block = Interrupts(Clock()).under(Lease(made(), 5_000.0))
    with pytest.raises(TimeoutError), block:
        raise TimeoutError
    assert not block.interrupted


async def test_changes_after_the_block_interrupt_nobody() -> None:
    """The lease goes on without it."""
    lease = Lease(made(), 5_000.0)
    with Interrupts(Clock()).under(lease):
        pass
    lease.give_up(LOST)
    await turns()


@pytest.mark.parametrize(
    ("until_mono", "given_up", "sick", "reason"),
    [
        (1_000.1, None, False, None),
        (1_000.0, None, False, "lease_untrusted"),
        (999.0, None, False, "lease_untrusted"),
        (inf, LOST, False, LOST),
        (inf, DRAINING, True, DRAINING),
        (inf, None, True, "outcomes_unrecordable"),
        (999.0, None, True, "lease_untrusted"),
    ],
)
def test_what_forbids_the_dot(until_mono: float, given_up: str | None, sick: bool, reason: str | None) -> None:  # noqa: FBT001
    """A lease that isn't trusted or wanted any more, or outcomes that can't be recorded; read from the boot clock itself."""
    lease = Lease(made(), until_mono)
    if given_up:
        lease.give_up(given_up)
    assert forbidden(lease, Clock(), sick=sick) == reason


# ---------------------------------------------------------------- the mark


class Bench:
    """Means whose mark is answered by a script."""

    def __init__(self, *script: Marked | Exception) -> None:
        self.clock = Clock()
        self.script = list(script)
        self.asked: list[MarkRequest] = []
        settings = Settings(mail=Mail(from_="team@example.org", max_payload_bytes=100))
        relays: Any = SimpleNamespace()  # nobody gets as far as that
        self.means = Means(
            settings,
            relays,
            Interrupts(self.clock),
            mark=self._mark,
            payload=self._payload,
            compose=self._compose,
            recorder_sick=lambda: False,
            permit=self._permit,
            ports=ports(self.clock),
        )

    async def _mark(self, request: MarkRequest) -> Marked:
        self.asked.append(request)
        answer = self.script.pop(0)
        self.clock.pass_s(2.0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _payload(self, _job: Job) -> str | None:
        return None

    async def _permit(self, relay: str) -> NoToken:
        raise AssertionError(relay)

    async def never(self, _job: Job, _payload: str) -> Message | Unbuildable:
        """Compose for ever."""
        await asyncio.Event().wait()
        raise AssertionError

    async def _compose(self, _job: Job, _payload: str) -> Message | Unbuildable:
        return Unbuildable("no_recipients", "to", "names nobody")


def marked(verdict: str, *, accepted: Sequence[str] = (), expires_in_s: float = 1e6) -> Marked:
    """Return a decision."""
    return Marked(verdict, tuple(accepted), expires_in_s)


@pytest.mark.parametrize(("expires_in_s", "until_mono"), [(1e6, 1_025.0), (10.0, 1_010.0), (-5.0, 995.0)])
async def test_a_go_renews_the_trust_from_before_the_question(expires_in_s: float, until_mono: float) -> None:
    """And never for longer than the job may be sent."""
    bench = Bench(marked("go", expires_in_s=expires_in_s))
    lease = Lease(made(), 1_003.0)
    assert (await ask_mark(lease, bench.means, MarkRequest(lease.job, None, (ANN,)))) == marked("go", expires_in_s=expires_in_s)
    assert lease.until_mono == until_mono
    lease.extend(9_000.0)
    assert lease.until_mono == min(1_000.0 + expires_in_s, 9_000.0)


async def test_a_busy_row_is_asked_for_again_and_each_question_counts_from_its_own_moment() -> None:
    """Somebody's open transaction may be about to cancel."""
    bench = Bench(marked("busy"), marked("busy"), marked("go"))
    lease = Lease(made(), 1_003.0)
    await ask_mark(lease, bench.means, MarkRequest(lease.job, None, (ANN,)))
    assert len(bench.asked) == 3
    assert lease.until_mono == 1_004.0 + 25.0


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("no", "42501")])
async def test_a_question_without_an_answer_is_no_go(error: Exception) -> None:
    """The mark may be there all the same; without a dot it is given back."""
    bench = Bench(error)
    lease = Lease(made(), 1_003.0)
    answer = await ask_mark(lease, bench.means, MarkRequest(lease.job, None, (ANN,)))
    assert isinstance(answer, Release)
    assert answer.reason == "mark_unanswered"
    assert lease.until_mono == 1_003.0


@pytest.mark.parametrize(
    ("decision", "outcome", "reason"),
    [
        (marked("evidence", accepted=[ANN, BOB]), "sent", "evidence"),
        (marked("evidence", accepted=[ANN]), None, "evidence"),
        (marked("cancelled"), "cancelled", "cancelled"),
        (marked("expired"), "dead", "expired"),
    ],
)
def test_what_the_mark_says_instead_of_go_is_the_jobs_conclusion(decision: Marked, outcome: str | None, reason: str) -> None:
    """Evidence for all, evidence for some, cancelled, expired."""
    lease = Lease(made(), 1_003.0)
    record = instead_of_go(lease, standing(lease.job, [ANN, BOB]), decision)
    assert isinstance(record, Record)
    assert (record.outcome, record.reason) == (outcome, reason)


def test_a_lost_mark_hands_back_what_isnt_ours_any_more() -> None:
    """The fence makes that a no-op; a go is no conclusion, and what was released stays so."""
    lease = Lease(made(), 1_003.0)
    entries = standing(lease.job, [ANN])
    lost = instead_of_go(lease, entries, marked("lost"))
    assert isinstance(lost, Release)
    assert lost.reason == LOST
    assert instead_of_go(lease, entries, marked("go")) is None
    assert instead_of_go(lease, entries, Release("mark_unanswered")) == Release("mark_unanswered")


# ---------------------------------------------------------------- what ends before any relay is asked

HALF = '{"ann@example.org": {"verdict": "sent"}, "bob@example.org": {"verdict": "later"}}'


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"payload": None, "payload_bytes": 101}, "payload_too_large"), ({}, "no_recipients")],
)
@pytest.mark.parametrize(("recipients", "outcome"), [(None, "dead"), (HALF, "sent")])
async def test_a_job_that_can_not_be_built_ends_without_forgetting_who_has_it(
    changes: dict[str, Any], reason: str, recipients: str | None, outcome: str
) -> None:
    """A new limit or a new release refuses what an older one sent in part: Ann has it, so the job isn't dead."""
    lease = Lease(made(recipients=recipients, **changes), 5_000.0)
    record = await MailAttempt(Bench().means)(lease)
    assert isinstance(record, Record)
    assert record.outcome == outcome
    if recipients is None:
        assert (record.reason, record.recipients) == (reason, None)
    else:
        assert record.recipients is not None
        assert standing(made(recipients=record.recipients), [ANN])[ANN].verdict == "sent"


async def test_a_job_whose_payload_is_gone_with_the_lease_is_handed_back() -> None:
    """It was too large to travel with the claim, and somebody else has the job by now."""
    lease = Lease(made(payload=None, payload_bytes=99), 5_000.0)
    assert await MailAttempt(Bench().means)(lease) == Release(LOST)


async def test_a_job_whose_lease_has_ended_is_handed_back_before_anything_else() -> None:
    """Composing is work of this job's too."""
    clock_is_past = Lease(made(), 999.0)
    bench = Bench()
    bench.means = replace(bench.means, compose=bench.never)
    release = await MailAttempt(bench.means)(clock_is_past)
    assert isinstance(release, Release)
    assert release.reason == "lease_untrusted"


# ---------------------------------------------------------------- the permit


@pytest.mark.parametrize(
    ("answer", "kept", "wait_s"),
    [
        (Permit("slow", 1_009.0), Permit("slow", 1_009.0), 3.0),
        (NoToken("slow", 7.0), Permit("slow", 0.0), 7.0),
        (StoreUnavailable("away"), Permit("slow", 0.0), RELEASED_S),
    ],
    ids=["renewed", "none left", "no answer"],
)
async def test_a_renewed_permit_is_the_leases_and_without_one_the_job_goes_back(
    answer: Permit | NoToken | Exception, kept: Permit, wait_s: float
) -> None:
    """A fresh connection after one that had aged needs no second token."""
    bench = Bench()
    lease = Lease(made(), 1_025.0, Permit("slow", 0.0))

    async def permit(_relay: str) -> Permit | NoToken:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def compose(_job: Job, _payload: str) -> Message:
        return Message(
            "team@example.org", (ANN,), b"", "<1@example.org>", needs_smtputf8=False, subject="", from_domain="example.org"
        )

    async def check_out(_queue: str, _wanted: str | None, given: Permit, renew: Any, *, fresh: bool) -> NoToken:  # noqa: ANN401
        assert (given, fresh) == (Permit("slow", 0.0), False)
        found = await renew("slow")
        return found if isinstance(found, NoToken) else NoToken("slow", 3.0)

    relays: Any = SimpleNamespace(check_out=check_out)
    attempt = MailAttempt(replace(bench.means, relays=relays, compose=compose, permit=permit))
    assert await attempt(lease) == Release("no_token", wait_s, "slow")
    assert lease.permit == kept
