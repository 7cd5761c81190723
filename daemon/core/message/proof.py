"""Does the mail on the wire say what the job asked for, and nothing else?

Every mail is proven before it may be sent; the question is asked of the bytes, not of the code that made them.

- **wire**: line ends are CRLF and nothing else, no line is over 998 octets, no NUL, and ASCII only unless SMTPUTF8 is needed.
- **brief proof**, for the common mail that every reader reads the same: a reader of a few lines (`brief`) reads it to the last
  octet. What it can't read goes on to the full proof, so it never refuses a mail.
- **full proof**, for all else: both parsers of the standard library, the modern and the legacy one, must find the same header
  names in the same order, the same texts, mailboxes, parts, file names and octets. Bodies over 64 kB are decoded and compared
  here, and the parsers get the mail with only the first lines of them (no boundary of ours can occur inside a body).

Never changes a mail, and never accepts one that differs. A parser's own faults are not counted against a mail where they are
known; each such place says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from email import message_from_string, policy
from email.errors import MessageError
from email.header import decode_header, make_header
from email.headerregistry import AddressHeader
from email.message import Message as Parsed
from email.utils import getaddresses, unquote

import msgspec
from msgspec.structs import replace

from daemon.core.message.address import Mailbox
from daemon.core.message.body import Part
from daemon.core.message.brief import Field, decoded, is_read

# No LF but those at their ends, no end without a CR before it. It keeps something for each line, so it isn't for large mails.
_LINES = re.compile(rb"(?:.{0,998}\r\n)+")
_LINE_MAX = 998
_BARE_CR = re.compile(rb"\r[^\n]")
_LARGE = 65_536
_KEPT = 4_096
_MIME_FIELDS = ("MIME-Version", "Content-Type", "Content-Transfer-Encoding")
_FOLD = re.compile(r"\r\n(?=[ \t])")


Value = str | tuple[Mailbox, ...]
"""A field's text, or its mailboxes; both decoded."""


class Asked(msgspec.Struct, frozen=True):
    """What a mail has to say."""

    fields: Sequence[Field]
    """Header fields in order, down to MIME-Version."""
    root: Part


def mismatch(content: bytes, asked: Asked) -> str:
    """Return the name of the first thing that the mail says differently; empty when it says what was asked."""
    if fault := _wire_fault(content):
        return fault
    if content.isascii() and is_read(content, asked.fields, asked.root):
        return ""
    return _full_fault(content, asked)


def _wire_fault(content: bytes) -> str:
    if len(content) <= _LARGE and _LINES.fullmatch(content) and not _BARE_CR.search(content):
        return "octets" if 0 in content else ""
    pairs = content.count(b"\r\n")
    if content.count(b"\r") != pairs or content.count(b"\n") != pairs or not content.endswith(b"\r\n"):
        return "line ends"
    start, end = 0, len(content)
    while start < end:
        # To the last line end that a line from here may have: every line before it is shorter still.
        line_end = content.rfind(b"\r\n", start, start + _LINE_MAX + 2)
        if line_end < 0:
            return "line length"
        start = line_end + 2
    return "octets" if 0 in content else ""


def _full_fault(content: bytes, asked: Asked) -> str:
    fields = [_named(field) for field in asked.fields]
    people = [box for _, boxes in fields if not isinstance(boxes, str) for box in boxes]
    if content.isascii() != all(box.local.isascii() for box in people):
        # A mail that needs no SMTPUTF8 must not use it, and one that needs it does.
        return "octets"
    parts = list(_walk(asked.root))
    for index, part in enumerate(parts):
        if len(part.body) > _LARGE and not part.children and decoded(part.encoding, part.body) == part.data:
            parts[index] = shorter = _abridged(part)
            content = content.replace(part.body, shorter.body, 1)
    text = content.decode()
    try:
        return _fault_of(message_from_string(text, policy=policy.default), fields, parts, _read_modern) or _fault_of(
            message_from_string(text, policy=policy.compat32), fields, parts, _read_legacy
        )
    except (AssertionError, AttributeError, LookupError, MessageError, TypeError, ValueError) as error:
        # Both parsers have raised each of these on what they could not read.
        return f"parser: {type(error).__name__}"


def _walk(part: Part) -> Iterator[Part]:
    yield part
    for child in part.children:
        yield from _walk(child)


def _abridged(part: Part) -> Part:
    """Return the part with the first lines of its body only; unchanged if a boundary or anything that isn't ASCII is in it."""
    if b"=_" in part.body or not part.body.isascii():
        return part
    lines = part.body[: part.body.find(b"\r\n", _KEPT)]
    body = lines.removesuffix(b"=")
    return replace(part, body=body, data=decoded(part.encoding, body))


def _named(field: Field) -> tuple[str, Value]:
    if not isinstance(field, str):
        return field
    name, _, value = field.partition(":")
    return name, value.removeprefix(" ")


def _fault_of(
    mail: Parsed, fields: Sequence[tuple[str, Value]], parts: Sequence[Part], read: Callable[[object, Value], Value]
) -> str:
    mime = _MIME_FIELDS[:2] if parts[0].children else _MIME_FIELDS
    if mail.keys() != [*(name for name, _ in fields), *mime]:
        return "header names"
    for (name, value), found in zip(fields, mail.values(), strict=False):
        if read(found, value) != value:
            return name
    found_parts = list(mail.walk())
    if len(found_parts) != len(parts):
        return "parts"
    return next((fault for found, part in zip(found_parts, parts, strict=True) if (fault := _part_fault(found, part))), "")


def _read_modern(found: object, value: Value) -> Value:
    if isinstance(value, str) or not isinstance(found, AddressHeader):
        return str(found)
    boxes = [Mailbox(box.display_name, box.username, box.domain) for box in found.addresses]
    if len(boxes) != len(value):
        return tuple(boxes)
    # Python 3.11 and 3.12 put a blank between two encoded words of one name (against RFC 2047 section 6.2) and make one of
    # several, so that the blanks of a name are left to the legacy parser, which reads them right.
    return tuple(
        asked if found == replace(asked, name=found.name) and _unblanked(found.name) == _unblanked(asked.name) else found
        for found, asked in zip(boxes, value, strict=True)
    )


def _unblanked(name: str) -> str:
    return "".join(name.split())


def _read_legacy(found: object, value: Value) -> Value:
    written = _FOLD.sub("", str(found))
    if isinstance(value, str):
        return str(make_header(decode_header(written)))
    boxes = ((str(make_header(decode_header(name))), *address.rpartition("@")) for name, address in getaddresses([written]))
    return tuple(Mailbox(name, local, domain) for name, local, _, domain in boxes if domain)


def _part_fault(found: Parsed, part: Part) -> str:
    if found.get_content_type() != part.content_type:
        return "content type"
    # The modern parser takes quotes and angle brackets off a name that is written in percent signs, where they belong to it.
    if (found.get_filename() or "") not in {part.filename, unquote(part.filename).strip()}:
        return "file name"
    if (found["Content-ID"] or "") != (f"<{part.content_id}>" if part.content_id else ""):
        return "content id"
    data = found.get_payload(decode=True)
    return "" if (data or b"") == part.data else "body"
