"""What every fault test plays with: one database that remembers each version of a job, one relay, and workers that die.

The times are even shorter than those of `tests.support.process`, and keep the same rules. Workers log in with a role that may do
what `mailslot_worker` may and nothing else. Waiting for a row is looking at it again and again, never longer than `WAIT_S`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.process import Daemon
from tests.support.proxy import Proxy, Trap
from tests.support.relay import ScriptedRelay

WAIT_S = 25.0
LOOK_S = 0.03
PASSWORD = "fault"
STAGES = ("greeting", "ehlo", "mail", "rcpt", "data")

SHORT: Mapping[str, Mapping[str, Any]] = {
    "lease": {
        "duration_s": 2.0,
        "heartbeat_s": 0.4,
        "heartbeat_timeout_s": 0.4,
        "margin_s": 0.3,
        "takeover_grace_s": 0.8,
        "in_doubt_delay_s": 4.0,
    },
    "relay": {"dot_timeout_s": 0.8, "probe_first_s": 0.1, "probe_max_s": 0.3},
    "retry": {"first_s": 0.2, "cap_s": 0.5},
    "worker": {"concurrency": 6, "drain_timeout_s": 4.0, "reply_grace_s": 4.0, "function_timeout_s": 0.8},
}
PATIENT: dict[str, Any] = {"lease": {"in_doubt_delay_s": 60.0}, "relay": {"dot_timeout_s": 50.0}}
"""For tests that keep the answer to a dot back."""

HISTORY = """
CREATE TABLE public.history (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id bigint, who text, before_token uuid, after_token uuid
);
CREATE FUNCTION public.remember() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.history (job_id, who, before_token, after_token)
    VALUES (new.id, current_setting('application_name'), old.lease_token, new.lease_token);
    RETURN NULL;
END $$;
CREATE TRIGGER remember AFTER UPDATE ON mailslot.jobs FOR EACH ROW EXECUTE FUNCTION public.remember();
"""
ROLE = f"""
DO $$ BEGIN
    CREATE ROLE mailslot_fault_worker LOGIN PASSWORD '{PASSWORD}' IN ROLE mailslot_worker;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$;
