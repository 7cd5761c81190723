"""The real daemon between relays: which one gets a mail, when another takes over, and what a relay sees of us in bad times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.process import Daemon
from tests.support.relay import ScriptedRelay
from tests.support.relay_session import Script
from tests.worker.test_rates import enqueue, settled

NEVER_S = 3_600.0
LOG_IN = {"username": "maya", "password": "right"}
GREETS = {"greeting": "421 4.7.0 too busy"}
WRONG = {"ehlo": ["AUTH PLAIN LOGIN"], "auth": "535 5.7.8 authentication failed"}


def at(relay: ScriptedRelay, name: str, **keys: Any) -> dict[str, Any]:  # noqa: ANN401 - settings
    """Return settings of a relay; one that fails isn't tried again while the test runs."""
    return {"name": name, "port": relay.port, "probe_first_s": NEVER_S, "probe_max_s": NEVER_S, "pause_s": NEVER_S, **keys}


async def row(database: Database, job: int) -> Any:  # noqa: ANN401 - a row
    """Return a job's row."""
    return await database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job)


async def until(database: Database, condition: str, job: int) -> Any:  # noqa: ANN401 - a row
    """Wait until the job's row fulfils an SQL condition, and return the row."""
    while not await database.fetchval(f"SELECT {condition} FROM mailslot.jobs WHERE id = $1", job):  # noqa: S608 - ours
        pass
    return await row(database, job)


# ---------------------------------------------------------------- failover


@pytest.mark.parametrize(
    ("script", "keys", "reason"),
    [
        (None, {}, "connection_refused"),
        (GREETS, {}, "greeting_refused"),
        (WRONG, LOG_IN, "auth_failed"),
        ({"greeting": {"reply": None, "then": "close"}}, {}, "connection_closed"),
        ({"needs_full_name": True, "ehlo": "504 5.5.2 need a full name"}, {}, "ehlo_refused"),
    ],
    ids=["refused", "421", "password", "closed", "name"],
)
async def test_next_relay_takes_over_before_anything_was_sent(
    database: Database, start_daemon: StartDaemon, script: Script | None, keys: dict[str, str], reason: str
) -> None:
    """Refused, busy, or not letting us in: one try there, and the mails go by the second relay, no attempt more for it."""
    async with ScriptedRelay(script) as first, ScriptedRelay() as second:
        if script is None:
            await first.stop()
        daemon = await start_daemon(database, 0, relay=[at(first, "first", **keys), at(second, "second")])
        jobs = await enqueue(database, 5)
        assert await settled(database, 5) == {("sent", 1)}
        assert {(await row(database, job))["relay"] for job in jobs} == {"second"}
        assert (len(second.messages), len(first.messages)) == (5, 0)
        assert first.connections == (script is not None)
        assert first.log_ins == len(keys) / 2
        (lost,) = [line for line in daemon.lines if line.get("event") in {"relay.lost", "relay.paused"}]
        assert (lost["relay"], lost["reason"]) == ("first", reason)
        if script is None:
            await first.__aenter__()


async def test_no_other_relay_is_tried_once_the_dot_was_written(database: Database, start_daemon: StartDaemon) -> None:
    """The first relay took the mail and closed without an answer: a doubt, and no second copy by another way."""
    script = {"dot": {"reply": None, "then": "close", "server_stores_message": True}}
    async with ScriptedRelay(script) as first, ScriptedRelay() as second:
        await start_daemon(database, 0, relay=[at(first, "first"), at(second, "second")])
        (job,) = await enqueue(database, on_doubt="hold")
        found = await until(database, "outcome IS NOT NULL", job)
        assert (found["outcome"], found["relay"], found["doubts"], found["attempt"]) == ("in_doubt", "first", 1, 1)
        assert (len(first.messages), second.connections) == (1, 0)


async def test_a_mail_goes_to_the_first_relay_again_when_that_is_back(database: Database, start_daemon: StartDaemon) -> None:
    """The order is the operator's wish; an outage only puts it aside."""
    async with ScriptedRelay(GREETS) as first, ScriptedRelay() as second:
        quickly = {"probe_first_s": 0.01, "probe_max_s": 0.05}
        daemon = await start_daemon(database, 0, relay=[at(first, "first", **quickly), at(second, "second")])
        await enqueue(database)
        await second.events.wait(1, "stored")
        first.script["greeting"] = "220 back"
        await daemon.event("relay.resumed", relay="first")
        await enqueue(database)
        await first.events.wait(1, "stored")
        assert await settled(database, 2) == {("sent", 1)}


