"""The rate of a relay, kept by several daemons at once; and who doesn't wait for it."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.relay import ScriptedRelay

JOBS = 60
PER_S, BURST = 25.0, 10.0


async def enqueue(database: Database, count: int = 1, **options: Any) -> list[int]:  # noqa: ANN401 - any argument
    """Save jobs as an application does."""
    mail = json.dumps({"to": ["maya@example.org"], "subject": "You are invited", "text": "Come at eight."})
    names = "".join(f", {name} => ${place}" for place, name in enumerate(options, 3))
    statement = f"SELECT (mailslot.enqueue(payload => $1{names})).id FROM generate_series(1, $2::integer)"  # noqa: S608 - ours
    return [row["id"] for row in await database.fetch(statement, mail, count, *options.values())]


class Arrivals:
    """Notes when each message begins at a relay."""

    def __init__(self, relay: ScriptedRelay) -> None:
        self.times: list[float] = []
        self._add = relay.events.add
        relay.events.add = self._note  # type: ignore[method-assign]

    def _note(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        if event == "command" and fields.get("stage") == "mail":
            self.times.append(time.monotonic())
        self._add(event, **fields)


def limited(**keys: Any) -> dict[str, Any]:  # noqa: ANN401 - settings
    """Return settings of a relay with a rate."""
    return {"rate_per_s": PER_S, "burst": BURST, **keys}


async def test_three_daemons_together_keep_the_rate(database: Database, start_daemon: StartDaemon) -> None:
    """Counted at the relay, from the moment at which there was work: never more than the burst and the rate.

    The bucket is full then, so all of the burst is used; each job is tried once, and none waits with a lease for its token.
    """
    async with ScriptedRelay() as relay:
        arrivals = Arrivals(relay)
        daemons = [await start_daemon(database, relay.port, relay=limited(), worker={"concurrency": 8}) for _ in range(3)]
        for daemon in daemons:
            await daemon.wait_ready()
        begin = time.monotonic()
        await enqueue(database, JOBS)
        await relay.events.wait(JOBS, "stored")
        over = {number: number - BURST - PER_S * (at - begin) for number, at in enumerate(arrivals.times, 1)}
        assert {number: more for number, more in over.items() if more > 0} == {}
        assert len(relay.messages) == JOBS
        assert await settled(database, JOBS) == {("sent", 1)}
        assert sum(bool(daemon.events("job.sent")) for daemon in daemons) > 1
        assert relay.violations == []


async def settled(database: Database, count: int) -> set[tuple[str, int]]:
    """Wait until so many jobs are finished; return their outcomes and attempts."""
    while await database.fetchval("SELECT count(*) FROM mailslot.jobs WHERE outcome IS NOT NULL") < count:
        pass
    rows = await database.fetch("SELECT outcome, attempt FROM mailslot.jobs WHERE outcome IS NOT NULL")
    return {(row["outcome"], row["attempt"]) for row in rows}


async def test_other_queues_dont_wait_for_a_relays_tokens(database: Database, start_daemon: StartDaemon) -> None:
    """A bucket that gives one token in an hour stops its own queue, and neither another's nor who asks for another relay."""
    async with ScriptedRelay() as slow, ScriptedRelay() as quick:
        relays = [
            limited(name="slow", port=slow.port, rate_per_s=0.0003, burst=1.1),
            {"name": "quick", "port": quick.port},
            {"name": "news", "port": quick.port, "queues": ["news"]},
        ]
        first, *waiting = await enqueue(database, 3)
        daemon = await start_daemon(database, 0, relay=relays, worker={"queues": ["default", "news"], "concurrency": 4})
        await daemon.event("job.sent", job_id=first)
        news = await enqueue(database, 4, queue="news")
        (asks,) = await enqueue(database, relay="quick")
        for job in (*news, asks):
            await daemon.event("job.sent", job_id=job)
        states = await database.fetch("SELECT state, attempt FROM mailslot.job_states WHERE id = any($1)", waiting)
        assert [(row["state"], row["attempt"]) for row in states] == [("ready", 0)] * 2
        assert (len(slow.messages), len(quick.messages)) == (1, 5)


async def test_an_idle_daemon_leaves_the_tokens_to_the_busy_one(database: Database, start_daemon: StartDaemon) -> None:
    """It puts back what it doesn't need, at once: with two tokens in all, the second isn't lost in its hands."""
    async with ScriptedRelay() as relay:
        scarce = limited(rate_per_s=0.0003, burst=3.0)
        idle = await start_daemon(database, relay.port, relay=scarce, worker={"queues": ["nothing"], "concurrency": 5})
        await idle.wait_ready()
        while await database.fetchval("SELECT count(*) FROM mailslot.rates") == 0:
            pass
        await enqueue(database, 3)
        busy = await start_daemon(database, relay.port, relay=scarce, worker={"concurrency": 5})
        await relay.events.wait(2, "stored")
        assert await settled(database, 2) == {("sent", 1)}
        assert not idle.events("job.sent")
        assert len(busy.events("job.claimed")) == 2


