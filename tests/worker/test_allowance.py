"""How many jobs a claim may ask for, and who has to wait."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from daemon.allowance import LATE_S, PATIENCE_S, Allowance, Allowances
from daemon.core.rate import NoToken, Permit
from daemon.core.settings import Relay, Tls
from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import decide
from daemon.smtp.relays import Relays
from daemon.store import Closed, Taken, Wish
from tests.worker.fakes import Clock, made, running, turns

GONE = decide(Report("", Stage.TLS, Fault.TLS_FAILED))


class Bench:
    """Relays that never connect, and buckets with what the test puts into them."""

    def __init__(self, *relays: Relay, queues: Sequence[str] = ("default",), mail_only: bool = True, **tokens: int) -> None:
        self.clock = Clock(100.0)
        self.relays = Relays(relays, boottime_s=self.clock, chance=lambda: 0.5)
        self.tokens: dict[str, float] = dict(tokens)
        self.wait_s = 7.0
        self.trip_s = 0.0
        self.asked: list[tuple[str, float]] = []
        self.allowances = Allowances(self.relays, queues, self.take, self.clock, mail_only=mail_only)

    async def take(self, wishes: Sequence[Wish]) -> list[Taken]:
        """Answer as the statement does; a bucket without tokens has one again in 7 s or as set."""
        self.clock.pass_s(self.trip_s)
        self.asked += [(wish.relay, wish.tokens) for wish in wishes]
        found = {wish.relay: max(0, int(min(wish.tokens, self.tokens[wish.relay]))) for wish in wishes}
        for wish in wishes:
            self.tokens[wish.relay] -= found[wish.relay] or min(0, wish.tokens)
        return [Taken(name, taken, 0.0 if self.tokens[name] else self.wait_s) for name, taken in found.items()]

    async def allow(self, wanted: int, *, hope: int = 100) -> Allowance:
        """Ask as a worker does that found so much the last time."""
        await self.allowances.settle(Allowance(0, Closed(), ()), hope)
        return await self.allowances.allow(wanted)


def relay(name: str, **keys: Any) -> Relay:  # noqa: ANN401 - settings
    """Return a relay's settings."""
    return Relay(name=name, host="localhost", tls=Tls.NONE, **keys)


async def test_without_a_rate_nothing_is_asked_and_all_is_allowed() -> None:
    """The usual configuration costs the database nothing."""
    bench = Bench(relay("a"), relay("b"))
    allowed = await bench.allow(10)
    assert (allowed.count, allowed.closed, tuple(allowed.queues), allowed.wait_s) == (10, Closed(), ("default",), None)
    assert allowed.permit(made()) is None
    await bench.allowances.settle(allowed, 3)
    assert bench.asked == []


async def test_no_more_jobs_than_tokens_at_any_open_relay() -> None:
    """Whichever it is that all of them go to; what each of them has is what the others don't use up."""
    bench = Bench(relay("a", rate_per_s=10.0), relay("b", rate_per_s=2.0), a=8, b=3)
    allowed = await bench.allow(10)
    assert allowed.count == 3
    assert [allowed.permit(made()), allowed.permit(made(relay_wanted="b"))] == [Permit("a", 100.5), Permit("b", 100.5)]
    await bench.allowances.settle(allowed, 2)
    assert bench.asked == [("a", 10), ("b", 10), ("a", -7), ("b", -2)]
    assert bench.tokens == {"a": 7, "b": 2}


async def test_a_relay_without_tokens_stops_its_own_queues_alone() -> None:
    """And tells when to come again."""
    bench = Bench(relay("a", rate_per_s=1.0), relay("b"), relay("c", queues=["news"]), queues=("default", "news"), a=0)
    allowed = await bench.allow(10)
    assert (allowed.count, allowed.closed, allowed.wait_s) == (10, Closed(("default",), ("a",)), 7.0)
    assert tuple(allowed.queues) == ("default", "news")  # some of the default queue's may ask for b
    assert allowed.permit(made(relay_wanted="b")) is None


async def test_where_nothing_can_be_claimed_nothing_is_asked_for() -> None:
    """No claim then, unless other kinds of jobs need no relay."""
    for mail_only, expected in ((True, (0, ())), (False, (10, ("default",)))):
        bench = Bench(relay("a", rate_per_s=1.0), mail_only=mail_only, a=0)
        allowed = await bench.allow(10)
        assert (allowed.count, tuple(allowed.queues)) == expected
        assert allowed.closed == Closed(("default",), ("a",))


async def test_a_relay_that_is_away_is_closed_and_its_bucket_left_alone() -> None:
    """The next one takes over, with tokens of its own."""
    bench = Bench(relay("a", rate_per_s=1.0), relay("b", rate_per_s=1.0), a=5, b=5)
    bench.relays.note("a", GONE)
    allowed = await bench.allow(2)
    assert (allowed.count, allowed.closed, allowed.ways) == (2, Closed((), ("a",)), {"default": "b"})
    assert bench.asked == [("b", 2)]
    bench.relays.note("b", GONE)
    allowed = await bench.allow(2)
    assert (allowed.count, allowed.closed, allowed.wait_s) == (0, Closed(("default",), ("a", "b")), None)


