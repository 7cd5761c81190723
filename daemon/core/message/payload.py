"""From the job's JSON text to a draft: every key known, every value of its type, every address checked.

Promises that what comes out can be written down by the rules of the other modules; what can't is refused with the path of the
first field at fault. Null means absent. One mailbox a string: a comma never makes two of one.
"""

from __future__ import annotations

import binascii
import re

import msgspec

from daemon.core.message.address import Mailbox, mailbox
from daemon.core.message.characters import require_clean, require_header
from daemon.core.message.message import refuse
from daemon.core.message.template import Rendered, Templates, filled_in, is_named

_KEYS = frozenset(
    {"from", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "template", "data", "headers", "attachments"},
)
_ATTACHMENT_KEYS = frozenset({"filename", "content_b64", "content", "content_type", "cid", "inline"})

# Ours: what one mail can honestly need; each costs time to write and to prove, while the worker's other jobs wait.
_MAILBOXES_LIMIT = 1_000
_HEADERS_LIMIT = 200
_ATTACHMENTS_LIMIT = 200
_FILE_NAME_LIMIT = 255
_WORD = "[a-z0-9][a-z0-9!#$&^_.+-]{0,63}"
_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:; ?(?:charset|method)=[a-z0-9._-]{{1,40}}){{0,2}}")
_CONTENT_ID = re.compile(r"[A-Za-z0-9!#$&'*+/^_.~-]{1,120}(?:@[A-Za-z0-9.-]{1,120})?")
# Direction overrides make `exe.fdp` look like `pdf.exe` backwards; in a file name they have no honest use.
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Attachment(msgspec.Struct, frozen=True):
    """One file, decoded; `filename` and `content_id` may be empty."""

    filename: str
    content_type: str
    content_id: str
    is_inline: bool
    data: bytes


class Draft(msgspec.Struct, frozen=True):
    """A payload whose every field is checked by itself."""

    sender: Mailbox | None
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    bcc: tuple[Mailbox, ...]
    reply_to: tuple[Mailbox, ...]
    subject: str
    text: str
    html: str
    headers: tuple[tuple[str, str], ...]
    attachments: tuple[Attachment, ...]


def read(payload: str, max_message_bytes: int, templates: Templates) -> Draft:
    """Read a draft from JSON text; a template that it names is filled in.

    Raises:
        Refusal: with the first fault.
    """
    raw = _decode(payload)
    if not isinstance(raw, dict):
        refuse("not_an_object", "", "the payload must be a JSON object")
    if not _KEYS.issuperset(raw):
        refuse("unknown_key", min(raw.keys() - _KEYS), f"is no key of a mail; known are {', '.join(sorted(_KEYS))}")
    texts = filled_in(raw, templates, max_message_bytes) if is_named(raw) else _own_texts(raw)
    text, html = texts.text or "", texts.html or ""
    if len(text) + len(html) > max_message_bytes:
        refuse("message_too_large", "text", f"text and html have {len(text) + len(html)} characters")
    sender = raw.get("from")
    return Draft(
        sender=None if sender is None else mailbox(sender, "from"),
        to=_mailboxes(raw, "to"),
        cc=_mailboxes(raw, "cc"),
        bcc=_mailboxes(raw, "bcc"),
        reply_to=_mailboxes(raw, "reply_to"),
        subject=require_header(texts.subject, "subject"),
        text=text,
        html=html,
        headers=_headers(raw.get("headers")),
        attachments=_attachments(raw.get("attachments"), max_message_bytes),
    )


def _decode(payload: str) -> object:
    try:
        # Strict about Unicode: no string of what it returns holds a lone surrogate.
        return msgspec.json.decode(payload)
    except UnicodeEncodeError:
        refuse("text_invalid", "", "the payload holds a lone surrogate")
    except msgspec.DecodeError as error:
        reason = "text_invalid" if "surrogate" in str(error) else "not_json"
        refuse(reason, "", str(error))
    except RecursionError:
        refuse("not_json", "", "the payload is nested too deeply")


def _own_texts(raw: dict[str, object]) -> Rendered:
    return Rendered(_string(raw.get("subject"), "subject"), _string(raw.get("text"), "text"), _string(raw.get("html"), "html"))


