"""What a piece of work has cost: CPU by process, and what PostgreSQL counts.

Two readings, and the difference between them by job. Numbers of rows are only handed in by a backend once a second, or when it
ends; so CPU is read when the work is done, and the server's counters once more when the worker has left (`settled`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from daemon.database import statement
from tests.bench.figures import share, signature
from tests.bench.processes import cpu_s, others_cpu_s
from tests.bench.row import Figures
from tests.bench.server import Postgres
from tests.bench.sinks import Sink
from tests.support.database import Database

BATCHES = ("claim", "mark", "record")
SETTLING_S = 1.2
COUNTERS = """
SELECT /* bench */ (pg_current_wal_insert_lsn() - '0/0')::float8 AS wal_bytes,
       (SELECT wal_fpi FROM pg_stat_wal)::float8 AS fpi,
       coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 AS dead_tuples,
       coalesce(sum(n_tup_upd), 0)::float8 AS updates, coalesce(sum(n_tup_hot_upd), 0)::float8 AS hot_updates,
       coalesce(sum(idx_tup_fetch), 0)::float8 AS rows_fetched
FROM pg_stat_user_tables WHERE relname NOT LIKE 'pg_stat%'
"""
STATEMENTS = """
SELECT /* bench */ query, calls::float8 AS calls, rows::float8 AS rows FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query NOT LIKE '%/* bench */%'
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that is counted, at one moment."""

    cpu: Mapping[str, float]
    """Seconds by who used them: worker, postgres, and sink if there is one."""
    counters: Mapping[str, float]
    calls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By statement: how often, and how many rows it returned; `all` is the sum."""
    others_cpu_s: float = 0.0
    """Seconds of CPU of programs that have nothing to do with the bench."""
    at_mono: float = 0.0


async def read(server: Postgres, database: Database, *, worker: Sequence[int], sink: Sink | None = None) -> Reading:
    """Read everything now.

    Args:
        server: whose CPU is counted, with all its backends.
        database: whose counters are read.
        worker: the processes whose CPU is the worker's, each with all below it.
        sink: the sink, if there is one.
    """
    cpu = {"worker": cpu_s(worker), "postgres": cpu_s([server.postmaster])} | ({"sink": cpu_s([sink.pid])} if sink else {})
    others, at_mono = others_cpu_s(), time.monotonic()
    return Reading(cpu, await _counters(database), await _calls(server, database), others, at_mono)


async def settled(reading: Reading, server: Postgres, database: Database) -> Reading:
    """Return the reading with the counters as they are once the worker has left; the CPU stays as it was."""
    await asyncio.sleep(SETTLING_S if server.counts_statements else 0)
    return replace(reading, counters=await _counters(database), calls=await _calls(server, database))


def spent(before: Reading, after: Reading, *, jobs: int, seconds: float) -> Figures:
    """Return what was spent between two readings, by job; `seconds` is how long the work took."""
    counted = {name: after.counters[name] - before.counters[name] for name in after.counters}
    figures = {
        "jobs_per_s": jobs / seconds,
        **{f"{who}_cpu_ms": (after.cpu[who] - before.cpu[who]) * 1000 / jobs for who in after.cpu},
        "wal_bytes": counted["wal_bytes"] / jobs,
        "fpi": counted["fpi"] / jobs,
        "dead_tuples": counted["dead_tuples"] / jobs,
        "hot_share": share(counted["hot_updates"], counted["updates"]),
        "rows_fetched": counted["rows_fetched"] / jobs,
        "other_cores": (after.others_cpu_s - before.others_cpu_s) / (after.at_mono - before.at_mono),
    }
    if "all" in after.calls:
        figures["statements"] = (after.calls["all"][0] - before.calls.get("all", (0, 0))[0]) / jobs
    for name in BATCHES:
        calls, rows = (
            now - then for now, then in zip(after.calls.get(name, (0, 0)), before.calls.get(name, (0, 0)), strict=True)
        )
        if calls:
            figures[f"{name}_batch"] = rows / calls
    return figures


async def _counters(database: Database) -> Mapping[str, float]:
    row = await database.fetchrow(COUNTERS)
    assert row is not None
    return dict(row)


async def _calls(server: Postgres, database: Database) -> Mapping[str, tuple[float, float]]:
    if not server.counts_statements:
        return {}
    rows = await database.fetch(STATEMENTS)
    calls: dict[str, tuple[float, float]] = {"all": (sum(row["calls"] for row in rows), 0.0)}
    for name in BATCHES:
        ours = [row for row in rows if signature(row["query"]) == signature(statement(name))]
        calls[name] = (sum(row["calls"] for row in ours), sum(row["rows"] for row in ours))
    return calls
