"""Which relay for whom, how many connections at once, and who is turned away."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.core.rate import NoToken, Permit
from daemon.core.rules import table
from daemon.core.settings import Retry, Rule, RuleVerdict
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import decide
from daemon.smtp import Connection, Relays
from tests.smtp.test_relays import LOGIN, NEVER_S, relay_at, relays_of, taken
from tests.support.relay import ScriptedRelay


async def test_password_changed_under_full_load_costs_one_log_in() -> None:
    """Where there is a log-in, connections are opened one after the other: the first that fails speaks for all who wait."""
    auth = ["235 ok", "235 ok", "535 5.7.8 no"]
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"], "auth": auth}) as server:
        relays = relays_of(relay_at(server, connections=20, **LOGIN))
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(relays.check_out()) for _ in range(20)]
        found = [job.result() for job in jobs]
        assert sum(isinstance(each, Connection) for each in found) == 2
        assert server.log_ins == 3
        assert not relays.usable
        for each in found:
            if isinstance(each, Connection):
                relays.check_in(each)


async def test_who_waits_for_a_turn_to_open_takes_what_comes_back() -> None:
    """A relay that is slow to greet holds up one job and not all of them."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"]}) as server:
        relays = relays_of(relay_at(server, **LOGIN))
        first = await taken(relays)
        server.hold("greeting")
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(relays.check_out())
            await server.events.wait(2, "connection")
            waiting = tasks.create_task(relays.check_out())
            await asyncio.sleep(0)
            relays.check_in(first)
            assert await waiting is first
            assert not opening.done()
            server.release("greeting")
        for connection in (first, opening.result()):
            assert isinstance(connection, Connection)
            relays.check_in(connection)
        relays.close()


@pytest.mark.parametrize(
    "refusal", [{"greeting": "421 4.7.0 busy"}, {"auth": "432 4.3.2 Concurrent connections limit exceeded."}], ids=["421", "432"]
)
async def test_relay_that_takes_no_further_connection_is_not_away(refusal: dict[str, str]) -> None:
    """It keeps those that it has; one more that is turned away only makes us fewer."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"], "connections": [{}, {}, {}, {}, refusal]}) as server:
        relays = relays_of(relay_at(server, connections=10, **LOGIN))
        connections = [await taken(relays) for _ in range(4)]
        with capture_logs() as logs:
            refused = await relays.check_out()
        assert isinstance(refused, Report)
        assert [(entry["event"], entry["connections"]) for entry in logs] == [("relay.slowed", 2)]
        assert relays.usable
        for connection in connections:
            relays.check_in(connection)
        relays.close()


async def test_busy_relay_without_any_connection_of_ours_is_away() -> None:
    """Then it is left alone until it takes one."""
    async with ScriptedRelay({"greeting": "421 4.7.0 busy"}) as server:
        relays = relays_of(relay_at(server, probe_first_s=NEVER_S, probe_max_s=NEVER_S))
        assert isinstance(await relays.check_out(), Report)
        assert not relays.usable


async def test_queue_that_relays_name_uses_those_and_no_other() -> None:
    """The others use what is left; a job that asks for a relay gets that one or none."""
    async with ScriptedRelay() as server:
        relays = relays_of(
            relay_at(server, "first"), relay_at(server, "bulk", queues=["news", "ads"]), relay_at(server, "second"),
            relay_at(server, "ads", queues=["ads"]),
        )  # fmt: skip
        assert (relays.serving("default"), relays.way("default")) == (frozenset({"first", "second"}), "first")
        assert (relays.serving("news"), relays.way("news")) == (frozenset({"bulk"}), "bulk")
        assert (relays.serving("ads"), relays.way("ads")) == (frozenset({"bulk", "ads"}), "bulk")
        for queue, wanted, expected in (
            ("default", None, "first"),
            ("default", "second", "second"),
            ("news", None, "bulk"),
            ("ads", "ads", "ads"),
        ):
            connection = await relays.check_out(queue, wanted)
            assert isinstance(connection, Connection)
            assert connection.relay == expected
            relays.check_in(connection)
        assert await relays.check_out("news", "first") == Report("", Stage.CONNECT, Fault.UNREACHABLE)
        relays.note("bulk", decide(Report("bulk", Stage.AUTH, Reply(535, None, "no"))))
        assert (relays.way("ads"), relays.way("news"), relays.usable_names) == (
            "ads",
            None,
            frozenset({"first", "second", "ads"}),
        )
        relays.close()


async def test_relay_with_a_rate_is_used_with_a_permit_alone() -> None:
    """One for another relay is none."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, "slow", rate_per_s=1.0), relay_at(server, "free"))
        assert list(relays.rates) == ["slow"]
        soon = time.monotonic() + NEVER_S
        for permit, expected in ((None, "free"), (Permit("free", soon), "free"), (Permit("slow", soon), "slow")):
            connection = await relays.check_out(permit=permit)
            assert isinstance(connection, Connection)
            assert connection.relay == expected
            relays.check_in(connection)
        assert isinstance(await relays.check_out("", "slow"), Report)
        relays.close()


