"""Where connections come from when relays are there, busy, wrong, or away."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.core.settings import Relay, Secret
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import decide, stale
from daemon.smtp import Connection, Relays
from daemon.smtp.pool import Pool
from tests.support.exchange import ANN, CONTENT, SENDER, SHORT_S, relay_settings, sent
from tests.support.relay import ScriptedRelay

LOGIN: dict[str, Any] = {"username": "maya", "password": Secret("wrong")}
NEVER_S = 10_000.0


def relays_of(*relays: Relay) -> Relays:
    """Return relays on the real clock."""
    return Relays(relays, boottime_s=time.monotonic, chance=random.random)


def relay_at(server: ScriptedRelay, name: str = "relay", **values: Any) -> Relay:  # noqa: ANN401 - settings
    """Return settings that try again soon after an outage and never after a pause."""
    defaults = {"probe_first_s": 0.001, "probe_max_s": 0.002, "pause_s": NEVER_S, "ehlo_name": "x.example"}
    return relay_settings(server.port, name=name, host="127.0.0.1", **{**defaults, **values})


class Changes:
    """Waits for what the relays announce."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays
        self._event = asyncio.Event()
        relays.on_change = self._event.set

    async def next(self) -> None:
        """Wait for one announcement that hasn't been waited for."""
        await self._event.wait()
        self._event.clear()

    async def usable(self) -> None:
        """Wait until a relay can be used."""
        while not self._relays.usable:
            await self.next()


@contextlib.asynccontextmanager
async def running(relays: Relays) -> AsyncIterator[Changes]:
    """Run the relays' loop."""
    changes = Changes(relays)
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(relays.run())
        yield changes
        loop.cancel()
    relays.close()


async def taken(relays: Relays) -> Connection:
    """Check a connection out that must be there."""
    connection = await relays.check_out()
    assert isinstance(connection, Connection), connection
    return connection


async def one_message(relays: Relays) -> None:
    """Send one message as an attempt does, with the one try on a fresh connection that an aged one is worth."""
    while True:
        connection = await taken(relays)
        report = await connection.envelope(SENDER, [ANN], size=len(CONTENT), smtputf8=False)
        if report.failure is None:
            break
        assert stale(report.failure), report.failure
        connection.abort()
        relays.check_in(connection)
    connection.send_body(CONTENT)
    assert await connection.drained() is None
    assert connection.write_dot()
    answer = await connection.dot_reply()
    relays.note(connection.relay, decide(connection.report(answer)))
    relays.check_in(connection)


async def test_connections_are_shared_in_turn() -> None:
    """Twenty at once over three connections: everybody is served, nobody opens a fourth."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, connections=3))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(one_message(relays))
        assert len(server.messages) == 20
        assert server.connections <= 3
        assert server.violations == []
        relays.close()
        await server.reached("quit", count=server.connections)


async def test_idle_connections_leave_in_time() -> None:
    """The loop parts from them; nobody has to come by."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, idle_s=SHORT_S))
        async with running(relays):
            await one_message(relays)
            await server.reached("quit")
            await server.events.wait(1, "closed")


async def test_session_limit_fails_no_message() -> None:
    """A relay that closes after so many messages gets the next one on a new connection."""
    limit = {"count": 5, "step": "421 4.7.0 Maximum message count per session reached."}
    async with ScriptedRelay({"mail_after_messages": limit}) as server:
        relays = relays_of(relay_at(server))
        for _ in range(12):
            await one_message(relays)
        assert (len(server.messages), server.connections) == (12, 3)
        assert relays.usable
        relays.close()


async def test_fresh_connection_is_one_that_has_carried_nothing() -> None:
    """However many idle ones there are: who was failed by an aged one doesn't get another."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server))
        await one_message(relays)
        fresh = await relays.check_out(fresh=True)
        assert isinstance(fresh, Connection)
        assert (fresh.reused, server.connections) == (False, 2)
        relays.check_in(fresh)
        relays.close()


async def test_connections_that_come_and_go_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that parts from idle connections hears of the first one, and sleeps until that could have to go."""
    looks: list[None] = []
    monkeypatch.setattr(Pool, "expire", lambda _: looks.append(None))
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, idle_s=NEVER_S))
        async with running(relays):
            for _ in range(10):
                await one_message(relays)
                for _ in range(5):
                    await asyncio.sleep(0)
            assert len(looks) == 1


async def test_connection_closed_while_idle_costs_nothing() -> None:
    """The relay's time-out is met with one more connection."""
    connections = [{"dot": {"reply": "250 2.0.0 ok\r\n421 4.4.2 idle too long", "then": "close"}}, {}]
    async with ScriptedRelay({"connections": connections}) as server:
        relays = relays_of(relay_at(server))
        for _ in range(2):
            await one_message(relays)
        assert (len(server.messages), server.connections) == (2, 2)
        relays.close()


