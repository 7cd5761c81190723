"""One job that somebody wants to save, as a line of JSON.

A line is an envelope, `{"payload": {..}, "queue": .., ..}`, with the arguments of mailslot.enqueue(); or, without the key
`payload`, the payload itself. The payload's text is kept as it was written: what the database stores is what was given, not what
a parser made of it. `read` and `checked` say everything that the database or a worker would object to later, while the one who
wrote the line still looks. Pure; flaws are values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from daemon.cli import times
from daemon.core.message import Unbuildable

Fault = Callable[[str], Unbuildable | None]

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(3000, 1, 1, tzinfo=UTC)
"""The table's own bounds for available_at and expires_at."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,100}\Z")]
OnDoubt = Literal["resend", "hold", "assume_sent"]


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of mailslot.enqueue(), with its defaults; times are ISO 8601 or relative, null as in the function."""

    payload: msgspec.Raw
    queue: Name = "default"
    idempotency_key: Annotated[str, Meta(pattern=r"^[^\x00]*\Z", min_length=1, max_length=500)] | None = None
    available_at: str | None = None
    expires_at: str | None = None
    priority: Annotated[int, Meta(ge=0, le=3)] = 1
    on_doubt: OnDoubt = "resend"
    kind: Name = "email"
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 100
    traceparent: Annotated[str, Meta(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")] | None = None
    relay: Name | None = None


class _Probe(msgspec.Struct, frozen=True):
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a line can't be saved: the key at fault (empty: the line), and a sentence."""

    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}" if self.field else self.detail


class Columns(NamedTuple):
    """A job in the order of the statement's arguments."""

    payload: str
    queue: str
    idempotency_key: str | None
    available_at: datetime | None
    expires_at: datetime | None
    priority: int
    on_doubt: str
    kind: str
    max_attempts: int
    traceparent: str | None
    relay: str | None


DEFAULTS = Columns("", "default", None, None, None, 1, "resend", "email", 100, None, None)
"""What a column has that nobody has asked for; there is no default payload."""


def columns_of(jobs: Sequence[Columns]) -> list[list[object] | None]:
    """Return the jobs column by column, None for one in which all have the default."""
    turned = zip(DEFAULTS, zip(*jobs, strict=True), strict=True)
    return [None if column.count(default) == len(column) else list(column) for default, column in turned]


def read(line: bytes) -> NewJob | Flaw:
    """Return the job that a line of JSON asks for, or what is wrong with the line."""
    try:
        if msgspec.json.decode(line, type=_Probe).payload is msgspec.UNSET:
            return NewJob(payload=msgspec.Raw(line))
        return msgspec.json.decode(line, type=NewJob)
    except msgspec.ValidationError as error:
        sentence, _, path = str(error).partition(" - at ")
        return Flaw(path.strip("`").removeprefix("$.").removeprefix("$"), sentence)
    except (msgspec.DecodeError, RecursionError) as error:
        return Flaw("", f"not a line of JSON: {error}")


def checked(job: NewJob, now: datetime, max_payload_bytes: int, fault: Fault) -> Columns | Flaw:
    """Return what to save, or what would keep this job from ever being sent.

    `now` is the database's clock; `fault` says why a worker with this configuration couldn't build the mail. The payload of
    another kind than email is its handler's business; here it only has to be a JSON object of a size that workers accept.
    """
    octets = bytes(job.payload)
    payload = octets.decode("utf-8", "surrogateescape").strip()
    available = _instant(job.available_at, "available_at", now)
    if isinstance(available, Flaw):
        return available
    expires = _instant(job.expires_at, "expires_at", now)
    if isinstance(expires, Flaw):
        return expires
    if expires is not None and expires <= (available or now):
        return Flaw("expires_at", "isn't later than available_at: the job would end without having been sent")
    if len(octets) > max_payload_bytes:
        return Flaw("payload", f"is longer than the {max_payload_bytes} bytes that workers accept (mail.max_payload_bytes)")
    if flaw := _payload_flaw(job.kind, payload, fault):
        return flaw
    return Columns(payload, job.queue, job.idempotency_key, available, expires, job.priority, job.on_doubt, job.kind,
                   job.max_attempts, job.traceparent, job.relay)  # fmt: skip


def _instant(text: str | None, field: str, now: datetime) -> datetime | Flaw | None:
    if text is None:
        return None
    try:
        instant = times.resolve(times.parse(text), now)
    except ValueError as error:
        return Flaw(field, str(error))
    if not EARLIEST <= instant <= LATEST:
        return Flaw(field, f"must lie between {EARLIEST:%Y} and {LATEST:%Y}")
    return instant


def _payload_flaw(kind: str, payload: str, fault: Fault) -> Flaw | None:
    if kind != "email":
        return None if payload.startswith("{") else Flaw("payload", "must be a JSON object")
    why = fault(payload)
    return None if why is None else Flaw(why.field, why.detail)
