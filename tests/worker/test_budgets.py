"""What uses an attempt up and what doesn't, how long is waited, and that every job comes to an end."""

from __future__ import annotations

import pytest

from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.relay import ScriptedRelay
from tests.worker.test_rates import enqueue, settled
from tests.worker.test_relays import row, until

QUICK = {"first_s": 0.1, "cap_s": 0.2, "greylist_s": 0.3}


async def expiring(database: Database, in_s: float) -> int:
    """Save a job that expires so soon."""
    (job,) = await enqueue(database, expires_at=await database.fetchval("SELECT now() + make_interval(secs => $1)", in_s))
    return job


@pytest.mark.parametrize(
    "script",
    [
        {"rcpt": {"*": "450 4.2.1 mailbox busy"}},
        {"rcpt": {"*": "450 4.2.1 try again in 0 seconds"}},
        {"rcpt": {"*": "452 4.5.3 too many recipients"}},
        {"dot": "451 4.3.0 try again later"},
        {"during_body": {"after_bytes": 1, "then": "close"}, "messages": 0},
    ],
    ids=["recipient", "hint", "too many", "message", "drops"],
)
async def test_what_is_said_about_the_mail_uses_attempts_up(
    database: Database, start_daemon: StartDaemon, script: dict[str, object]
) -> None:
    """After max_attempts it is over, whatever wait the relay names: three tries and no fourth."""
    async with ScriptedRelay(script) as relay:
        await start_daemon(database, relay.port, retry=QUICK)
        (job,) = await enqueue(database, max_attempts=3)
        assert await settled(database, 1) == {("dead", 3)}
        assert len(relay.events.of("command", stage="mail")) == 3
        assert (await row(database, job))["doubts"] == 0


async def test_what_is_said_about_us_uses_no_attempt_and_ends_when_the_job_expires(
    database: Database, start_daemon: StartDaemon
) -> None:
    """A relay that says "slow down, again in 0 seconds" for ever: tried with a pause between, never counted, and then expired."""
    rule = {"name": "soon", "verdict": "free", "text": "rate limit", "reason": "rate_limited", "wait_s": 0.2}
    async with ScriptedRelay({"dot": "451 4.7.0 rate limit, try again in 0 seconds"}) as relay:
        daemon = await start_daemon(database, relay.port, rule=[rule], worker={"sweep_interval_s": 0.1})
        await daemon.wait_ready()
        job = await expiring(database, 2.0)
        ended = await until(database, "outcome IS NOT NULL", job)
        assert (ended["outcome"], ended["reason"], ended["attempt"]) == ("dead", "expired", 0)
        assert 1 < len(relay.events.of("command", stage="dot")) <= 10
        assert {event["retry_in_s"] for event in daemon.events("job.released", job_id=job)} == {0.2}


@pytest.mark.parametrize(
    ("said", "retry_in_s"),
    [("450 4.2.0 Greylisted", 0.3), ("450 4.2.0 Greylisted, try again in 1 second", 1.0), ("450 4.7.1 wait 1s", 1.0)],
)
async def test_greylists_are_waited_for_as_configured_or_as_they_say(
    database: Database, start_daemon: StartDaemon, said: str, retry_in_s: float
) -> None:
    """retry.greylist_s, or longer if the relay names a time; then the same sender, recipient and bytes come again."""
    async with ScriptedRelay({"rcpt": {"*": [said, "250 ok"]}}) as relay:
        daemon = await start_daemon(database, relay.port, retry=QUICK)
        (job,) = await enqueue(database)
        deferred = await daemon.event("job.deferred", job_id=job)
        assert deferred["retry_in_s"] == retry_in_s
        assert await settled(database, 1) == {("sent", 2)}
        assert len({event["line"] for event in relay.events.of("command", stage="mail")}) == 1


async def test_a_wait_that_is_longer_than_the_job_lives_is_its_end(database: Database, start_daemon: StartDaemon) -> None:
    """It isn't tried before the relay allows it, so not at all: when its time is over it is swept as expired."""
    async with ScriptedRelay({"rcpt": {"*": ["450 4.2.0 Greylisted, try again in 3600 seconds", "250 ok"]}}) as relay:
        daemon = await start_daemon(database, relay.port, worker={"sweep_interval_s": 0.1})
        await daemon.wait_ready()
        job = await expiring(database, 2.0)
        deferred = await daemon.event("job.deferred", job_id=job)
        assert deferred["retry_in_s"] == 3600.0
        swept = await daemon.event("job.swept", job_id=job)
        assert (swept["reason"], swept["outcome"]) == ("expired", "dead")
        ended = await row(database, job)
        assert (ended["outcome"], ended["reason"], ended["attempt"], len(relay.messages)) == ("dead", "expired", 1, 0)
        assert len(relay.events.of("command", stage="rcpt")) == 1


async def test_no_relay_puts_a_job_off_for_longer_than_four_hours(database: Database, start_daemon: StartDaemon) -> None:
    """Whatever number it says."""
    async with ScriptedRelay({"dot": "451 4.3.0 try again in 9999999 hours"}) as relay:
        daemon = await start_daemon(database, relay.port)
        (job,) = await enqueue(database)
        assert (await daemon.event("job.deferred", job_id=job))["retry_in_s"] == 14_400.0


async def test_an_outage_uses_no_attempt_up(database: Database, start_daemon: StartDaemon) -> None:
    """Fewer attempts than failures of the relay, and yet all are sent when it is back."""
    async with ScriptedRelay({"greeting": "421 4.3.2 closed for lunch"}) as relay:
        quickly = {"probe_first_s": 0.01, "probe_max_s": 0.05}
        await start_daemon(database, relay.port, relay=quickly)
        await enqueue(database, 10, max_attempts=1)
        await relay.events.wait(12, "connection")
        relay.script["greeting"] = "220 back"
        assert await settled(database, 10) == {("sent", 1)}
        assert len(relay.messages) == 10
