"""A job as a worker holds it: what the claim returned."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec


class Job(msgspec.Struct, frozen=True):
    """One claimed row: one message to one envelope, under one lease."""

    id: int
    uid: UUID
    token: UUID
    queue: str
    kind: str
    priority: int
    payload: str | None
    """The payload as JSON text; None when it is too large to travel with the claim."""
    payload_bytes: int
    recipients: str | None
    """Verdicts of earlier attempts as JSON text, address -> {verdict, reply, doubted, assumed}; None when there are none."""
    attempt: int
    """Counts this attempt."""
    max_attempts: int
    crashes: int
    doubts: int
    on_doubt: str
    created_at: datetime
    available_at: datetime
    expires_at: datetime
    traceparent: str | None = None
    relay_wanted: str | None = None
    """The one relay that it may be sent through; None leaves that to its queue."""
    taken_over: bool = False