async def test_relay_that_is_away_is_tried_until_it_is_back() -> None:
    """One failed opening stops the jobs; the loop finds the return and brings a connection."""
    async with ScriptedRelay() as server:
        pass
    relays = relays_of(relay_at(server))
    with capture_logs() as logs:
        async with running(relays) as changes:
            assert await relays.check_out() == Report("relay", Stage.CONNECT, Fault.REFUSED)
            assert not relays.usable
            async with server:
                await changes.usable()
                await one_message(relays)
    assert (len(server.messages), server.connections) == (1, 1)
    assert [(entry["event"], entry.get("reason")) for entry in logs] == [
        ("relay.lost", "connection_refused"),
        ("relay.resumed", None),
    ]


async def test_wrong_password_is_tried_once_for_a_hundred_jobs() -> None:
    """A hundred at once: one log-in, one line, and the same report for all."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN LOGIN CRAM-MD5"], "auth": "535 5.7.8 no"}) as server:
        relays = relays_of(relay_at(server, **LOGIN))
        with capture_logs() as logs:
            async with running(relays), asyncio.TaskGroup() as tasks:
                jobs = [tasks.create_task(relays.check_out()) for _ in range(100)]
        assert {job.result() for job in jobs} == {Report("relay", Stage.AUTH, Reply(535, "5.7.8", "no"))}
        assert (server.connections, server.log_ins) == (1, 1)
        (entry,) = logs
        assert (entry["event"], entry["log_level"], entry["reason"]) == ("relay.paused", "error", "auth_failed")
        assert not relays.usable


async def test_pause_ends_with_one_try() -> None:
    """After the pause the password is tried once more, and now it is right."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"], "auth": ["535 5.7.8 no", "535 5.7.8 no", "235 ok"]}) as server:
        relays = relays_of(relay_at(server, pause_s=0.001, **LOGIN))
        async with running(relays) as changes:
            await relays.check_out()
            await changes.usable()
            await one_message(relays)
        assert (server.log_ins, len(server.messages)) == (3, 1)


async def test_relay_that_drops_everybody_is_not_stormed() -> None:
    """Fifty jobs meet a relay that closes at once: one connect for all of them."""
    async with ScriptedRelay({"greeting": {"reply": None, "then": "close"}}) as server:
        relays = relays_of(relay_at(server, probe_first_s=NEVER_S, probe_max_s=NEVER_S))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(50):
                tasks.create_task(relays.check_out())
        assert server.connections == 1


async def test_those_who_waited_for_the_first_open_together() -> None:
    """One goes first; once that went well the others don't queue for their openings."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server))
        server.hold("greeting")
        async with asyncio.TaskGroup() as tasks:
            jobs = [tasks.create_task(taken(relays)) for _ in range(3)]
            await server.events.wait(1, "connection")
            server.hold("ehlo")
            server.release("greeting")
            await server.reached("ehlo")
            assert server.connections == 1
            server.hold("greeting")
            server.release("ehlo")
            await server.events.wait(3, "connection")
            server.release("greeting")
        for job in jobs:
            relays.check_in(job.result())
        relays.close()


async def test_failed_openings_cost_no_place() -> None:
    """After fifty failures all places are there."""
    drop = {"greeting": {"reply": "220 hello", "then": "rst"}}
    async with ScriptedRelay({"connections": [drop] * 50 + [{}]}) as server:
        relays = relays_of(relay_at(server, connections=2))
        async with running(relays) as changes:
            await relays.check_out()
            await changes.usable()
            one, two = await taken(relays), await taken(relays)
            for connection in (one, two):
                assert isinstance(await sent(connection), Reply)
                relays.check_in(connection)
        assert server.connections == 52


async def test_cancelled_wait_costs_no_place() -> None:
    """Who gives up while waiting for a place or for the greeting leaves both as they were."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, connections=1))
        server.hold("greeting")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await relays.check_out()
        server.release("greeting")
        connection = await taken(relays)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await relays.check_out()
        relays.check_in(connection)
        await one_message(relays)
        relays.close()


async def test_next_relay_takes_over_while_nothing_was_sent() -> None:
    """Failover where connections are opened; when the first is back it is the first again."""
    async with ScriptedRelay() as first:
        pass
    async with ScriptedRelay() as second:
        relays = relays_of(relay_at(first, "first"), relay_at(second, "second"))
        assert relays.names == ("first", "second")
        await one_message(relays)
        assert relays.usable
        async with first, running(relays) as changes:
            await changes.next()
            await one_message(relays)
        assert (len(first.messages), len(second.messages)) == (1, 1)


async def test_all_relays_away_reports_the_preferred_one() -> None:
    """The operator's first relay is the one to hear about, the first time and later."""
    async with ScriptedRelay() as first, ScriptedRelay({"greeting": "554 no"}) as second:
        await first.stop()
        away = {"probe_first_s": NEVER_S, "probe_max_s": NEVER_S}
        relays = relays_of(relay_at(first, "first", **away), relay_at(second, "second", **away))
        for _ in range(2):
            assert await relays.check_out() == Report("first", Stage.CONNECT, Fault.REFUSED)
        assert not relays.usable
        assert second.connections == 1
        await first.__aenter__()


