"""`mailslot jobs`: what became of a job, and what a person decides about one that needs a person.

An action is a compare-and-set on (outcome, lease_token, completed_at) as they were read just before: if a worker's late answer or
another person was quicker, nothing is changed, the job is shown as it is now, and the exit code is 1. Each action writes the
audit trail in the same statement.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from argparse import Namespace
from datetime import datetime

from daemon.cli import times
from daemon.cli.exits import Exit, UsageError
from daemon.cli.options import settings_of
from daemon.cli.render import as_json, distance, listing, printable, table
from daemon.cli.session import Row, Session, opened
from daemon.core.settings import Settings

HEADS = ("ID", "STATE", "QUEUE", "KIND", "AGE", "TRY", "DUE", "REASON")
HIDDEN = frozenset({"id", "state", "now", "recipients", "outcome", "payload", "assumed"})
"""What `jobs show` says elsewhere than in its list of columns."""
RETRYABLE = frozenset({"dead", "in_doubt", "cancelled"})


def run_list(arguments: Namespace) -> int:
    """`mailslot jobs list`: a page, newest first; JSON is an object a line."""
    settings = settings_of(arguments)
    now, rows = asyncio.run(page(settings, arguments))
    if arguments.json:
        for row in rows:
            print(as_json(row))
        return Exit.DONE
    print(table(HEADS, [_cells(row, now) for row in rows], shutil.get_terminal_size().columns))
    if len(rows) == arguments.limit:
        print(f"older ones: --after {rows[-1]['id']}", file=sys.stderr)
    return Exit.DONE


async def page(settings: Settings, arguments: Namespace) -> tuple[datetime, list[Row]]:
    """Return the database's clock and the jobs that the arguments ask for."""
    async with opened(settings.database) as session:
        begun = (await session.rows("job_begin"))[0]
        rows = await session.rows("job_list", arguments.state, arguments.queue, arguments.after, arguments.limit)
    return begun["now"], rows


def _cells(row: Row, now: datetime) -> tuple[object, ...]:
    attempts = f"{row['attempt']}/{row['max_attempts']}" + ("?" * row["doubts"])
    reason = row["reason"] or ("assumed" if row["assumed"] else "")
    age = distance(now - row["created_at"])
    return row["id"], row["state"], row["queue"], row["kind"], age, attempts, _due(row, now), reason


def _due(row: Row, now: datetime) -> str:
    if row["state"] != "ready":
        return ""
    return f"in {distance(row['available_at'] - now)}" if row["available_at"] > now else "now"


def run_show(arguments: Namespace) -> int:
    """`mailslot jobs show ID`."""
    return asyncio.run(_show(settings_of(arguments), arguments))


async def _show(settings: Settings, arguments: Namespace) -> int:
    async with opened(settings.database) as session:
        row = await session.row("job_show", arguments.id, arguments.payload)
        attempts = await session.rows("job_attempts", arguments.id)
    if row is None:
        return _missing(arguments.id)
    if arguments.json:
        print(as_json(_plain(row, attempts)))
    else:
        print(_described(row, attempts))
    return Exit.DONE


def run_retry(arguments: Namespace) -> int:
    """`mailslot jobs retry ID`."""
    return asyncio.run(_retry(settings_of(arguments), arguments))


async def _retry(settings: Settings, arguments: Namespace) -> int:
    async with opened(settings.database) as session:
        row = await _read(session, arguments.id)
        if row is None:
            return _missing(arguments.id)
        if row["outcome"] not in RETRYABLE:
            return await _refuse(session, arguments, f"is {row['state']}; only dead, in_doubt and cancelled jobs can be retried")
        expires = _later(arguments.expires, row["now"])
        done = await session.row("job_retry", *_fence(row), expires, arguments.again, arguments.why)
        if done is None:
            return await _refuse(session, arguments, "was changed meanwhile; nothing was done")
    told = {"id": arguments.id, "state": "ready", "expires_at": done["expires_at"], "evidence_set_aside": done["evidence"]}
    _tell(arguments, told, f"job {arguments.id} is ready again until {printable(done['expires_at'])}")
    if row["doubts"]:
        print("a copy of it may have been delivered before", file=sys.stderr)
    return Exit.DONE


def run_cancel(arguments: Namespace) -> int:
    """`mailslot jobs cancel ID`."""
    return asyncio.run(_cancel(settings_of(arguments), arguments))


