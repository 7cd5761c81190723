"""What does a line of the daemon's log, or of the inbox, mean to somebody who sees it for the first time?

Turns one JSON object into lines for people, each a word and a sentence. Pure: no clock, no file, no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Line = Mapping[str, Any]
Told = tuple[str, str]
"""A word that says what happened, and the sentence beside it."""

UNINTERESTING = frozenset({"timestamp", "level", "event", "logger", "owner"})


def told(line: Line) -> list[Told]:
    """Return what to show for a line of the daemon's log; nothing for details that nobody asked for."""
    tell = TELLINGS.get(line.get("event", ""))
    if tell is not None:
        return tell(line)
    if line.get("level") == "debug":
        return []
    fields = " ".join(f"{key}={value}" for key, value in line.items() if key not in UNINTERESTING)
    return [(line.get("level", ""), f"{line.get('event', '')} {fields}".rstrip())]


def heard(line: Line, shown: Callable[[str], str]) -> Told:
    """Return what to show for a line of the inbox; `shown` shortens a path for the person's eyes."""
    recipients = ", ".join(line["to"])
    if line["event"] == "mail.unanswered":
        return ("silent", f"the inbox gives no answer to the mail for {recipients}")
    return ("arrived", f"“{line['subject']}” for {recipients}: {shown(line['path'])}")


def _job(line: Line) -> str:
    return f"job {line.get('job_id')}"


def _why(line: Line) -> str:
    return str(line.get("reply") or line.get("reason") or "no reason was given")


def _again(line: Line) -> str:
    return f"{_job(line)}: {_why(line)}; again in {line.get('retry_in_s', 0):.0f} s"


def _ended(line: Line) -> list[Told]:
    return [(str(line["event"]).removeprefix("job.").replace("_", " "), f"{_job(line)}: {_why(line)}")]


def _sent(line: Line) -> list[Told]:
    return [("sent", f"{_job(line)}: the relay answered “{_why(line)}”"), ("recorded", f"{_job(line)} is sent")]


def _connected(line: Line) -> list[Told]:
    return [("database", "it answers again")] if line.get("failures") else []


TELLINGS: Mapping[str, Callable[[Line], list[Told]]] = {
    "database.connected": _connected,
    "daemon.ready": lambda line: [("ready", f"the daemon takes {line.get('concurrency')} jobs at a time")],
    "daemon.stopped": lambda _line: [("stopped", "the daemon has ended")],
    "drain.begun": lambda _line: [("drain", "no more jobs are claimed; what is on its way is finished")],
    "drain.ended": lambda _line: [],
    "job.claimed": lambda line: [("claimed", f"{_job(line)}, attempt {line.get('attempt')}")],
    "job.sent": _sent,
    "job.deferred": lambda line: [("later", _again(line))],
    "job.released": lambda line: [("back", _again(line))],
    "attempt.in_doubt": lambda line: [("doubt", _again(line))],
    "job.dead": _ended,
    "job.in_doubt": _ended,
    "job.cancelled": _ended,
}
