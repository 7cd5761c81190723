"""How long things take here, against how long they take in earnest.

A case speaks in the seconds of the shipped defaults: an answer that comes after 90 s, a limit of 600 s. A run has shorter limits,
and each delay keeps its proportion to the limit that it is measured against. What is longer than every limit is cut: nobody waits
for it to its end. Outages of the database are measured against the lease.
"""

from __future__ import annotations

from typing import Any, Final

from daemon.core import settings

RELAY: Final[dict[str, Any]] = {
    "tls": "none",
    "ehlo_name": "client.example.org",
    "connect_timeout_s": 2.0,
    "command_timeout_s": 2.0,
    "data_timeout_s": 2.0,
    "body_timeout_s": 2.0,
    "dot_timeout_s": 3.0,
    "quit_timeout_s": 0.5,
    "idle_s": 5.0,
    "probe_first_s": 0.02,
    "probe_max_s": 0.08,
    "pause_s": 1.0,
}
LEASE: Final[dict[str, Any]] = {
    "duration_s": 2.0,
    "heartbeat_s": 0.4,
    "heartbeat_timeout_s": 0.4,
    "margin_s": 0.3,
    "takeover_grace_s": 0.8,
    "in_doubt_delay_s": 6.2,
    "hard_cap_s": 60.0,
}
DATABASE: Final[dict[str, Any]] = {"connect_timeout_s": 0.5, "command_timeout_s": 1.0, "reconnect_max_s": 0.2}
WORKER: Final[dict[str, Any]] = {
    "poll_interval_s": 0.1,
    "rescan_interval_s": 0.3,
    "sweep_interval_s": 0.3,
    "drain_timeout_s": 5.0,
    "reply_grace_s": 5.0,
}
LONGEST_OUTAGE_S: Final = 3.0
"""Of a relay that takes no connections: by then it was tried some twenty times."""

_IN_EARNEST: Final = settings.Relay(name="shipped", host="localhost")
_LIMITS: Final = {
    **dict.fromkeys(("connect", "greeting", "ehlo", "ehlo_after_tls", "helo", "starttls", "tls", "auth"), "connect_timeout_s"),
    **dict.fromkeys(("mail", "rcpt", "rset"), "command_timeout_s"),
    "data": "data_timeout_s",
    "during_body": "body_timeout_s",
    **dict.fromkeys(("dot", "dot_by_rcpt"), "dot_timeout_s"),
    "quit": "quit_timeout_s",
}


def limit_s(stage: str) -> float:
    """Return how long the daemon waits at a stage in a run."""
    return float(RELAY[_LIMITS[stage]])


def scaled_s(seconds: float, stage: str) -> float:
    """Return how long a delay of so many seconds at a stage is in a run."""
    shipped: float = getattr(_IN_EARNEST, _LIMITS[stage])
    limit = limit_s(stage)
    return min(seconds * limit / shipped, 2.5 * limit)


def idle_s(seconds: float) -> float:
    """Return how long a connection is idle in a run: a second stands for a minute, or for anything longer."""
    return min(seconds / 60.0, 1.0)


def outage_s(seconds: float) -> float:
    """Return how long an outage of a relay lasts in a run."""
    return min(scaled_s(seconds, "connect"), LONGEST_OUTAGE_S)


def database_s(seconds: float) -> float:
    """Return how long a fault of the database lasts in a run: long enough to be noticed, and no longer than is worth waiting."""
    return min(max(seconds * float(LEASE["duration_s"]) / settings.Lease().duration_s, 0.5), 2 * LONGEST_OUTAGE_S)