async def test_relay_that_hangs_holds_up_no_other() -> None:
    """Each relay is tried on its own time."""
    async with ScriptedRelay({"greeting": {"reply": None, "then": "hang"}}) as slow, ScriptedRelay() as quick:
        await quick.stop()
        relays = relays_of(relay_at(slow, "slow", connect_timeout_s=SHORT_S), relay_at(quick, "quick"))
        await relays.check_out()
        slow_again = slow.connections + 1
        async with running(relays) as changes:
            await slow.events.wait(slow_again, "connection")
            async with quick:
                await changes.usable()
                await one_message(relays)
        assert len(quick.messages) == 1


async def test_faults_in_transactions_stop_the_jobs() -> None:
    """Three in a row close the access, idle connections go, and a try follows."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, probe_first_s=NEVER_S, probe_max_s=NEVER_S))
        await one_message(relays)
        fault = decide(Report("relay", Stage.MAIL, Fault.TIMEOUT))
        for _ in range(3):
            assert relays.usable
            relays.note("relay", fault)
        assert not relays.usable
        await server.reached("quit")


async def test_full_sessions_are_no_faults() -> None:
    """A relay that counts messages per session works as it says."""
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server))
        over = Reply(421, "4.7.0", "Maximum message count per session reached.")
        for _ in range(10):
            relays.note("relay", decide(Report("relay", Stage.MAIL, over)))
        assert relays.usable


async def test_relay_without_access_is_left_at_once() -> None:
    """Nobody waits for a place at a relay that takes no work while another one does."""
    async with ScriptedRelay() as first, ScriptedRelay() as second:
        away = {"connections": 1, "probe_first_s": NEVER_S, "probe_max_s": NEVER_S}
        relays = relays_of(relay_at(first, "first", **away), relay_at(second, "second"))
        connection = await taken(relays)
        for _ in range(3):
            relays.note("first", decide(Report("first", Stage.MAIL, Fault.TIMEOUT)))
        await one_message(relays)
        assert len(second.messages) == 1
        relays.check_in(connection)
        relays.close()


async def test_slowed_relay_gets_its_connections_back() -> None:
    """A minute of success after the halving lets one more in."""
    now = [1000.0]
    async with ScriptedRelay() as server:
        relays = Relays([relay_at(server, connections=2)], boottime_s=lambda: now[0], chance=random.random)
        connection = await taken(relays)
        relays.note("relay", decide(Report("relay", Stage.MAIL, Reply(432, "4.3.2", "too many"))))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await relays.check_out()
        now[0] += 60.0
        relays.note("relay", decide(Report("relay", Stage.DOT, Reply(250, "2.0.0", "ok"))))
        relays.check_in(await taken(relays))
        relays.check_in(connection)
        relays.close()


async def test_doubts_pause_the_relay_and_name_the_reason() -> None:
    """Three answers missing in a row: no more mail into the fog."""
    async with ScriptedRelay({"dot": {"reply": None, "then": "close"}}) as server:
        relays = relays_of(relay_at(server))
        with capture_logs() as logs:
            for _ in range(3):
                await one_message(relays)
        assert [entry["reason"] for entry in logs] == ["answers_missing"]
        assert not relays.usable


async def test_relay_that_finds_us_too_many_gets_fewer_connections() -> None:
    """The limit shrinks to what the relay takes, with one line."""
    limit = {"count": 3, "step": "432 4.3.2 Concurrent connections limit exceeded."}
    async with ScriptedRelay({"parallel_mail": limit}) as server:
        relays = relays_of(relay_at(server, connections=10))
        connections = [await taken(relays) for _ in range(6)]
        report = await connections[-1].envelope(SENDER, [ANN], size=1, smtputf8=False)
        assert report.failure is not None
        with capture_logs() as logs:
            relays.note("relay", decide(report.failure))
        assert [(entry["event"], entry["connections"]) for entry in logs] == [("relay.slowed", 3)]
        for connection in connections:
            relays.check_in(connection)
        assert relays.usable
        relays.close()


async def test_own_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections, the resolver is asked once, and not at all where a name is configured."""
    names_of_the_host = iter(["host.example.org"])
    monkeypatch.setattr("socket.getfqdn", lambda: next(names_of_the_host))
    async with ScriptedRelay() as server:
        relays = relays_of(relay_at(server, ehlo_name="", messages_per_connection=1))
        for _ in range(2):
            await one_message(relays)
        named = relays_of(relay_at(server, ehlo_name="[192.0.2.1]"))
        await one_message(named)
        names = [event["line"] for event in server.events.of("command", stage="ehlo")]
        assert names == ["EHLO host.example.org", "EHLO host.example.org", "EHLO [192.0.2.1]"]
        named.close()


async def test_no_relay_at_all_is_a_report() -> None:
    """A worker without relays sends nothing and doesn't fall over."""
    relays = relays_of()
    assert not relays.usable
    assert (relays.names, relays.way("default")) == ((), None)
    assert await relays.check_out() == Report("", Stage.CONNECT, Fault.UNREACHABLE)