# ---------------------------------------------------------------- which relay for whom


async def test_a_job_that_asks_for_a_relay_goes_by_that_one(database: Database, start_daemon: StartDaemon) -> None:
    """Also when it isn't the preferred one; when it is away the job waits for it, unclaimed, and holds up nobody."""
    async with ScriptedRelay() as first, ScriptedRelay() as second, ScriptedRelay(GREETS) as away:
        relays = [at(first, "first"), at(second, "second"), at(away, "away")]
        daemon = await start_daemon(database, 0, relay=relays, worker={"concurrency": 2})
        (asks,) = await enqueue(database, relay="second")
        assert (await until(database, "outcome IS NOT NULL", asks))["relay"] == "second"
        (waits,) = await enqueue(database, relay="away")
        await daemon.event("relay.lost", relay="away")
        await enqueue(database, 4, relay="away")
        (other,) = await enqueue(database)
        assert (await until(database, "outcome IS NOT NULL", other))["relay"] == "first"
        assert away.connections == 1
        assert len(daemon.events("job.claimed")) == 3
        waiting = await until(database, "lease_token IS NULL", waits)
        assert (waiting["attempt"], waiting["reason"], len(second.messages)) == (0, "greeting_refused", 1)


@pytest.mark.parametrize("asked", ["nowhere", "news"])
async def test_a_relay_that_does_not_serve_the_queue_is_an_alarm(
    database: Database, start_daemon: StartDaemon, asked: str
) -> None:
    """Unknown, or kept for another queue: the job goes back for a minute, its attempt unused, and the error names it."""
    async with ScriptedRelay() as relay:
        relays = [at(relay, "main"), at(relay, "news", queues=["news"])]
        daemon = await start_daemon(database, 0, relay=relays)
        (job,) = await enqueue(database, relay=asked)
        error = await daemon.event("relay.unknown", job_id=job)
        assert (error["level"], error["relay"], error["known"]) == ("error", asked, ["main"])
        released = await daemon.event("job.released", job_id=job)
        assert (released["reason"], released["retry_in_s"]) == ("relay_unknown", 60.0)
        assert (await row(database, job))["attempt"] == 0
        assert relay.connections == 0


async def test_a_queue_without_a_usable_relay_is_not_claimed(database: Database, start_daemon: StartDaemon) -> None:
    """Its relay is away after the first mail has found that out; other queues go on by theirs, and none takes the mail over."""
    async with ScriptedRelay() as main, ScriptedRelay(GREETS) as bound:
        relays = [at(main, "main"), at(bound, "bound", queues=["news"])]
        daemon = await start_daemon(database, 0, relay=relays, worker={"queues": ["news", "default"]})
        first, *others = await enqueue(database, queue="news")
        await daemon.event("relay.lost", relay="bound")
        others += await enqueue(database, 3, queue="news")
        (job,) = await enqueue(database)
        await until(database, "outcome IS NOT NULL", job)
        await until(database, "lease_token IS NULL", first)
        claimed = {event["job_id"] for event in daemon.events("job.claimed")}
        assert claimed == {first, job}
        assert (bound.connections, len(main.messages)) == (1, 1)


# ---------------------------------------------------------------- what a relay sees in bad times


def slowed(daemon: Daemon) -> list[int]:
    """Return the numbers of connections to which the daemon went down."""
    return [event["connections"] for event in daemon.events("relay.slowed")]


