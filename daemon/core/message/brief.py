"""A reader of mail in a few lines, for the mails that every reader reads the same.

These are mails whose header fields are printable ASCII without `=?`, and whose parts are texts, files with plain names, and
multiparts of those. The reader shares nothing with the writer: it unfolds the fields, splits mailboxes and parameters, cuts parts
at their boundaries, decodes every body, and compares all of it with what was asked. It is no second opinion in the way of the
parsers of the standard library, and costs a fiftieth of them. It says yes only for what it has read to the last octet; at
everything else it says that it doesn't know, so that it never refuses a mail. Who asks then asks those parsers (`proof`).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

from daemon.core.message.address import Mailbox
from daemon.core.message.body import Part

Value = str | tuple[Mailbox, ...]
"""A field's text, or its mailboxes; both decoded."""

_BLANK = b"\r\n\r\n"
_VERSION = "MIME-Version: 1.0"
_MAILBOX = re.compile(r"(?:(?P<name>[A-Za-z0-9 !#$%&'*+/=?^_`{|}~-]+) <(?P<boxed>[^<>, ]+)>|(?P<bare>[^<>, ]+))")
_VALUE = re.compile(r'(?P<value>[a-z0-9!#$&^_.+/-]+)(?P<parameters>(?:; [a-z]+=(?:[a-z0-9._-]+|"[^"\\;]*"))*)')
_PARAMETER = re.compile(r'; ([a-z]+)=(?:([a-z0-9._-]+)|"([^"\\;]*)")')
_DISPOSITIONS = frozenset({"attachment", "inline"})
_ENDS = frozenset({b"--", b"--\r\n"})
_TEXT = {"charset": "utf-8"}
_PART_FIELDS = frozenset({"Content-Type", "Content-Transfer-Encoding", "Content-Disposition", "Content-ID"})


def is_read(content: bytes, fields: Sequence[tuple[str, Value]], root: Part) -> bool:
    """Tell whether a mail was read and says what was asked; False means nothing against it."""
    head, _, body = content.partition(_BLANK)
    if b"=?" in head or not head.isascii():
        return False
    lines = head.decode("ascii").replace("\r\n ", " ").split("\r\n")
    count = len(fields)
    if len(lines) <= count or lines[count] != _VERSION or not "".join(lines).isprintable():
        return False
    for line, (name, value) in zip(lines, fields, strict=False):
        if not (line == f"{name}:{value and ' '}{value}" if isinstance(value, str) else _names(line, name, value)):
            return False
    return _is_part(lines[count + 1 :], body, root)


def decoded(encoding: str, body: bytes) -> bytes | None:
    """Return what a body says; None for an encoding that isn't ours, or base64 that isn't whole."""
    if encoding == "7bit":
        return body
    if encoding == "quoted-printable":
        return binascii.a2b_qp(body)
    if encoding != "base64":
        return None
    try:
        return binascii.a2b_base64(body.replace(b"\r\n", b""), strict_mode=True)
    except binascii.Error:
        return None


def _names(line: str, name: str, value: tuple[Mailbox, ...]) -> bool:
    found, _, written = line.partition(": ")
    boxes = written.split(", ")
    return found == name and len(boxes) == len(value) and all(map(_is_mailbox, boxes, value))


def _is_mailbox(written: str, box: Mailbox) -> bool:
    found = _MAILBOX.fullmatch(written)
    if found is None:
        return False
    name, boxed, bare = found.groups()
    return (name or "") == box.name and (boxed or bare) == box.address


def _is_part(lines: Sequence[str], body: bytes, part: Part) -> bool:
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    kind, parameters = _parameters(fields.get("Content-Type", ""))
    if len(fields) != len(lines) or not fields.keys() <= _PART_FIELDS or kind != part.content_type:
        return False
    if part.children:
        return len(fields) == 1 and _are_parts(body, parameters.get("boundary", ""), part.children)
    if fields.get("Content-ID", "") != (f"<{part.content_id}>" if part.content_id else ""):
        return False
    if not (_is_file(fields["Content-Disposition"], part) if "Content-Disposition" in fields else parameters == _TEXT):
        return False
    return decoded(fields.get("Content-Transfer-Encoding", ""), body) == part.data


def _is_file(written: str, part: Part) -> bool:
    disposition, parameters = _parameters(written)
    return disposition in _DISPOSITIONS and parameters.get("filename", "") == part.filename


def _are_parts(body: bytes, boundary: str, parts: Sequence[Part]) -> bool:
    """Cut a multipart at every line that begins as its boundary does: one too many anywhere, and the count is wrong."""
    if not boundary:
        return False
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("ascii"))
    if len(pieces) != len(parts) + 2 or pieces.pop(0) or pieces.pop() not in _ENDS:
        return False
    for piece, part in zip(pieces, parts, strict=True):
        head, _, inside = piece.partition(_BLANK)
        if not head.isascii():
            return False
        first, *lines = head.decode("ascii").replace("\r\n ", " ").split("\r\n")
        if first or not "".join(lines).isprintable() or not _is_part(lines, inside, part):
            return False
    return True


def _parameters(written: str) -> tuple[str, dict[str, str]]:
    """Return a value and its parameters; an empty one, which nothing is equal to, for what isn't written as we write it."""
    found = _VALUE.fullmatch(written)
    pairs = _PARAMETER.findall(found["parameters"]) if found else []
    parameters = {name: bare or quoted for name, bare, quoted in pairs}
    # Of a parameter that stands twice, some readers take the first and some the last.
    return (found["value"], parameters) if found and len(parameters) == len(pairs) else ("", {})