async def _cancel(settings: Settings, arguments: Namespace) -> int:
    async with opened(settings.database) as session:
        done = await session.row("job_cancel", arguments.id, arguments.why)
        if done is None:
            return await _refuse(session, arguments, "is finished already; nothing was done")
    meaning = {
        "cancelled": "is cancelled",
        "cancel_requested": "is held by a worker, which will not send it unless the message is on its way already",
        "in_doubt": "is withdrawn, but a copy may have been delivered before: it ends in doubt",
        "sent": "is withdrawn for those who don't have it yet",
    }
    _tell(arguments, {"id": arguments.id, "state": done["state"]}, f"job {arguments.id} {meaning[done['state']]}")
    return Exit.DONE


def run_resolve(arguments: Namespace) -> int:
    """`mailslot jobs resolve ID --sent|--not-sent`."""
    return asyncio.run(_resolve(settings_of(arguments), arguments))


async def _resolve(settings: Settings, arguments: Namespace) -> int:
    async with opened(settings.database) as session:
        row = await _read(session, arguments.id)
        if row is None:
            return _missing(arguments.id)
        if row["outcome"] != "in_doubt":
            return await _refuse(session, arguments, f"is {row['state']}; only a job in doubt can be resolved")
        done = await session.row("job_resolve", *_fence(row), arguments.sent, arguments.why)
        if done is None:
            return await _refuse(session, arguments, "was changed meanwhile; nothing was done")
    told = {"id": arguments.id, "state": done["outcome"], "reason": done["reason"]}
    _tell(arguments, told, f"job {arguments.id} is {done['outcome']} ({done['reason']})")
    return Exit.DONE


async def _read(session: Session, job_id: int) -> Row | None:
    without_payload = False
    return await session.row("job_show", job_id, without_payload)


def _fence(row: Row) -> tuple[object, ...]:
    return row["id"], row["outcome"], row["lease_token"], row["completed_at"]


def _later(expires: str | None, now: datetime) -> datetime | None:
    if expires is None:
        return None
    try:
        instant = times.resolve(times.parse(expires), now)
    except ValueError as error:
        raise UsageError(f"--expires {error}") from error
    if instant <= now:
        raise UsageError("--expires is in the past: the job would end at once")
    return instant


def _missing(job_id: int) -> int:
    print(f"mailslot: there is no job {job_id}", file=sys.stderr)
    return Exit.NOTHING_DONE


async def _refuse(session: Session, arguments: Namespace, why: str) -> int:
    """Say why nothing was done and show the job as it is now."""
    row = await _read(session, arguments.id)
    if row is None:
        return _missing(arguments.id)
    attempts = await session.rows("job_attempts", arguments.id)
    print(as_json(_plain(row, attempts)) if arguments.json else _described(row, attempts))
    print(f"mailslot: job {arguments.id} {why}", file=sys.stderr)
    return Exit.NOTHING_DONE


def _tell(arguments: Namespace, told: Row, sentence: str) -> None:
    print(as_json(told) if arguments.json else sentence)


def _plain(row: Row, attempts: list[Row]) -> Row:
    """Return the job as one object: JSON columns as JSON, the ledger inside, without the clock."""
    job = {key: value for key, value in row.items() if key != "now"}
    for key in ("recipients", "payload"):
        job[key] = None if row[key] is None else json.loads(row[key])
    if row["payload"] is None:
        del job["payload"]
    return {**job, "attempts": attempts}


def _described(row: Row, attempts: list[Row]) -> str:
    lines = [
        f"job {row['id']}: {row['state']}" + (" (assumed)" if row["assumed"] else ""),
        listing({key: value for key, value in row.items() if key not in HIDDEN}),
    ]
    if row["recipients"] is not None:
        lines.append("recipients")
        lines.append(listing({printable(address): _verdict(entry) for address, entry in json.loads(row["recipients"]).items()}))
    if attempts:
        lines.append("attempts that didn't finish it")
        lines.extend(_attempt(attempt) for attempt in attempts)
    if row["payload"] is not None:
        lines.append(f"payload\n  {printable(row['payload'])}")
    return "\n".join(lines)


def _verdict(entry: dict[str, object]) -> str:
    doubted = ", was in doubt" if entry.get("doubted") else ""
    return f"{entry.get('verdict')}{doubted}  {entry.get('reply') or ''}".rstrip()


def _attempt(attempt: Row) -> str:
    stage = f"at {attempt['stage']}" if attempt["stage"] else None
    accepted = f"accepted for {', '.join(attempt['accepted'])}" if attempt["accepted"] else None
    parts = (attempt["ended_at"], f"try {attempt['attempt']}", attempt["verdict"], stage, attempt["reason"], attempt["relay"],
             attempt["reply"], accepted)  # fmt: skip
    return "  " + "  ".join(printable(part) for part in parts if part is not None)
