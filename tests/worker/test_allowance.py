"""How many jobs a claim may ask for, and who has to wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daemon.allowance import Allowance, Allowances
from daemon.core.rate import Permit
from daemon.core.settings import Relay, Tls
from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import decide
from daemon.smtp.relays import Relays
from daemon.store import Closed, Taken, Wish
from tests.worker.fakes import made

GONE = decide(Report("", Stage.TLS, Fault.TLS_FAILED))


class Bench:
    """Relays that never connect, and buckets with what the test puts into them."""

    def __init__(self, *relays: Relay, queues: Sequence[str] = ("default",), mail_only: bool = True, **tokens: int) -> None:
        self.relays = Relays(relays, boottime_s=lambda: 100.0, chance=lambda: 0.5)
        self.tokens = tokens
        self.asked: list[tuple[str, int]] = []
        self.allowances = Allowances(self.relays, queues, self.take, lambda: 100.0, mail_only=mail_only)

    async def take(self, wishes: Sequence[Wish]) -> list[Taken]:
        """Answer as the statement does; a bucket without tokens has one again in 7 s."""
        self.asked += [(wish.relay, wish.tokens) for wish in wishes]
        found = {wish.relay: max(0, min(wish.tokens, self.tokens[wish.relay])) for wish in wishes}
        for wish in wishes:
            self.tokens[wish.relay] -= found[wish.relay] or min(0, wish.tokens)
        return [Taken(name, taken, 0.0 if self.tokens[name] else 7.0) for name, taken in found.items()]

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
    assert (allowed.count, allowed.closed, allowed.queues, allowed.wait_s) == (10, Closed(), ("default",), None)
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
    assert allowed.queues == ("default", "news")  # some of the default queue's may ask for b
    assert allowed.permit(made(relay_wanted="b")) is None


async def test_where_nothing_can_be_claimed_nothing_is_asked_for() -> None:
    """No claim then, unless other kinds of jobs need no relay."""
    for mail_only, expected in ((True, (0, ())), (False, (10, ("default",)))):
        bench = Bench(relay("a", rate_per_s=1.0), mail_only=mail_only, a=0)
        allowed = await bench.allow(10)
        assert (allowed.count, allowed.queues) == expected
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