async def test_concurrency_falls_to_what_the_relay_takes(database: Database, start_daemon: StartDaemon) -> None:
    """Three at once and no more: ten mails are sent, none loses an attempt, and we end with three connections or fewer."""
    limit = {"count": 3, "step": "432 4.3.2 Concurrent connections limit exceeded."}
    rule = {"name": "soon", "verdict": "free", "codes": ["432"], "reason": "too_many_connections", "wait_s": 0.3}
    async with ScriptedRelay({"parallel_mail": limit}) as relay:
        daemon = await start_daemon(database, relay.port, worker={"concurrency": 10}, rule=[rule])
        await daemon.wait_ready()
        relay.hold("mail")
        await enqueue(database, 10)
        await relay.reached("mail", 4)
        relay.release("mail")
        assert await settled(database, 10) == {("sent", 1)}
        assert len(relay.messages) == 10
        limits = slowed(daemon)
        assert limits == sorted(limits, reverse=True)
        assert limits[-1] <= 3
        assert relay.open_connections <= 3
        assert not daemon.events("relay.lost")


async def test_a_changed_password_costs_one_log_in_for_each_worker(database: Database, start_daemon: StartDaemon) -> None:
    """Two workers with twenty slots each, under load, and connections that are renewed all the time: no storm of log-ins.

    What the relay sees from the moment of the change until its pause ends (five minutes, unless set otherwise) is one failed
    log-in from each worker, so that is also the worst minute.
    """
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN LOGIN CRAM-MD5"]}) as relay:
        keys = {"messages_per_connection": 2, "pause_s": NEVER_S, "connections": 20, **LOG_IN}
        workers = [await start_daemon(database, relay.port, relay=keys, worker={"concurrency": 20}) for _ in range(2)]
        await enqueue(database, 600)
        await relay.events.wait(100, "stored")
        relay.script["auth"] = "535 5.7.8 authentication failed"
        before = relay.log_ins
        for worker in workers:
            await worker.event("relay.paused", reason="auth_failed")
        leased = "SELECT count(*) FROM mailslot.jobs WHERE lease_token IS NOT NULL AND outcome IS NULL"
        while await database.fetchval(leased):
            pass
        assert relay.log_ins - before <= len(workers)
        assert await database.fetchval("SELECT count(*) FROM mailslot.jobs WHERE outcome IS NULL AND attempt > 0") == 0
        assert await database.fetchval("SELECT count(*) FROM mailslot.jobs WHERE outcome IS NULL") > 0
        assert [len(worker.events("relay.paused")) for worker in workers] == [1, 1]


# ---------------------------------------------------------------- configuration


async def test_reports_are_asked_for_by_the_jobs_own_name(database: Database, start_daemon: StartDaemon) -> None:
    """ENVID is the job's uid, so that a report can be told to belong to it."""
    async with ScriptedRelay({"ehlo": ["DSN"]}) as relay:
        await start_daemon(database, relay.port, mail={"dsn_notify": "failure,delay"})
        (job,) = await enqueue(database)
        uid = (await until(database, "outcome IS NOT NULL", job))["uid"]
        (mail,), (rcpt,) = (relay.events.of("command", stage=stage) for stage in ("mail", "rcpt"))
        assert mail["line"] == f"MAIL FROM:<sender@example.org> RET=HDRS ENVID={uid}"
        assert rcpt["line"] == "RCPT TO:<maya@example.org> NOTIFY=FAILURE,DELAY"


async def test_a_rule_of_the_configuration_decides(database: Database, start_daemon: StartDaemon) -> None:
    """What would be refused for good is tried again, because the operator knows the relay better."""
    rule = {"name": "tired", "verdict": "later", "stages": ["dot"], "codes": ["554"], "text": "tired", "wait_s": 0.1}
    async with ScriptedRelay({"dot": ["554 5.7.1 I am tired", "250 ok"]}) as relay:
        daemon = await start_daemon(database, relay.port, rule=[rule])
        (job,) = await enqueue(database)
        deferred = await daemon.event("job.deferred", job_id=job)
        assert (deferred["reason"], deferred["retry_in_s"]) == ("tired", 0.1)
        assert await settled(database, 1) == {("sent", 2)}


@pytest.mark.parametrize("name", ["host", "localhost", "a b.example.org", "[192.0.2.256]"])
async def test_a_name_that_relays_refuse_stops_the_daemon_at_its_start(
    database: Database, start_daemon: StartDaemon, name: str
) -> None:
    """Exit 78, with the key, before anything is claimed."""
    daemon = await start_daemon(database, 25, relay={"ehlo_name": name})
    assert await daemon.stopped() == 78
    assert "relay[0].ehlo_name" in daemon.errors
