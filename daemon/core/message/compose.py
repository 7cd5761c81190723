"""From a job's payload to the bytes on the wire.

Pure and deterministic: the same arguments make the same bytes, whenever and wherever they are composed, since a job that is
tried again must be the same mail to every reader that compares. The Message-ID is made from the job's uid (ids repeat after a
failover or a restore), the Date is when the job was enqueued, the boundaries come from the uid. Bcc is in the envelope only.
What was composed is proven against what was asked before anyone may send it.

Takes time in proportion to the payload: about 0.1 ms for a short plain text, a few ms for HTML, and 0.3 s for each 10 MB of
attachments or so; what is large is better composed beside the event loop than on it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

from msgspec.structs import replace

from daemon.core import settings
from daemon.core.message import body, fields, header, plaintext
from daemon.core.message.address import Mailbox, domain_name, mailbox
from daemon.core.message.brief import Value
from daemon.core.message.message import Message, Refusal, Unbuildable, refuse
from daemon.core.message.payload import Draft, read
from daemon.core.message.proof import Asked, mismatch
from daemon.core.message.template import NO_TEMPLATES, Templates

# Postfix's default header_size_limit is 102,400: what is beyond becomes body, or is lost.
_HEAD_LIMIT = 100_000
# RFC 5321 section 4.5.3.1.1.
_LOCAL_LIMIT = 64


class _Head:
    """Header fields in order: as they are written, and as they have to be read."""

    __slots__ = ("asked", "lines")

    def __init__(self) -> None:
        self.asked: list[tuple[str, Value]] = []
        self.lines: list[str] = []

    def add(self, name: str, value: Value, line: str) -> None:
        self.asked.append((name, value))
        self.lines.append(line)

    def add_own(self, name: str, value: str) -> None:
        """Add a short value of our own making, which is printable ASCII."""
        self.add(name, value, f"{name}: {value}")

    def add_text(self, name: str, value: str) -> None:
        self.add(name, value, header.text(name, value))

    def add_mailboxes(self, name: str, boxes: tuple[Mailbox, ...]) -> None:
        if boxes:
            self.add(name, boxes, header.mailboxes(name, boxes))


def compose(
    payload: str, *, uid: UUID, created_at: datetime, defaults: settings.Mail, templates: Templates = NO_TEMPLATES
) -> Message | Unbuildable:
    """Compose the mail that a payload asks for.

    Args:
        payload: JSON text; keys from, to, cc, bcc, reply_to, subject, text, html, template, data, headers, attachments.
        uid: the job's; Message-ID, X-Job-ID and boundaries are made from it.
        created_at: when the job was enqueued, aware; becomes the Date, in UTC.
        defaults: what a payload doesn't name, which headers it may set, and the largest size.
        templates: those that a payload may name.

    Returns:
        The message, or why there can't be one. Every payload has an answer.

    Raises:
        ValueError: for a `created_at` without a time zone.
    """
    if created_at.tzinfo is None:
        raise ValueError("created_at has no time zone")
    try:
        return _message(read(payload, defaults.max_message_bytes, templates), uid, created_at, defaults)
    except Refusal as refusal:
        return refusal.unbuildable


def _message(draft: Draft, uid: UUID, created_at: datetime, defaults: settings.Mail) -> Message:
    sender = draft.sender or _default_sender(defaults)
    envelope = _envelope_sender(sender, uid, defaults)
    everyone = (*draft.to, *draft.cc, *draft.bcc)
    if not everyone:
        refuse("no_recipients", "to", "a mail needs at least one recipient in to, cc or bcc")
    right = defaults.message_id_domain
    job_uid = str(uid)
    message_id = f"<{job_uid}@{domain_name(right, 'mail.message_id_domain') if right else envelope.domain}>"
    root = _root(draft, uid)

    head = _Head()
    head.add_own("Date", header.date(created_at.astimezone(UTC)))
    head.add_mailboxes("From", (sender,))
    _add_recipients(head, draft)
    head.add_mailboxes("Reply-To", draft.reply_to)
    head.add_text("Subject", draft.subject)
    head.add_own("Message-ID", message_id)
    head.add_own("X-Job-ID", job_uid)
    _add_headers(head, draft.headers, defaults)

    octets = "\r\n".join([*head.lines, "MIME-Version: 1.0\r\n"]).encode()
    if len(octets) > _HEAD_LIMIT:
        refuse("header_too_long", "", f"the header fields have {len(octets)} octets together, {_HEAD_LIMIT} are allowed")
    content = octets + root.wire()
    if not content.endswith(b"\r\n"):
        content += b"\r\n"
    if len(content) > defaults.max_message_bytes:
        refuse("message_too_large", "", f"the message has {len(content)} octets, {defaults.max_message_bytes} are allowed")
    in_headers = (sender, *draft.to, *draft.cc, *draft.reply_to)
    asked = Asked(fields=head.asked, root=root, is_ascii=all(box.local.isascii() for box in in_headers))
    if fault := mismatch(content, asked):
        refuse("proof_failed", fault, "the finished mail does not say what the job asks for")
    return Message(
        envelope_from=envelope.address,
        recipients=tuple(dict.fromkeys(box.address for box in everyone)),
        content=content,
        message_id=message_id,
        needs_smtputf8=not (asked.is_ascii and all(box.local.isascii() for box in (envelope, *draft.bcc))),
        subject=draft.subject,
        from_domain=sender.domain,
    )


def _default_sender(defaults: settings.Mail) -> Mailbox:
    if not defaults.from_:
        refuse("no_sender", "from", "neither the job nor the configuration names a sender")
    return _configured(defaults.from_, "mail.from")


def _envelope_sender(sender: Mailbox, uid: UUID, defaults: settings.Mail) -> Mailbox:
    """Return where bounces go: with VERP an address of this job's own, which says what bounced whatever the bounce looks like."""
    if not defaults.envelope_from:
        return sender
    bounces = _configured(defaults.envelope_from, "mail.envelope_from")
    if not defaults.verp:
        return bounces
    local = f"{bounces.local}{defaults.verp_separator}{uid.hex}"
    if len(local.encode()) > _LOCAL_LIMIT:
        refuse("address_invalid", "mail.envelope_from", f"is longer than {_LOCAL_LIMIT} octets before its @ with mail.verp")
    return replace(bounces, local=local)


