"""The narrator: what each line of the log means to a newcomer."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.dev.narrator import heard, told


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"event": "job.claimed", "job_id": 7, "attempt": 2}, [("claimed", "job 7, attempt 2")]),
        (
            {"event": "job.sent", "job_id": 7, "reply": "250 kept"},
            [("sent", "job 7: the relay answered “250 kept”"), ("recorded", "job 7 is sent")],
        ),
        (
            {"event": "job.deferred", "job_id": 7, "reply": "451 later", "retry_in_s": 5.2},
            [("later", "job 7: 451 later; again in 5 s")],
        ),
        (
            {"event": "job.released", "job_id": 7, "reason": "connection_closed", "reply": None, "retry_in_s": 1},
            [("back", "job 7: connection_closed; again in 1 s")],
        ),
        (
            {"event": "attempt.in_doubt", "job_id": 7, "reason": "timeout", "retry_in_s": 2},
            [("doubt", "job 7: timeout; again in 2 s")],
        ),
        ({"event": "job.dead", "job_id": 7, "reply": "550 no"}, [("dead", "job 7: 550 no")]),
        ({"event": "job.in_doubt", "job_id": 7, "reason": "timeout"}, [("in doubt", "job 7: timeout")]),
        ({"event": "job.cancelled", "job_id": 7, "reason": "cancelled"}, [("cancelled", "job 7: cancelled")]),
        ({"event": "database.connected", "failures": 0}, []),
        ({"event": "database.connected", "failures": 3}, [("database", "it answers again")]),
        ({"event": "pool.grown", "level": "debug", "size": 3}, []),
        (
            {"event": "relay.lost", "level": "warning", "relay": "inbox", "timestamp": "t", "logger": "l"},
            [("warning", "relay.lost relay=inbox")],
        ),
    ],
)
def test_line_is_told_in_words(line: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """Known events become sentences, details stay away, and what is unknown but matters is shown as it is."""
    assert told(line) == expected


def test_mail_is_told_with_its_place() -> None:
    """What arrived names subject, recipients and file."""
    line = {"event": "mail.kept", "subject": "Hello", "to": ["maya@example.org", "ben@example.org"], "path": "/in/1.eml"}
    assert heard(line, lambda path: path[1:]) == ("arrived", "“Hello” for maya@example.org, ben@example.org: in/1.eml")


def test_unanswered_mail_is_told() -> None:
    """Nobody wonders why nothing happens."""
    line = {"event": "mail.unanswered", "to": ["hang@example.org"]}
    assert heard(line, str) == ("silent", "the inbox gives no answer to the mail for hang@example.org")