async def test_once_waits_for_tokens_and_then_ends(database: Database, start_daemon: StartDaemon) -> None:
    """Jobs that are due and only wait for the rate are part of what has to be done."""
    async with ScriptedRelay() as relay:
        await enqueue(database, 6)
        daemon = await start_daemon(database, relay.port, "--once", relay=limited(rate_per_s=8.0, burst=2.6))
        assert await daemon.stopped() == 0
        assert len(relay.messages) == 6


async def passed(database: Database, seconds: float, jobs: int) -> None:
    """Wait until so many jobs have been held for so long."""
    held = "SELECT count(*) FROM mailslot.jobs WHERE clock_timestamp() > leased_at + make_interval(secs => $1)"
    while await database.fetchval(held, seconds) < jobs:
        pass


async def test_who_waits_too_long_for_its_connection_takes_another_token(database: Database, start_daemon: StartDaemon) -> None:
    """Three jobs share one connection: the permits of two have expired when it comes free, and neither is given back for it."""
    async with ScriptedRelay() as relay:
        slow = limited(rate_per_s=1.0, burst=8.0, connections=1)
        daemon = await start_daemon(database, relay.port, relay=slow, worker={"concurrency": 3})
        await daemon.wait_ready()
        relay.hold("dot")
        await enqueue(database, 3)
        await passed(database, 1.1, 3)
        relay.release("dot")
        assert await settled(database, 3) == {("sent", 1)}
        assert not daemon.events("job.released")
        assert len(daemon.events("job.claimed")) == 3


async def test_jobs_that_were_held_up_dont_all_leave_at_once(database: Database, start_daemon: StartDaemon) -> None:
    """Each of them had a token when it was claimed; from the moment at which they may go on the burst and the rate hold anew."""
    async with ScriptedRelay() as relay:
        arrivals = Arrivals(relay)
        slots = {"relay": limited(connections=1), "worker": {"concurrency": 12}}
        daemons = [await start_daemon(database, relay.port, **slots) for _ in range(2)]
        for daemon in daemons:
            await daemon.wait_ready()
        relay.hold("dot")
        await enqueue(database, JOBS)
        await passed(database, 0.5, 24)
        before = len(arrivals.times)
        begin = time.monotonic()
        relay.release("dot")
        await relay.events.wait(JOBS, "stored")
        over = {number: number - BURST - PER_S * (at - begin) for number, at in enumerate(arrivals.times[before:], 1)}
        assert {number: more for number, more in over.items() if more > 0} == {}
        assert before == 2


async def test_a_large_mail_that_is_late_takes_its_only_token_when_it_can_go(
    database: Database, start_daemon: StartDaemon
) -> None:
    """A token that was taken with its claim would have expired, and the next one comes in an hour."""
    async with ScriptedRelay() as relay:
        scarce = limited(rate_per_s=0.0003, burst=1.1)
        daemon = await start_daemon(database, relay.port, relay=scarce)
        await daemon.wait_ready()
        relay.hold("greeting")
        mail = json.dumps({"to": ["maya@example.org"], "subject": "All of it", "text": "Come at eight. " * 20_000})
        await database.fetch("SELECT mailslot.enqueue(payload => $1)", mail)
        await passed(database, 1.1, 1)
        relay.release("greeting")
        assert await settled(database, 1) == {("sent", 1)}
        assert not daemon.events("job.released")


async def test_a_late_mail_waits_for_a_token_that_comes_soon(database: Database, start_daemon: StartDaemon) -> None:
    """Given back it would be late again, and burn one token after the other for ever."""
    async with ScriptedRelay() as relay:
        daemon = await start_daemon(database, relay.port, relay=limited(rate_per_s=0.5, burst=0.0))
        await daemon.wait_ready()
        relay.hold("greeting")
        await enqueue(database)
        await passed(database, 0.6, 1)
        relay.release("greeting")
        assert await settled(database, 1) == {("sent", 1)}
        assert not daemon.events("job.released")


async def test_a_late_mail_is_given_back_if_the_next_token_is_far(database: Database, start_daemon: StartDaemon) -> None:
    """For as long as it takes, its attempt unused, and the relay has seen no mail."""
    async with ScriptedRelay() as relay:
        daemon = await start_daemon(database, relay.port, relay=limited(rate_per_s=0.01, burst=1.01))
        await daemon.wait_ready()
        relay.hold("greeting")
        (job,) = await enqueue(database)
        await passed(database, 0.6, 1)
        relay.release("greeting")
        released = await daemon.event("job.released", job_id=job)
        assert (released["reason"], released["relay"], released["attempt"]) == ("no_token", "relay", 1)
        assert 90 < released["retry_in_s"] < 100
        assert await database.fetchval("SELECT attempt FROM mailslot.jobs") == 0
        assert not relay.events.of("command", stage="mail")
