"""From `job` to the rows that an application would save, and to the settings that it implies.

`batch` is a list of addresses (a job each, one after the other), `count` so many jobs alike. `template` with `context` takes the
place of subject, text and html. `transport` says what the relay's configuration, or the mail's, is. The rest goes into the
payload as it is: whether it is a mail is for the daemon to say.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from daemon.core import settings
from tests.conformance.aliases import plain_job, plain_transport
from tests.conformance.casefile import CannotExpressError, Case

PAYLOAD_KEYS: Final = frozenset(
    {"from", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "headers", "attachments", "template", "data"}
)
OPTIONS: Final = frozenset({"on_doubt", "max_attempts", "priority", "queue", "relay", "idempotency_key"})
SENDERS: Final = frozenset({"envelope_from", "mail_from", "return_path", "bounce"})
HELLO_NAMES: Final = frozenset({"helo", "helo_name", "ehlo", "local_hostname"})
BOUNCES: Final = "bounces@example.org"
USERNAME: Final = "mailslot"
LARGE_CHARACTERS: Final = 400_000

_RELAY_KEYS: Final = frozenset(info.name for info in msgspec.structs.fields(settings.Relay))
_MAIL_KEYS: Final = frozenset(info.encode_name for info in msgspec.structs.fields(settings.Mail))


@dataclass
class Work:
    """What is to be enqueued, and under which configuration."""

    payloads: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    expires_in_s: float = 86_400.0
    mail: dict[str, Any] = field(default_factory=lambda: {"from": "team@example.org", "envelope_from": BOUNCES})
    relay: dict[str, Any] = field(default_factory=dict)
    password: str = "secret"
    signs: bool = False


def work(case: Case, *, large: bool = False) -> Work:
    """Understand a case's job; `large` makes its text longer than what a kernel takes for a reader who has stopped.

    Raises:
        CannotExpressError: it has a key without a meaning here.
    """
    job = plain_job(case.job)
    made = Work([])
    batch, count = job.pop("batch", None), int(job.pop("count", 1))
    _transport(plain_transport(job.pop("transport", None) or {}), made)
    for key in list(job):
        if key in OPTIONS:
            made.options[key] = job.pop(key)
        elif key == "expires_in_s":
            made.expires_in_s = float(job.pop(key))
        elif key in SENDERS:
            made.mail["envelope_from"] = job.pop(key)
    if case.holds_doubt:
        made.options.setdefault("on_doubt", "hold")
    if "context" in job:
        job["data"] = job.pop("context")
    if job.get("template") is not None:
        job |= dict.fromkeys(("subject", "text", "html"))
    if unknown := job.keys() - PAYLOAD_KEYS:
        raise CannotExpressError(f"job.{min(unknown)}")
    if large:
        job["text"] = (job.get("text") or "") + "Nobody reads this line to its end.\n" * (LARGE_CHARACTERS // 35)
    each = [job] * count if batch is None else [{**job, **(to if isinstance(to, dict) else {"to": [to]})} for to in batch]
    made.payloads = [json.dumps(payload) for payload in each]
    return made


def _transport(said: dict[str, Any], made: Work) -> None:
    for key, value in said.items():
        if key == "dkim":
            made.signs = bool(value)
        elif key == "password":
            made.password = str(value)
        elif key in HELLO_NAMES:
            made.relay["ehlo_name"] = value
        elif key in SENDERS:
            made.mail["envelope_from"] = value
        elif key in _RELAY_KEYS:
            made.relay[key] = value
        elif key in _MAIL_KEYS:
            made.mail[key] = value
        else:
            raise CannotExpressError(f"job.transport.{key}")
