"""Jobs in every state, and what became of them."""

from __future__ import annotations

import json
from typing import Any

from tests.support.database import Database

TOKEN = "11111111-1111-4111-8111-111111111111"
FINISHED = {"completed_at": "now()", "lease_token": f"'{TOKEN}'", "lease_owner": "'host-1'", "leased_at": "now()"}


async def save(database: Database, **columns: str) -> int:
    """Save a job, with columns set to SQL expressions, and return its id."""
    async with database.connection() as connection, connection.transaction():
        saved = await connection.fetchval("""SELECT id FROM mailslot.enqueue('{"to": "maya@example.org", "subject": "Party"}')""")
        if columns:
            setting = ", ".join(f"{name} = {value}" for name, value in columns.items())
            await connection.execute(f"UPDATE mailslot.jobs SET {setting} WHERE id = $1", saved)  # noqa: S608 - ours
    return int(saved)


async def finished(database: Database, outcome: str, **columns: str) -> int:
    """Save a job that a worker has finished, and return its id."""
    return await save(database, **{**FINISHED, "outcome": f"'{outcome}'", **columns})


async def row_of(database: Database, job_id: int) -> dict[str, Any]:
    """Return the job's row."""
    row = await database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job_id)
    assert row is not None
    return dict(row)


async def audited(database: Database) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the audit trail."""
    rows = await database.fetch("SELECT action, job_id, detail FROM mailslot.audit ORDER BY id")
    return [(row["action"], row["job_id"], json.loads(row["detail"])) for row in rows]


def recipients(**verdicts: str) -> str:
    """Return a recipients map as an SQL literal; `in_doubt` and `doubted` verdicts carry the memory of their doubt."""
    entries = {
        f"{name}@example.org": {"verdict": verdict.removeprefix("doubted "), "reply": "250 ok"}
        | ({"doubted": True} if "doubt" in verdict else {})
        for name, verdict in verdicts.items()
    }
    return f"'{json.dumps(entries)}'"


async def verdicts(database: Database, job_id: int) -> dict[str, str]:
    """Return who stands at which verdict."""
    entries = json.loads((await row_of(database, job_id))["recipients"])
    return {address.partition("@")[0]: entry["verdict"] for address, entry in entries.items()}


async def add_evidence(database: Database, job_id: int) -> None:
    """Add a ledger row of a late 2xx."""
    await database.execute(
        "INSERT INTO mailslot.attempts (job_id, lease_token, attempt, verdict, stage, reply, relay, accepted) "
        "VALUES ($1, gen_random_uuid(), 1, 'sent', 'dot', '250 2.0.0 queued as 7XQ', 'main', '{maya@example.org}')",
        job_id,
    )