async def test_only_mail_needs_a_permit() -> None:
    """A report that is built here sends nothing."""
    bench = Bench(relay("a", rate_per_s=1.0), mail_only=False, a=5)
    allowed = await bench.allow(2)
    assert allowed.permit(made(kind="report.build")) is None
    assert len(allowed.permits["a"]) == 2


async def test_who_found_nothing_asks_for_one_token_and_then_for_ever_more() -> None:
    """So that the idle leave the bucket to the busy."""
    bench = Bench(relay("a", rate_per_s=1.0), a=100)
    asked = []
    for claimed in (0, 1, 2, 4, 0):
        allowed = await bench.allowances.allow(10)
        asked.append(allowed.count)
        for _ in range(claimed):
            allowed.permit(made())
        await bench.allowances.settle(allowed, claimed)
    assert asked == [1, 1, 2, 4, 8]
    assert bench.tokens["a"] == 100 - 7


async def test_a_relay_that_serves_none_of_the_workers_queues_is_left_out() -> None:
    """Its bucket says neither how many jobs may be claimed nor how long to wait."""
    bench = Bench(relay("a"), relay("b", rate_per_s=1.0, queues=["bulk"]), b=0)
    allowed = await bench.allow(10)
    assert (allowed.count, allowed.closed, allowed.wait_s) == (10, Closed(), None)
    assert bench.asked == []


async def test_a_queue_that_no_relay_serves_is_closed_and_waits_for_nothing() -> None:
    """Unlike one whose relay may come back."""
    bench = Bench(relay("a", queues=["news"]), queues=("default",), mail_only=False)
    allowed = await bench.allow(10)
    assert (allowed.count, allowed.closed, allowed.waits) == (10, Closed(("default",)), False)
    bench = Bench(relay("a", queues=["news"]), queues=("default", "news"), mail_only=False)
    bench.relays.note("a", GONE)
    allowed = await bench.allow(10)
    assert (allowed.closed, allowed.waits) == (Closed(("default", "news"), ("a",)), True)


# ---------------------------------------------------------------- permits that have expired


async def test_a_mail_whose_payload_is_still_to_be_fetched_leaves_its_token_in_the_bucket() -> None:
    """It would have expired by the time at which the message is ready; but the relay is known."""
    bench = Bench(relay("a", rate_per_s=1.0), a=1)
    allowed = await bench.allow(1)
    assert allowed.permit(made(payload=None, payload_bytes=10**7)) == Permit("a", -inf)
    await bench.allowances.settle(allowed, 1)
    assert bench.tokens == {"a": 1}
    assert await bench.allowances.renew("a") == Permit("a", 100.5)
    assert bench.tokens == {"a": 0}


async def test_what_flowed_in_meanwhile_is_not_put_back() -> None:
    """A bucket of 5 at 2 a second: after 1 s 3 of 5 unused tokens go back, after 3 s none; a used one stays used."""
    for held_s, used, back in ((0.0, 0, 5.0), (1.0, 0, 3.0), (1.0, 4, 1.0), (2.5, 0, 0.0), (3.0, 0, 0.0)):
        bench = Bench(relay("a", rate_per_s=2.0), a=5)
        allowed = await bench.allow(5)
        for _ in range(used):
            allowed.permit(made())
        bench.clock.pass_s(held_s)
        bench.asked.clear()
        await bench.allowances.settle(allowed, used)
        assert bench.asked == ([("a", -back)] if back else [])


async def test_who_finds_no_token_soon_is_given_back_for_as_long_as_it_takes() -> None:
    """One token is asked for, and no slot waits for long."""
    bench = Bench(relay("a", rate_per_s=1.0), a=0)
    assert await bench.allowances.renew("a") == NoToken("a", 7.0)
    assert bench.asked == [("a", 1)]


async def test_one_at_a_time_waits_for_a_token_that_comes_soon() -> None:
    """Until it has one, for others may be quicker; who comes meanwhile is given back, and who is cancelled waits no more."""
    bench = Bench(relay("a", rate_per_s=1.0), a=0)
    bench.wait_s = PATIENCE_S
    async with running(bench.allowances.renew("a")) as (waits,):
        await turns()
        assert not waits.done()
        assert await bench.allowances.renew("a") == NoToken("a", PATIENCE_S)
    bench.wait_s = 0.0
    async with running(bench.allowances.renew("a")) as (waits,):
        await turns()
        assert not waits.done()
        bench.clock.pass_s(3.0)
        bench.tokens["a"] = 1
        assert await waits == Permit("a", 103.5)


async def test_a_token_that_was_too_long_on_its_way_is_none() -> None:
    """It is counted from when it was asked for; the database is slow, so the job rests."""
    bench = Bench(relay("a", rate_per_s=1.0), a=5)
    bench.trip_s = 0.6
    assert await bench.allowances.renew("a") == NoToken("a", LATE_S)
