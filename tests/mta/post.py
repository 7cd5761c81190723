"""What every test with Exim plays with: a database, the server, and daemons that hand mail to it as a user's would."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.conftest import StartDaemon
from tests.mta.exim import HOST, PASSWORD, USERNAME, WAIT_S, Exim
from tests.support.database import Database
from tests.support.process import Daemon

RETRY: Final = {"first_s": 0.2, "cap_s": 0.5, "greylist_s": 0.5}
_LOOK_S: Final = 0.03
_BROKEN: Final = ("syntax or protocol error", "synchronization error", "unexpected disconnection", "dropped: too many")
"""What Exim logs about a client that doesn't keep to the protocol."""


class Post:
    """The stage of one test."""

    def __init__(self, database: Database, exim: Exim, start: StartDaemon) -> None:
        self.database = database
        self.exim = exim
        self.workers: list[Daemon] = []
        self._start = start

    async def worker(
        self, *arguments: str, password: str = PASSWORD, relay: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
    ) -> Daemon:
        """Start a daemon that trusts Exim's authority and logs in, and wait until it takes work."""
        server = {"host": HOST, "tls": "starttls", "ca_file": self.exim.ca_file, "username": USERNAME, **(relay or {})}
        merged: dict[str, Mapping[str, Any]] = {"retry": RETRY, **sections, "relay": server}
        secret = {"MAILSLOT_RELAY__0__PASSWORD": password} if server["username"] else {}
        worker = await self._start(self.database, self.exim.port, *arguments, environment=secret, **merged)
        self.workers.append(worker)
        await worker.wait_ready()
        return worker

    async def enqueue(self, payload: Mapping[str, Any] | None = None, **values: Any) -> int:  # noqa: ANN401  a payload's
        """Save a job as an application does, and return its id."""
        mail = {"to": ["ann@example.org"], "subject": "You are invited", "text": "Come at eight.", **(payload or {}), **values}
        identity: int = await self.database.fetchval("SELECT id FROM mailslot.enqueue($1)", json.dumps(mail))
        return identity

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return a job's row, its recipients as a mapping from address to verdict."""
        row = await self.database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job_id)
        assert row is not None
        recipients = json.loads(row["recipients"] or "{}")
        return {**row, "verdicts": {address: entry["verdict"] for address, entry in recipients.items()}}

    async def finished(self, job_id: int) -> dict[str, Any]:
        """Wait until a job has its outcome, and return its row."""
        await self.until_true("SELECT outcome IS NOT NULL FROM mailslot.jobs WHERE id = $1", job_id)
        return await self.job(job_id)

    async def all_finished(self) -> None:
        """Wait until every job has its outcome."""
        await self.until_true("SELECT NOT EXISTS (SELECT FROM mailslot.jobs WHERE outcome IS NULL)")

    async def all_sent_once(self, jobs: Sequence[int]) -> None:
        """Wait until all jobs have their outcome: sent at the first attempt, nobody blamed, one copy each and no other mail."""
        await self.all_finished()
        rows = [await self.job(job_id) for job_id in jobs]
        assert {(row["outcome"], row["attempt"], row["doubts"], row["crashes"]) for row in rows} == {("sent", 1, 0, 0)}
        copies = await self.exim.settled()
        assert sorted(copy.job_uid for copy in copies) == sorted(str(row["uid"]) for row in rows)

    async def until_true(self, query: str, *arguments: object) -> None:
        """Ask the database again and again until it answers true."""
        until_mono = time.monotonic() + WAIT_S
        while await self.database.fetchval(query, *arguments) is not True:
            assert time.monotonic() < until_mono, f"not so: {query} {arguments}\n{self.story()}"
            await asyncio.sleep(_LOOK_S)

    async def copies(self, job_id: int) -> list[str]:
        """Wait until Exim has delivered what it accepted, and return who has got this job's mail, once for each copy."""
        uid = str((await self.job(job_id))["uid"])
        return sorted(copy.recipient for copy in await self.exim.settled() if copy.job_uid == uid)

    def story(self) -> str:
        """Return what everybody said last, for a test that fails."""
        said = [json.dumps(line) for worker in self.workers for line in worker.lines[-30:]]
        return "\n".join([*said, *(worker.errors for worker in self.workers), self.exim.story()])

    def check(self) -> None:
        """Check what holds in every story: nobody broke SMTP, no attempt ended in a surprise, nothing on standard error."""
        assert [line for words in _BROKEN for line in self.exim.logged(words)] == []
        assert [worker.errors for worker in self.workers] == [""] * len(self.workers)
        assert [line for worker in self.workers for line in worker.events("attempt.failed")] == []
