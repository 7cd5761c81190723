"""What came of a case: said in the words of the cases, with what was seen kept for whoever looks closer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.process import Daemon
from tests.support.relay import ScriptedRelay

NOT_TRIED = "nothing"


@dataclass
class Conclusion:
    """What one attempt meant for its job."""

    outcome: str
    burned: int
    """Attempts used up by then; the one that sends doesn't count."""
    line: dict[str, Any]


@dataclass
class JobResult:
    """One job of the case."""

    row: dict[str, Any] | None
    """As it was at the end; None if the database didn't take it."""
    payload: str
    conclusions: list[Conclusion] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of it."""
        return self.row is None or self.row["outcome"] is not None

    @property
    def recipients(self) -> dict[str, tuple[str, str]]:
        """Address -> word and reply, for those that the row tells apart."""
        told = (self.row or {}).get("recipients") or {}
        return {address: (_WORDS[each.get("verdict", "later")], each.get("reply") or "") for address, each in told.items()}

    @property
    def first(self) -> str:
        """What its first attempt meant."""
        return self.conclusions[0].outcome if self.conclusions else NOT_TRIED

    @property
    def last(self) -> str:
        """What it came to: its outcome, or what its last attempt meant."""
        if self.row is None:
            return "invalid"
        words = {word for word, _ in self.recipients.values()}
        if "sent" in words and len(words) > 1:
            return "partial"
        match self.row["outcome"]:
            case None:
                return self.conclusions[-1].outcome if self.conclusions else NOT_TRIED
            case "dead":
                return _dead(self.row)
            case outcome:
                return str(outcome)

    @property
    def burned(self) -> int:
        """How many attempts were used up: by the row when it is final, by the log before."""
        if self.row is None:
            return 0
        if self.is_final:
            return int(self.row["attempt"]) - int(self.row["outcome"] == "sent")
        return self.conclusions[-1].burned if self.conclusions else int(self.row["attempt"])


@dataclass
class Result:
    """Everything that was seen."""

    jobs: list[JobResult]
    relays: list[ScriptedRelay]
    daemons: list[Daemon]
    stored: int = 0
    """Messages of the case's jobs that relays took on."""
    connection: str | None = None
    """reuse or discard; None if it can't be told."""
    paused: bool = False
    lost: bool = False
    refused_to_start: bool = False

    @property
    def silent_stage(self) -> str | None:
        """The stage at which a relay first gave no readable answer; `connect` if nobody ever got through to one."""
        silences = [event["stage"] for relay in self.relays for event in relay.events.of("silence")]
        if silences:
            return str(silences[0])
        return "connect" if not any(relay.connections for relay in self.relays) and self.lost else None

    @property
    def surprises(self) -> list[str]:
        """What may never happen: bad manners towards a relay, an attempt that ends in an exception, a daemon that cries out."""
        manners = [f"violation: {event['what']}" for relay in self.relays for event in relay.violations]
        failed = [f"attempt.failed: {line.get('exception', line)}" for line in self.lines("attempt.failed")]
        cries = [f"stderr: {daemon.errors}" for daemon in self.daemons if daemon.errors and not self.refused_to_start]
        return [*manners, *failed, *cries]

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return what the daemons said under this name."""
        return [line for daemon in self.daemons for line in daemon.events(event)]


_WORDS = {"sent": "sent", "dead": "rejected", "in_doubt": "in_doubt", "later": "retry", "marked": "in_doubt"}


def _dead(row: dict[str, Any]) -> str:
    """Tell what no relay saw from what one refused; what ran out of time or workers is neither."""
    if row["reason"] in {"expired", "worker_lost", "cancelled"}:
        return str(row["reason"])
    return "invalid" if row["relay"] is None else "rejected"
