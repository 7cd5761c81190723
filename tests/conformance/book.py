"""The jobs of one run: saved as an application saves them, and looked at from outside."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from tests.conformance.fleet import Fleet
from tests.conformance.result import Conclusion, JobResult
from tests.conformance.scene import Scene, until_so

ENQUEUE = "SELECT id FROM mailslot.enqueue(payload => $1, expires_at => now() + make_interval(secs => $2){options})"
ROWS = """
SELECT id, uid, outcome, attempt, crashes, doubts, reason, relay, reply, recipients::text AS recipients,
       lease_token IS NOT NULL AND outcome IS NULL AND lease_owner <> 'another' AS is_leased,
       available_at > now() + interval '0.05 s' AS waits
FROM mailslot.jobs WHERE id = ANY($1) ORDER BY id
"""
MAKE_DUE = "UPDATE mailslot.jobs SET available_at = now() WHERE outcome IS NULL AND lease_token IS NULL AND available_at > now()"
FINISHED = "SELECT outcome IS NOT NULL FROM mailslot.jobs WHERE id = $1"

Row = dict[str, Any]


class Book:
    """The case's jobs, and the few that go before or after them."""

    def __init__(self, scene: Scene, fleet: Fleet) -> None:
        self._scene = scene
        self._fleet = fleet
        self._ids: list[int] = []
        self._payloads: list[str] = []
        self._refused: list[str] = []
        """Payloads that the database didn't take."""
        self._foreign: set[str] = set()
        """What the Message-IDs of mails that aren't the case's are made from."""

    async def enqueue_all(self) -> None:
        """Save the case's jobs."""
        for payload in self._scene.work.payloads:
            try:
                identity, _ = await self._enqueue(payload, **self._scene.work.options)
            except asyncpg.DataError:
                self._refused.append(payload)
                continue
            self._payloads.append(payload)
            self._ids.append(identity)

    async def enqueue_apart(self, to: str) -> int:
        """Save a job that isn't the case's, and return its id."""
        payload = {"from": "team@example.org", "to": [to], "subject": "Apart", "text": "Not the case's own.\n"}
        identity, uid = await self._enqueue(json.dumps(payload))
        self._foreign.add(uid)
        return identity

    async def finished(self, identity: int) -> None:
        """Wait until a job is finished."""
        await until_so(lambda: self._scene.connection.fetchval(FINISHED, identity))

    async def make_due(self) -> None:
        """Let the time pass that jobs are put off for."""
        await self._scene.connection.execute(MAKE_DUE)

    async def rows(self) -> list[Row]:
        """Return the case's jobs as they stand, in the order in which they were saved."""
        found = await self._scene.connection.fetch(ROWS, self._ids)
        return [{**row, "recipients": json.loads(row["recipients"] or "null")} for row in found]

    def conclusions(self, rows: list[Row]) -> dict[int, list[Conclusion]]:
        """Return what each job's attempts meant, by what the daemons said; a killed one says nothing, then the row tells."""
        found: dict[int, list[Conclusion]] = {row["id"]: [] for row in rows}
        for row in rows:
            if self._fleet.killed and row["crashes"]:
                outcome = "in_doubt" if row["doubts"] else "retry_free"
                found[row["id"]].append(Conclusion(outcome, int(row["doubts"] > 0), {}))
        for daemon in self._fleet.all:
            for line in daemon.lines:
                conclusion = conclusion_of(line)
                if conclusion is not None and line.get("job_id") in found:
                    found[line["job_id"]].append(conclusion)
        return found

    async def results(self) -> list[JobResult]:
        """Return what became of the case's jobs."""
        rows = await self.rows()
        conclusions = self.conclusions(rows)
        taken = [JobResult(row, payload, conclusions[row["id"]]) for row, payload in zip(rows, self._payloads, strict=True)]
        return [*taken, *(JobResult(None, payload) for payload in self._refused)]

    def stored(self) -> int:
        """Count the messages of the case's jobs that relays have taken on."""
        messages = [message for relay in self._scene.relays for message in relay.messages]
        return sum(not any(uid in message.message_id for uid in self._foreign) for message in messages)

    async def _enqueue(self, payload: str, **options: Any) -> tuple[int, str]:  # noqa: ANN401  enqueue's own
        connection = self._scene.connection
        named = "".join(f", {name} => ${place}" for place, name in enumerate(options, 3))
        statement = ENQUEUE.format(options=named)
        identity = await connection.fetchval(statement, payload, self._scene.work.expires_in_s, *options.values())
        return identity, str(await connection.fetchval("SELECT uid FROM mailslot.jobs WHERE id = $1", identity))


def conclusion_of(line: dict[str, Any]) -> Conclusion | None:
    """Read from one line of the log what an attempt meant; None for a line about anything else."""
    attempt = int(line.get("attempt", 1))
    meanings = {
        "job.sent": ("sent", attempt - 1),
        "job.released": ("retry_free", attempt - 1),
        "job.deferred": ("retry", attempt),
        "job.in_doubt": ("in_doubt", attempt),
        "attempt.in_doubt": ("in_doubt", attempt),
        "job.dead": ("invalid" if line.get("relay") is None else "rejected", attempt),
        "job.cancelled": ("cancelled", attempt),
    }
    if line.get("verdict") == "free":
        meanings["outcome.stale"] = ("retry_free", attempt - 1)
    meaning = meanings.get(line["event"])
    return None if meaning is None else Conclusion(*meaning, line)