# A worker's configuration names the same few mailboxes for every job.
_configured = lru_cache(maxsize=8)(mailbox)


def _root(draft: Draft, uid: UUID) -> body.Part:
    text, html = draft.text, draft.html
    if html.isspace():
        html = ""
    if not html and (not text or text.isspace()):
        refuse("no_body", "text", "a mail needs text or html")
    if not html and any(file.is_inline for file in draft.attachments):
        refuse("attachment_invalid", "attachments", "an inline attachment needs html that shows it")
    text = text or plaintext.from_html(html)
    return body.tree(
        body.text_part(body.normalised(text), "plain") if text else None,
        body.text_part(body.normalised(html), "html") if html else None,
        draft.attachments,
        uid.hex,
    )


def _add_recipients(head: _Head, draft: Draft) -> None:
    head.add_mailboxes("To", draft.to)
    head.add_mailboxes("Cc", draft.cc)
    if not draft.to and not draft.cc:
        head.add("To", (), "To: undisclosed-recipients:;")


def _add_headers(head: _Head, headers: tuple[tuple[str, str], ...], defaults: settings.Mail) -> None:
    given = fields.by_lowered_name(headers)
    # RFC 3834 section 5: a responder must not answer a mail that no person wrote. A job may say that a person did.
    if "auto-submitted" not in given:
        head.add_own("Auto-Submitted", "auto-generated")
    if "x-auto-response-suppress" not in given and given.get("auto-submitted", "").lower() != "no":
        head.add_own("X-Auto-Response-Suppress", "All")
    for name, value in headers:
        if fields.is_text(name, defaults):
            head.add_text(name, value)
        else:
            head.add(name, value, header.identifiers(name, value, f"headers.{name}"))
