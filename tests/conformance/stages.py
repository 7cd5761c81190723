"""Writes `cases/stages.json`: every stage of a conversation x every way in which a relay can fail at it.

    python -m tests.conformance.stages

The table below is the outcome policy in short, one row a stage, one column a failure; the daemon's own table isn't looked at.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "cases" / "stages.json"

FREE, PAUSE, RETRY, REJECTED, DOUBT = "retry_free", "pause_transport", "retry", "rejected", "in_doubt"
FAILURES: Final = ("4xx", "5xx", "421", "close", "reset", "hang", "garbage")
# fmt: off
TABLE: Final = {
    #             4xx    5xx       421    close  reset  hang   garbage
    "greeting": (FREE,  FREE,     FREE,  FREE,  FREE,  FREE,  FREE),
    "ehlo":     (FREE,  PAUSE,    FREE,  FREE,  FREE,  FREE,  FREE),
    "starttls": (FREE,  PAUSE,    FREE,  FREE,  FREE,  FREE,  FREE),
    "auth":     (FREE,  PAUSE,    FREE,  FREE,  FREE,  FREE,  FREE),
    "mail":     (RETRY, REJECTED, FREE,  FREE,  FREE,  FREE,  FREE),
    "rcpt":     (RETRY, REJECTED, FREE,  FREE,  FREE,  FREE,  FREE),
    "data":     (RETRY, REJECTED, FREE,  FREE,  FREE,  FREE,  FREE),
    "body":     (RETRY, REJECTED, RETRY, RETRY, RETRY, RETRY, FREE),
    "dot":      (RETRY, REJECTED, RETRY, DOUBT, DOUBT, DOUBT, DOUBT),
}
# fmt: on
TEXTS: Final = {
    "4xx": "451 4.3.0 not now",
    "5xx": "550 5.0.0 never",
    "421": "421 4.3.2 closing down",
    "garbage": "what was that?",
}
REFUSALS: Final = {
    "greeting": "554 5.3.0 nobody is served here",
    "starttls": "501 5.5.4 no TLS for you",
    "auth": "535 5.7.8 wrong password",
    "rcpt": "550 5.1.1 nobody of that name",
}
ENDS: Final = {"close": "close", "reset": "rst", "hang": "hang"}
CONNECT: Final = {"refused": {"refuse": True}} | {name: {"connect": {"then": end}} for name, end in ENDS.items()}
WHY: Final = {
    FREE: "Nothing was sent and nothing was said about the mail: no attempt is used up.",
    PAUSE: "The relay would refuse every mail so: it rests, and the jobs wait unharmed.",
    RETRY: "It was said about this mail, or its body made the relay drop: an attempt is used up.",
    REJECTED: "A refusal for good is tried once.",
    DOUBT: "The dot was written and nobody knows what became of it: a person has to say.",
}


def cases() -> list[dict[str, Any]]:
    """Return all cases of the table."""
    made = [_case("connect", name, behaviour, FREE) for name, behaviour in CONNECT.items()]
    for stage, row in TABLE.items():
        for failure, outcome in zip(FAILURES, row, strict=True):
            made.append(_case(stage, failure, _behaviour(stage, failure), outcome))
    return made


def _case(stage: str, failure: str, behaviour: dict[str, Any], outcome: str) -> dict[str, Any]:
    expected: dict[str, Any] = {"outcome": outcome, "server_accepts": int(outcome == DOUBT)}
    expected["attempts_burned"] = int(outcome in {RETRY, REJECTED, DOUBT})
    if stage in {"mail", "rcpt", "data", "dot"}:
        expected["connection"] = "reuse" if failure in {"4xx", "5xx"} else "discard"
    if stage == "body":
        expected["connection"] = "discard"
    return {
        "id": f"stage-{stage}-{failure}",
        "kind": f"stage_{stage}",
        "smtp_behaviour": behaviour,
        "expected": expected,
        "why": WHY[outcome],
    }


def _behaviour(stage: str, failure: str) -> dict[str, Any]:
    if failure in ENDS:
        step: Any = {"reply": None, "then": ENDS[failure]}
    else:
        step = REFUSALS.get(stage, TEXTS["5xx"]) if failure == "5xx" else TEXTS[failure]
    if stage == "body":
        return {"during_body": {"after_bytes": 1000, **(step if isinstance(step, dict) else {"reply": step})}}
    if stage == "dot" and failure in {*ENDS, "garbage"}:
        step = {**(step if isinstance(step, dict) else {"reply": step}), "server_stores_message": True}
    return {stage: step}


def text() -> str:
    """Return what the file has to say: one case a line."""
    lines = ",\n".join(json.dumps(case) for case in cases())
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    FILE.write_text(text())