"""


class Scene:
    """The stage of one test."""

    def __init__(self, database: Database, relay: ScriptedRelay, start: StartDaemon) -> None:
        self.database = database
        self.relay = relay
        self.workers: list[Daemon] = []
        self.surprises = 0
        """How many attempts the test makes end in a surprise."""
        self._start = start

    async def prepare(self) -> None:
        """Make the role that workers log in with, and begin to remember."""
        await self.database.execute(ROLE)
        await self.database.execute(HISTORY)

    async def start(
        self,
        name: str,
        *arguments: str,
        link: Proxy | None = None,
        relay_port: int | None = None,
        environment: Mapping[str, str] | None = None,
        **sections: Mapping[str, Any],
    ) -> Daemon:
        """Start a worker, which need not be ready yet; `link` is its way to the database."""
        merged = {
            section: {**SHORT.get(section, {}), **sections.get(section, {})} for section in dict.fromkeys([*SHORT, *sections])
        }
        merged["worker"]["name"] = name
        dsn = link.dsn if link else self.database.dsn
        variables = {
            "MAILSLOT_DATABASE__DSN": dsn.replace("postgres@", "mailslot_fault_worker@"),
            "MAILSLOT_DATABASE__PASSWORD": PASSWORD,
            **(environment or {}),
        }
        worker = await self._start(self.database, relay_port or self.relay.port, *arguments, environment=variables, **merged)
        self.workers.append(worker)
        return worker

    async def worker(self, name: str, *arguments: str, **options: Any) -> Daemon:  # noqa: ANN401  as for start
        """Start a worker and wait until it takes work."""
        worker = await self.start(name, *arguments, **options)
        await worker.wait_ready()
        return worker

    async def enqueue(
        self,
        *to: str,
        payload: Any = None,  # noqa: ANN401  any JSON
        expires_in_s: float = 3600.0,
        queue: str = "default",
        kind: str = "email",
        on_doubt: str = "resend",
        max_attempts: int = 100,
    ) -> int:
        """Save a job as an application does, and return its id."""
        mail = {"to": list(to or ("maya@example.org",)), "subject": "You are invited", "text": "Come at eight."}
        identity: int = await self.database.fetchval(
            "SELECT id FROM mailslot.enqueue(payload => $1, expires_at => now() + make_interval(secs => $2), queue => $3,"
            " kind => $4, on_doubt => $5, max_attempts => $6)",
            json.dumps(mail if payload is None else payload),
            expires_in_s,
            queue,
            kind,
            on_doubt,
            max_attempts,
        )
        return identity

    async def spread(self, trap: Trap | None = None, *, before: int = 0) -> dict[str, int]:
        """Save one job for each stage before the dot, let each come to its stage and no further, and return the ids by stage.

        `trap` holds the mark of the one whose body has left; `before` so many jobs are at the relay already. The relay answers
        again after `let_go`.
        """
        jobs: dict[str, int] = {}
        if trap is not None:
            jobs["body"] = await self.enqueue()
            await trap.sprung()
        for stage in reversed(STAGES):
            seen = len(self.relay.events.of("connection"))
            self.relay.hold(stage)
            jobs[stage] = await self.enqueue()
            await self.seen(seen + 1, "connection")
            if stage != "greeting":
                await self.reached(stage, before + len(jobs))
        return jobs

    def let_go(self) -> None:
        """Let the relay answer again at every stage."""
        for stage in STAGES:
            self.relay.release(stage)

    async def job(self, job_id: int) -> Any:  # noqa: ANN401  a row
        """Return a job's row with the name of its state, and its recipients as a mapping."""
        row = await self.database.fetchrow(
            "SELECT j.*, s.state FROM mailslot.jobs AS j JOIN mailslot.job_states AS s USING (id) WHERE j.id = $1", job_id
        )
        assert row is not None
        return {**row, "recipients": json.loads(row["recipients"] or "null")}

    async def until(self, job_id: int, state: str) -> Any:  # noqa: ANN401  a row
        """Wait until a job is in a state, and return its row."""
        job: Any = None

        async def there() -> bool:
            nonlocal job
            job = await self.job(job_id)
            return bool(job["state"] == state)

        await self.wait_for(there, lambda: f"job {job_id} isn't {state}: {job}")
        return job

    async def lease_over(self, job_id: int, *, but_s: float = 0.0) -> None:
        """Wait until a job's lease has run out by the database's clock, but for so many seconds (negative: longer ago)."""
        await self.until_true(
            "SELECT lease_expires_at - make_interval(secs => $2) < now() FROM mailslot.jobs WHERE id = $1", job_id, but_s
        )

    async def lease_renewed(self, job_id: int) -> None:
        """Wait until a job's lease has been extended from now on."""
        before = (await self.job(job_id))["lease_expires_at"]
        await self.until_true("SELECT lease_expires_at > $2 FROM mailslot.jobs WHERE id = $1", job_id, before)

    async def until_true(self, query: str, *arguments: object) -> None:
        """Wait until a query returns true."""

        async def true() -> bool:
            return await self.database.fetchval(query, *arguments) is True

        await self.wait_for(true, lambda: f"not so: {query} {arguments}")

    async def all_finished(self, *, within_s: float = WAIT_S) -> None:
        """Wait until no job is unfinished."""
        left: Any = None

        async def none_left() -> bool:
            nonlocal left
            left = await self.database.fetchval("SELECT count(*) FROM mailslot.jobs WHERE completed_at IS NULL")
            return bool(left == 0)

        await self.wait_for(none_left, lambda: f"{left} jobs are unfinished", within_s=within_s)

    async def wait_for(
        self, condition: Callable[[], Awaitable[bool]], explain: Callable[[], str], *, within_s: float = WAIT_S
    ) -> None:
        """Look again and again until the condition holds; a database that is away is looked at again as well."""
        until_mono = time.monotonic() + within_s
        while not await condition():
            if time.monotonic() > until_mono:
                raise AssertionError(f"{explain()} after {within_s:g} s\n{self.story()}")
            await asyncio.sleep(LOOK_S)

    async def reached(self, stage: str, count: int = 1) -> None:
        """Wait until so many commands of a stage have come to the relay."""
        await self.seen(count, "command", stage=stage)

    async def seen(self, count: int, event: str, **fields: object) -> None:
        """Wait until the relay has seen so many of an event."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self.relay.events.wait(count, event, **fields)
        except TimeoutError:
            raise AssertionError(f"the relay hasn't seen {count} x {event} {fields}\n{self.story()}") from None

    async def lasting(self, duration_s: float) -> None:
        """Let a fault last so long; nothing is expected to happen meanwhile."""
        await asyncio.sleep(duration_s)

    async def cut_backends(self) -> None:
        """Terminate every connection of every worker, as an administrator or a failing network does."""
        await self.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'mailslot %'"
        )

    async def enqueue_many(self, count: int) -> None:
        """Save so many jobs in one transaction."""
        await self.database.execute(
            """SELECT mailslot.enqueue('{"to": "maya@example.org", "subject": "You are invited", "text": "At eight."}')"""
            " FROM generate_series(1, $1)",
            count,
        )

    async def copies(self, job_id: int) -> int:
        """Count the messages that the relay took on for a job."""
        uid = (await self.job(job_id))["uid"]
        return sum(str(uid) in message.message_id or uid.hex in message.message_id for message in self.relay.messages)

    async def evidence(self, job_id: int) -> list[str]:
        """Return the recipients whose acceptance is noted in the ledger and not in the row."""
        accepted: list[str] = await self.database.fetchval(
            "SELECT array_agg(DISTINCT a) FROM mailslot.attempts, unnest(accepted) AS a WHERE job_id = $1", job_id
        )
        return accepted or []

    async def changes_by(self, name: str, job_id: int, *, since: int = 0) -> list[Any]:
        """Return what a worker of this name has changed in a job, later than a given number of the history."""
        return await self.database.fetch(
            "SELECT * FROM public.history WHERE job_id = $1 AND number > $2 AND who LIKE 'mailslot ' || $3 || ':%'",
            job_id,
            since,
            name,
        )

    async def now(self) -> int:
        """Return the number of the latest change of any job."""
        number: int = await self.database.fetchval("SELECT coalesce(max(number), 0) FROM public.history")
        return number

    async def check_all_sent_once(self, count: int) -> None:
        """Check that so many jobs were sent, at the first attempt, with one copy each, and that nobody was blamed."""
        rows = await self.database.fetch(
            "SELECT outcome, attempt, crashes, doubts, count(*) FROM mailslot.jobs GROUP BY outcome, attempt, crashes, doubts"
        )
        assert [tuple(row) for row in rows] == [("sent", 1, 0, 0, count)]
        assert len({message.message_id for message in self.relay.messages}) == len(self.relay.messages) == count

    def story(self) -> str:
        """Return what everybody said last, for a test that fails."""
        said = [f"{number}: {json.dumps(line)}" for number, worker in enumerate(self.workers) for line in worker.lines[-25:]]
        errors = [worker.errors for worker in self.workers if worker.errors]
        return "\n".join([*said, *errors, *(json.dumps(event) for event in self.relay.events.all[-25:])])

    def check(self) -> None:
        """Check what holds in every story: nobody spoke SMTP wrongly, no attempt ended in a surprise, nothing on stderr."""
        assert self.relay.violations == []
        assert [worker.errors for worker in self.workers] == [""] * len(self.workers)
        assert sum(len(worker.events("attempt.failed")) for worker in self.workers) == self.surprises, self.story()