def _string(value: object, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        refuse("wrong_type", field, "must be a string")
    return value


def _list(value: object, field: str, limit: int) -> list[object]:
    if not isinstance(value, list):
        refuse("wrong_type", field, "must be a list")
    if len(value) > limit:
        refuse("too_many", field, f"{len(value)} in one list, {limit} are allowed")
    return value


def _mailboxes(raw: dict[str, object], field: str) -> tuple[Mailbox, ...]:
    if field not in raw or (value := raw[field]) is None:
        return ()
    if isinstance(value, str | dict):
        return (mailbox(value, field),)
    return tuple([mailbox(item, f"{field}[{index}]") for index, item in enumerate(_list(value, field, _MAILBOXES_LIMIT))])


def _headers(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        refuse("wrong_type", "headers", "must be an object of names and strings")
    if len(value) > _HEADERS_LIMIT:
        refuse("too_many", "headers", f"{len(value)} header fields, {_HEADERS_LIMIT} are allowed")
    for name, content in value.items():
        if not isinstance(content, str):
            refuse("wrong_type", f"headers.{name}", "must be a string")
        require_clean(name, f"headers.{name}")
        require_header(content, f"headers.{name}")
    return tuple(value.items())


def _attachments(value: object, max_message_bytes: int) -> tuple[Attachment, ...]:
    if value is None:
        return ()
    items = _list(value, "attachments", _ATTACHMENTS_LIMIT)
    room = max_message_bytes
    attachments = []
    content_ids = set()
    for index, item in enumerate(items):
        field = f"attachments[{index}]"
        attachment = _attachment(item, field, room)
        # Base64 takes four octets for three, so the message can't be smaller than this.
        room -= len(attachment.data) // 3 * 4
        if attachment.content_id in content_ids:
            refuse("attachment_invalid", f"{field}.cid", "is the cid of two attachments")
        if attachment.content_id:
            content_ids.add(attachment.content_id)
        attachments.append(attachment)
    return tuple(attachments)


def _attachment(value: object, field: str, room: int) -> Attachment:
    if not isinstance(value, dict):
        refuse("wrong_type", field, "must be an object")
    if unknown := value.keys() - _ATTACHMENT_KEYS:
        refuse("unknown_key", f"{field}.{min(unknown)}", f"an attachment has {', '.join(sorted(_ATTACHMENT_KEYS))}")
    is_inline = value.get("inline")
    if not isinstance(is_inline, bool | None):
        refuse("wrong_type", f"{field}.inline", "must be true or false")
    content_id = _string(value.get("cid"), f"{field}.cid")
    if content_id and not _CONTENT_ID.fullmatch(content_id):
        refuse("attachment_invalid", f"{field}.cid", "must be words and dots, with at most one @")
    if is_inline and not content_id:
        refuse("attachment_invalid", f"{field}.cid", "an inline attachment needs a cid that the html names")
    return Attachment(
        filename=_file_name(_string(value.get("filename"), f"{field}.filename"), f"{field}.filename"),
        content_type=_content_type(_string(value.get("content_type"), f"{field}.content_type"), f"{field}.content_type"),
        content_id=content_id,
        is_inline=bool(is_inline),
        data=_data(value, field, room),
    )


def _file_name(value: str, field: str) -> str:
    if not value:
        return ""
    name = _DIRECTION.sub("", require_clean(value, field)).replace("\\", "/").rpartition("/")[2].strip()
    if name in {"", ".", ".."}:
        refuse("attachment_invalid", field, "names no file")
    if len(name.encode()) > _FILE_NAME_LIMIT:
        refuse("attachment_invalid", field, f"is longer than {_FILE_NAME_LIMIT} octets")
    return name


def _content_type(value: str, field: str) -> str:
    content_type = value.lower() or "application/octet-stream"
    if not _TYPE.fullmatch(content_type):
        refuse("attachment_invalid", field, "must be type/subtype, with no parameters but charset and method")
    if content_type.startswith(("multipart/", "message/")):
        # Neither may be written in base64 (RFC 2046 sections 5.1 and 5.2.1), and a mail in a mail has headers of its own.
        refuse("attachment_invalid", field, "a mail can't be attached under this type; use application/octet-stream")
    return content_type


def _data(value: dict[str, object], field: str, room: int) -> bytes:
    if value.get("content_b64") is not None and value.get("content") is not None:
        refuse("attachment_invalid", f"{field}.content", "is given twice, also as content_b64")
    key = "content" if value.get("content") is not None else "content_b64"
    encoded = value.get(key)
    if not isinstance(encoded, str):
        refuse("wrong_type", f"{field}.{key}", "must be a string of base64")
    encoded = "".join(encoded.split())
    if len(encoded) > room:
        refuse("message_too_large", f"{field}.{key}", "the attachments are larger than a message may be")
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        # binascii.Error for a wrong form, ValueError for what isn't ASCII.
        refuse("attachment_invalid", f"{field}.{key}", "is not base64")
