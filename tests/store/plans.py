"""Plans as values: how PostgreSQL ran a statement, and how many pages and rows that took."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from daemon.database import statement
from daemon.store import FIRST, LAST, PRIORITIES, Level

ANN = "ann@example.org"
LEVELS = (["default"] * 4, list(PRIORITIES))
SCANS = {"Index Scan", "Index Only Scan"}
FAR = {FIRST: "-infinity", LAST: "infinity"}

cached = pytest.mark.parametrize("cached", ["custom", "generic"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every node of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def plan_of(connection: asyncpg.Connection, name: str, cached: str, *arguments: object) -> dict[str, Any]:
    """Run a statement and roll it back; returns its plan with the pages that it read."""
    await connection.execute(f"SET plan_cache_mode = force_{cached}_plan")
    prepared = await connection.prepare(statement(name))
    types = ", ".join(
        f"{parameter.name}[]" if parameter.kind == "array" else parameter.name for parameter in prepared.get_parameters()
    )
    types = types.replace("[][]", "[]")
    handle = f"explained_{uuid4().hex}"
    await connection.execute(
        f"PREPARE {handle} ({types}) AS {statement(name)}" if types else f"PREPARE {handle} AS {statement(name)}"
    )
    literals = [await connection.fetchval("SELECT quote_nullable($1::text)", as_text(argument)) for argument in arguments]
    call = f"({', '.join(literals)})" if literals else ""
    transaction = connection.transaction()
    await transaction.start()
    found = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {handle}{call}")
    await transaction.rollback()
    plan: dict[str, Any] = json.loads(found)[0]["Plan"]
    return plan


HOLDERS = ("extend", "mark", "record", "release")
SENT = {"outcome": "sent", "delay_s": 0.0, "doubts": 0, "assumed": False, "stage": "dot", "verdict": "sent", "accepted": [ANN]}


def given(name: str, ids: list[int], tokens: list[UUID], uids: list[UUID], **record: object) -> tuple[object, ...]:
    """Return what the holder of these jobs gives a statement; `record` changes what is recorded."""
    match name:
        case "extend":
            return ids, tokens, 30.0, 1_200.0
        case "mark":
            return json.dumps([{"id": i, "token": str(t), "sending": [ANN]} for i, t in zip(ids, tokens, strict=True)]), 30.0
        case "record":
            rows = zip(ids, tokens, uids, strict=True)
            return (json.dumps([{"id": i, "token": str(t), "uid": str(u), **SENT, **record} for i, t, u in rows]),)
        case _:
            number = len(ids)
            return ids, tokens, [0.0] * number, ["draining"] * number, *([None] * number,) * 3


def as_text(argument: object) -> str | None:
    """Return a value as PostgreSQL reads it."""
    if isinstance(argument, list):
        return "{" + ",".join("NULL" if item is None else _quoted(str(as_text(item))) for item in argument) + "}"
    return None if argument is None else FAR.get(argument, str(argument)) if isinstance(argument, datetime) else str(argument)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def pages(plan: dict[str, Any]) -> int:
    """Return how many pages a plan touched."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def on_jobs(plan: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return how the jobs are looked for: node type and index."""
    return [
        (node["Node Type"], node.get("Index Name"))
        for node in nodes(plan)
        if node.get("Relation Name") == "jobs" and node["Node Type"] != "ModifyTable"
    ]


def removed(plan: dict[str, Any]) -> int:
    """Return how many jobs were read in vain."""
    scans = [node for node in nodes(plan) if node.get("Relation Name") == "jobs"]
    return sum(int(node.get("Rows Removed by Filter", 0) * node["Actual Loops"]) for node in scans)


def claiming(count: int = 10, *, suspects: bool = False, queue: str = "default") -> tuple[object, ...]:
    """Return the arguments of a claim that looks at everything in a queue."""
    return claiming_from([Level(queue, priority) for priority in PRIORITIES], count, suspects=suspects)


def claiming_from(levels: Sequence[Level], count: int = 10, *, suspects: bool = False) -> tuple[object, ...]:
    """Return the arguments of a claim of these levels."""
    columns = ("queue", "priority", "after_at", "after_id")
    named = [[getattr(level, column) for level in levels] for column in columns]
    tokens = [uuid4() for _ in range(count)]
    back_s = [level.back_s for level in levels]
    return (*named, count, tokens, "me", 30.0, True, 0.0, suspects, [], 1_000, 3, [], back_s)
