"""The MIME side: bodies in 7 bits, and parts within parts.

Owns transfer encodings and structure: mixed( alternative( text, related( html, inline.. ) ), attachments.. ), each level only if
it has more than one part (RFC 2046 section 5.1: the plain text first, since readers show the last part that they understand).
Promises lines of at most 76 octets and nothing outside ASCII, so that no relay needs 8BITMIME and none re-encodes on the way
(RFC 6376 section 5.3), and boundaries made from the job's uid that can't occur in any part: `=_` is nothing that base64 or
quoted-printable could hold, and text that holds it is never left as it is.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import msgspec

from daemon.core.message import header
from daemon.core.message.payload import Attachment

_LINE = 76
_NON_ASCII = bytes(range(128, 256))
_CONTROLS = bytes([*range(9), 11, 12, *range(14, 32), 127])
# Above this share of octets outside ASCII, base64 is shorter than quoted-printable: 4/3 against 1 + 2/6.
_BASE64_FROM = 6


class Part(msgspec.Struct, frozen=True):
    """A part as it stands on the wire, without the CRLF before its boundary."""

    content_type: str
    """Without parameters."""
    fields: str
    """Its header fields, each with its final CRLF."""
    body: bytes
    encoding: str = ""
    """The transfer encoding of the body; empty for a multipart."""
    filename: str = ""
    content_id: str = ""
    data: bytes = b""
    """What the body decodes to; empty for a multipart."""
    children: tuple[Part, ...] = ()

    def wire(self) -> bytes:
        """Return fields and body."""
        return b"%b\r\n%b" % (self.fields.encode("ascii"), self.body)


def normalised(text: str) -> str:
    """Return a text in which every line, also the last, ends in CRLF and nothing else is a CR or LF."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return (text if text.endswith("\n") else text + "\n").replace("\n", "\r\n")


def text_part(text: str, subtype: str) -> Part:
    """Return a part of normalised text."""
    data = text.encode()
    encoding, body = _transfer(data)
    content_type = f"text/{subtype}"
    fields = f"Content-Type: {content_type}; charset=utf-8\r\nContent-Transfer-Encoding: {encoding}\r\n"
    return Part(content_type=content_type, fields=fields, body=body, encoding=encoding, data=data)


def file_part(attachment: Attachment) -> Part:
    """Return a part of an attached or inline file."""
    content_type, *rest = attachment.content_type.replace("; ", ";").split(";")
    names = []
    if attachment.filename:
        rest.append(f'name="{header.fallback_file_name(attachment.filename)}"')
        names = header.file_name(attachment.filename)
    lines = [
        f"Content-Type: {header.parameters(content_type, *rest)}",
        "Content-Transfer-Encoding: base64",
        f"Content-Disposition: {header.parameters('inline' if attachment.is_inline else 'attachment', *names)}",
    ]
    if attachment.content_id:
        lines.append(f"Content-ID: <{attachment.content_id}>")
    return Part(
        content_type=content_type,
        fields="\r\n".join(lines) + "\r\n",
        body=_base64(attachment.data),
        encoding="base64",
        filename=attachment.filename,
        content_id=attachment.content_id,
        data=attachment.data,
    )


def tree(text: Part | None, html: Part | None, files: Sequence[Attachment], seed: str) -> Part:
    """Return the whole of a mail's parts; `seed` makes its boundaries, and at least one of the texts is there."""
    inline = [file_part(file) for file in files if file.is_inline]
    attached = [file_part(file) for file in files if not file.is_inline]
    if html is not None and inline:
        html = _multipart("related", [html, *inline], f"=_r{seed}")
    body = _multipart("alternative", [part for part in (text, html) if part is not None], f"=_a{seed}")
    return _multipart("mixed", [body, *attached], f"=_m{seed}") if attached else body


def _multipart(subtype: str, children: list[Part], boundary: str) -> Part:
    if len(children) == 1:
        return children[0]
    content_type = f"multipart/{subtype}"
    of_type = ['type="text/html"'] if subtype == "related" else []
    value = header.parameters(content_type, *of_type, f'boundary="{boundary}"')
    delimiter = f"--{boundary}".encode("ascii")
    pieces = [b"%b\r\n%b" % (delimiter, child.wire()) for child in children]
    return Part(
        content_type=content_type,
        fields=f"Content-Type: {value}\r\n",
        body=b"\r\n".join([*pieces, delimiter + b"--"]),
        children=tuple(children),
    )


def _transfer(data: bytes) -> tuple[str, bytes]:
    if len(data.translate(None, _CONTROLS)) != len(data):
        return "base64", _base64(data)
    if not data.isascii():
        outside = len(data) - len(data.translate(None, _NON_ASCII))
        if outside * _BASE64_FROM > len(data):
            return "base64", _base64(data)
    elif not _is_changed_by_readers(data) and max(map(len, data.split(b"\r\n"))) <= _LINE:
        return "7bit", data
    return "quoted-printable", binascii.b2a_qp(data)


def _is_changed_by_readers(data: bytes) -> bool:
    """Tell whether blanks at the end of a line could be lost, or a boundary be found."""
    # One octet is sought before two, which takes forty times as long.
    return (b"=" in data and b"=_" in data) or b" \r" in data or (b"\t" in data and b"\t\r" in data)


def _base64(data: bytes) -> bytes:
    encoded = binascii.b2a_base64(data, newline=False)
    return b"\r\n".join([encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE)])
