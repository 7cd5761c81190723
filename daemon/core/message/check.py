"""Could a mail be built from this payload? What `compose` would answer, mostly without composing.

For whoever takes many payloads and keeps no mail. Nearly every fault shows when a payload is read, 5 microseconds of the 39
that composing takes. What is left are the limits of the whole mail, the configured sender, and the proof; and a mail of a
simple shape can fail none of them: short values of plain ASCII in its header, and below it one text of moderate length, which
is written in one of three encodings whatever it holds. Whether the sender can be used is asked once, with such a mail. All else
is composed and proven.
"""

from __future__ import annotations

import re
from datetime import datetime
from uuid import UUID

from daemon.core import settings
from daemon.core.message.address import Mailbox
from daemon.core.message.characters import is_plain
from daemon.core.message.compose import compose
from daemon.core.message.message import Message, Refusal, Unbuildable
from daemon.core.message.payload import Draft, read
from daemon.core.message.template import Templates

_ANY_UID = UUID(int=0)
"""Composing needs a uid; what can be built with one can be built with any."""
_NAME = re.compile(r"[A-Za-z0-9]+(?: [A-Za-z0-9]+)*")
_NAME_LIMIT = 40
_SUBJECT_LIMIT = 60
_MAILBOXES_LIMIT = 100
_TEXT_LIMIT = 65_536
_HEAD_BYTES = 65_536
"""More than the header of such a mail can have."""
_BYTES_A_CHARACTER = 14
"""Four octets in UTF-8, each of them three in quoted-printable, and the soft line breaks."""


class Check:
    """Asks about payloads under one configuration; `now` is the time that messages made for the question are dated with."""

    def __init__(self, defaults: settings.Mail, templates: Templates, now: datetime) -> None:
        self._defaults = defaults
        self._templates = templates
        self._now = now
        self._room = min(_TEXT_LIMIT, (defaults.max_message_bytes - _HEAD_BYTES) // _BYTES_A_CHARACTER)
        self._can_send: dict[bool, bool] = {}

    def fault(self, payload: str) -> Unbuildable | None:
        """Return why no mail can be built from this JSON text, exactly as `compose` says it; None if one can."""
        try:
            draft = read(payload, self._defaults.max_message_bytes, self._templates)
        except Refusal as refusal:
            return refusal.unbuildable
        if _is_simple(draft, self._room) and self._can_be_sent(has_sender=draft.sender is not None):
            return None
        return self._composed(payload)

    def _can_be_sent(self, *, has_sender: bool) -> bool:
        if has_sender not in self._can_send:
            sender = '"from": "a@example.org", ' if has_sender else ""
            self._can_send[has_sender] = self._composed(f'{{{sender}"to": "a@example.org", "text": "a"}}') is None
        return self._can_send[has_sender]

    def _composed(self, payload: str) -> Unbuildable | None:
        answer = compose(payload, uid=_ANY_UID, created_at=self._now, defaults=self._defaults, templates=self._templates)
        return None if isinstance(answer, Message) else answer


def _is_simple(draft: Draft, room: int) -> bool:
    if draft.html or draft.headers or draft.attachments or not draft.text or draft.text.isspace() or len(draft.text) > room:
        return False
    subject = draft.subject
    if len(subject) > _SUBJECT_LIMIT or not is_plain(subject) or "=?" in subject or subject != subject.strip():
        return False
    recipients = (*draft.to, *draft.cc, *draft.bcc)
    boxes = (*recipients, *draft.reply_to) if draft.sender is None else (draft.sender, *recipients, *draft.reply_to)
    return bool(recipients) and len(boxes) <= _MAILBOXES_LIMIT and all(map(_is_simple_mailbox, boxes))


def _is_simple_mailbox(box: Mailbox) -> bool:
    return box.local.isascii() and (not box.name or (len(box.name) <= _NAME_LIMIT and _NAME.fullmatch(box.name) is not None))