async def test_a_permit_that_has_expired_when_the_connection_is_there_is_renewed() -> None:
    """The connection is kept for it; where there is no token, or no answer, it goes to the next who has one."""
    async with ScriptedRelay() as server, asyncio.TaskGroup() as tasks:
        relays = relays_of(relay_at(server, "slow", rate_per_s=1.0, connections=1))
        asked: asyncio.Queue[asyncio.Future[Permit | NoToken]] = asyncio.Queue()

        async def renew(relay: str) -> Permit | NoToken:
            assert relay == "slow"
            answer: asyncio.Future[Permit | NoToken] = asyncio.get_running_loop().create_future()
            await asked.put(answer)
            return await answer

        def checking_out(until_mono: float) -> asyncio.Task[Any]:
            return tasks.create_task(relays.check_out(permit=Permit("slow", until_mono), renew=renew))

        late, next_ = checking_out(0.0), checking_out(time.monotonic() + NEVER_S)
        (await asked.get()).set_result(NoToken("slow", 7.0))
        assert await late == NoToken("slow", 7.0)
        relays.check_in(await next_)
        unanswered, next_ = checking_out(0.0), checking_out(0.0)
        await asked.get()
        unanswered.cancel()
        (await asked.get()).set_result(Permit("slow", time.monotonic() + NEVER_S))
        connection = await next_
        assert isinstance(connection, Connection)
        assert server.connections == 1
        relays.check_in(connection)
        relays.close()


async def test_a_pause_at_the_opening_pauses_also_beside_connections_that_live() -> None:
    """To open fewer of them wouldn't help: who is suspended is so at any pace."""
    greetings = [{}, {"greeting": "421 4.7.0 [TSS04] Messages temporarily deferred"}]
    async with ScriptedRelay({"connections": greetings}) as server:
        relays = relays_of(relay_at(server, connections=4))
        connection = await taken(relays)
        with capture_logs() as logs:
            assert isinstance(await relays.check_out(), Report)
        assert [(entry["event"], entry["reason"]) for entry in logs] == [("relay.paused", "rate_limited")]
        assert not relays.usable
        relays.check_in(connection)
        relays.close()


async def test_reply_is_judged_by_the_operators_rules_while_connecting_too() -> None:
    """A greeting that a rule calls a pause pauses."""
    rule = Rule(name="closed", verdict=RuleVerdict.PAUSE, stages=[Stage.GREETING], text="office hours", wait_s=NEVER_S)
    async with ScriptedRelay({"greeting": "421 come in office hours"}) as server:
        relays = Relays([relay_at(server)], boottime_s=time.monotonic, chance=random.random, rules=table([rule], Retry()))
        with capture_logs() as logs:
            await relays.check_out()
        assert [(entry["event"], entry["reason"], entry["retry_in_s"]) for entry in logs] == [("relay.paused", "closed", NEVER_S)]


async def test_name_that_the_relay_does_not_take_pauses_it() -> None:
    """504 at EHLO is our configuration's fault, not the mail's; trying again soon would change nothing."""
    async with ScriptedRelay({"needs_full_name": True}) as server:
        relays = relays_of(relay_at(server, ehlo_name="host"))
        with capture_logs() as logs:
            assert await relays.check_out() == Report("relay", Stage.EHLO, Reply(504, "5.5.2", "need a full name"))
        assert [(entry["event"], entry["reason"]) for entry in logs] == [("relay.paused", "ehlo_refused")]


async def test_relay_that_finds_us_too_fast_stays_open_until_we_cannot_be_slower() -> None:
    """Halved and halved again; only when one connection is still too many it is left alone for a while."""
    now_mono = 1000.0
    async with ScriptedRelay() as server:
        slow = relay_at(server, connections=4, probe_first_s=NEVER_S, probe_max_s=NEVER_S)
        relays = Relays([slow], boottime_s=lambda: now_mono, chance=random.random)
        fast = decide(Report("relay", Stage.DOT, Reply(454, None, "Throttling failure: Maximum sending rate exceeded.")))
        connections = [await taken(relays) for _ in range(4)]
        with capture_logs() as logs:
            for _ in range(6):
                relays.note("relay", fast)
            assert relays.usable
            now_mono += 1.0
            for _ in range(3):
                relays.note("relay", fast)
        told = [(entry["event"], entry.get("connections")) for entry in logs]
        assert told == [("relay.slowed", 2), ("relay.slowed", 1), ("relay.lost", None)]
        for connection in connections:
            relays.check_in(connection)
        relays.close()
