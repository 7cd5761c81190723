"""One job's fixed circumstances, so that every test of this folder says only what is special about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from uuid import UUID

from daemon.core import settings
from daemon.core.message import Message, Unbuildable, compose

UID = UUID("0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d")
CREATED_AT = datetime(2025, 12, 1, 7, 30, tzinfo=UTC)
DEFAULTS = settings.Mail(from_="Example Team <team@example.org>")


def outcome_of(payload: object, defaults: settings.Mail = DEFAULTS, /) -> Message | Unbuildable:
    """Compose from a payload as it is; text is taken for JSON."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return compose(text, uid=UID, created_at=CREATED_AT, defaults=defaults)


def composed(defaults: settings.Mail = DEFAULTS, /, **payload: object) -> Message:
    """Compose a mail to Ann, changed by the arguments, that must succeed."""
    found = outcome_of({"to": ["ann@example.org"], "text": "Hello\n"} | payload, defaults)
    assert isinstance(found, Message), str(found)
    return found


def refused(defaults: settings.Mail = DEFAULTS, /, **payload: object) -> Unbuildable:
    """Compose a mail to Ann, changed by the arguments, that must be refused."""
    found = outcome_of({"to": ["ann@example.org"], "text": "Hello\n"} | payload, defaults)
    assert isinstance(found, Unbuildable), found
    return found


def lines_of(message: Message, name: str) -> str:
    """Return a header field as it is on the wire, folds included."""
    head = message.content.partition(b"\r\n\r\n")[0].decode()
    fields = head.replace("\r\n ", "\0").split("\r\n")
    [field] = [field for field in fields if field.startswith(f"{name}:")]
    return field.replace("\0", "\r\n ")


def parsed(message: Message) -> EmailMessage:
    """Read the content with the modern parser."""
    mail = message_from_bytes(message.content, policy=policy.default)
    assert isinstance(mail, EmailMessage)
    return mail
