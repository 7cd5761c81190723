"""Header fields as they stand on the wire.

The header classes of the standard library are not used: up to Python 3.12 they turn plain ASCII such as
`=?utf-8?q?x=0ABcc:...?=` into a header of its own, lose the quotes of a folded name with a comma, encode long URLs, and write
encoded words into addresses. The rules here are few:

- text (Subject, X-*) is plain if it is printable ASCII, else as a whole a row of encoded words (RFC 2047), each of 75 octets or
  fewer and split between code points only. ASCII that holds `=?` is encoded too: a reader would decode it.
- a name is atoms, or a quoted string, or encoded words; the address beside it is never encoded. A list is folded between
  mailboxes, and between the encoded words of a name.
- identifiers and URLs (References, List-*) are never encoded, and folded at spaces only.
- a line has 78 octets or fewer where a space allows it, and never more than 998 (RFC 5322 section 2.1.1).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from daemon.core.message.address import Mailbox
from daemon.core.message.characters import is_plain
from daemon.core.message.message import refuse

_LINE = 78
_LINE_MAX = 998
# RFC 2047 section 2: a line that holds an encoded word has at most 76 octets, the word at most 75.
_WORD_LINE = 76
_WORD = 75
_WORD_MIN = 30
_WORD_FRAME = len("=?utf-8?q??=")
_PARAMETER = 60
# Some relays add an ugly To, or refuse, where neither To nor Cc stands.
_NOBODY = "undisclosed-recipients:;"

_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_SPECIAL = re.compile(r'(["\\])')
_BLANK_AND_WORD = re.compile(" *[^ ]+")
_ENCODED_WORD = re.compile(r"=\?[^?]*\?[BbQq]\?")
# RFC 2047 section 5 (3): what a Q word within a phrase may hold as itself.
_Q_SAFE = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/"
# An octet of UTF-8 within a character, and how it is written in Q.
_CONTINUATION = range(0x80, 0xC0)
_CONTINUES = re.compile("=[89AB]")
_Q = tuple(chr(octet) if octet in _Q_SAFE else "_" if octet == ord(" ") else f"={octet:02X}" for octet in range(256))
_FILE_NAME = re.compile(r"[A-Za-z0-9!#$&()+,.@^_{}~-]+(?: [A-Za-z0-9!#$&()+,.@^_{}~-]+)*")
_ATTRIBUTE_SAFE = "!#$&+-.^_~"


def date(instant: datetime) -> str:
    """Return an instant in UTC as RFC 5322 section 3.3 writes it, whatever the locale."""
    # Such as "Tue Dec  1 07:30:00 2026".
    written = instant.ctime()
    return f"{written[:3]}, {written[8:10].replace(' ', '0')} {written[4:7]} {written[20:]} {written[11:19]} +0000"


def text(name: str, value: str) -> str:
    """Return a field of free text, without its final CRLF."""
    if not value:
        return f"{name}:"
    if is_plain(value) and "=?" not in value and value[0] != " " and value[-1] != " ":
        if len(name) + 2 + len(value) <= _LINE:
            return f"{name}: {value}"
        lines = _folded(name, value)
        if max(map(len, lines)) <= _LINE_MAX:
            return "\r\n".join(lines)
    return f"{name}: " + "\r\n ".join(encoded_words(value, len(name) + 2))


def identifiers(name: str, value: str, field: str) -> str:
    """Return a field of identifiers or URLs, without its final CRLF.

    Raises:
        Refusal: `header_invalid` for what would have to be encoded or could be decoded, `header_too_long` for a word over 998.
    """
    if not is_plain(value) or value != value.strip(" ") or not value:
        refuse("header_invalid", field, "must be printable ASCII, not empty, and without blanks at its ends")
    if _ENCODED_WORD.search(value):
        refuse("header_invalid", field, "can be read as an encoded word")
    lines = _folded(name, value)
    if max(map(len, lines)) > _LINE_MAX:
        refuse("header_too_long", field, f"holds a word that makes a line longer than {_LINE_MAX} octets")
    return "\r\n".join(lines)


def mailboxes(name: str, boxes: Sequence[Mailbox]) -> str:
    """Return a field of mailboxes, without its final CRLF; without any it holds a group of nobody.

    An address with a local part outside ASCII stays as it is.
    """
    if not boxes:
        return f"{name}: {_NOBODY}"
    pieces = _mailbox_pieces(boxes[-1], "")
    if len(boxes) > 1:
        pieces = [piece for box in boxes[:-1] for piece in _mailbox_pieces(box, ",")] + pieces
    field = f"{name}: {pieces[0]}"
    return field if len(pieces) == 1 else "\r\n".join(_fold(field, [f" {piece}" for piece in pieces[1:]]))


# A worker's mails come from the same few senders.
@lru_cache(maxsize=64)
def sender(box: Mailbox) -> str:
    """Return the field From, without its final CRLF."""
    return mailboxes("From", (box,))


def parameters(value: str, *pairs: str) -> str:
    """Return a structured value and its parameters, each on a line of its own."""
    return ";\r\n ".join((value, *pairs))


def file_name(name: str) -> list[str]:
    """Return the parameters of Content-Disposition that say a file's name (RFC 2231)."""
    if _FILE_NAME.fullmatch(name):
        return [f'filename="{name}"']
    pieces = [quote(character, safe=_ATTRIBUTE_SAFE) for character in name]
    sections, line = [], "utf-8''"
    for piece in pieces:
        if len(line) + len(piece) > _PARAMETER:
            sections.append(line)
            line = ""
        line += piece
    if not sections:
        return [f"filename*={line}"]
    return [f"filename*{index}*={section}" for index, section in enumerate([*sections, line])]


def fallback_file_name(name: str) -> str:
    """Return a file's name in ASCII, for readers that know nothing of RFC 2231."""
    return "".join(character if _FILE_NAME.fullmatch(character) or character == " " else "_" for character in name)


def encoded_words(value: str, used: int) -> list[str]:
    """Return encoded words that together decode to the value; `used` octets of the first line are taken."""
    octets = value.encode()
    room = max(min(_WORD, _WORD_LINE - used), _WORD_MIN) - _WORD_FRAME
    q_octets = len(octets) + 2 * len(octets.translate(None, _Q_SAFE + b" "))
    return _in_base64(octets, room) if q_octets > (len(octets) + 2) // 3 * 4 else _in_q(octets, room)


def _in_base64(octets: bytes, room: int) -> list[str]:
    words, start = [], 0
    while start < len(octets):
        end = start + room // 4 * 3
        while end < len(octets) and octets[end] in _CONTINUATION:
            end -= 1
        words.append(f"=?utf-8?b?{binascii.b2a_base64(octets[start:end], newline=False).decode('ascii')}?=")
        start, room = end, _WORD - _WORD_FRAME
    return words


def _in_q(octets: bytes, room: int) -> list[str]:
    quoted = "".join(map(_Q.__getitem__, octets))
    words, start = [], 0
    while start < len(quoted):
        end = start + room
        while end < len(quoted) and ("=" in quoted[end - 2 : end] or _CONTINUES.match(quoted, end)):
            end -= 1
        words.append(f"=?utf-8?q?{quoted[start:end]}?=")
        start, room = end, _WORD - _WORD_FRAME
    return words


def _mailbox_pieces(box: Mailbox, separator: str) -> list[str]:
    """Return what a mailbox is made of; a line may be folded between the pieces and nowhere else."""
    name = box.name
    if not name:
        return [f"{box.local}@{box.domain}{separator}"]
    address = f"<{box.local}@{box.domain}>{separator}"
    if "=?" in name or not is_plain(name):
        # The first word shares its line with the longest name of such a field.
        return [*encoded_words(name, len("Reply-To: ")), address]
    if _ATOMS.fullmatch(name):
        return [f"{name} {address}"]
    return ['"' + _SPECIAL.sub(r"\\\1", name) + f'" {address}']


def _folded(name: str, value: str) -> list[str]:
    first, *rest = _BLANK_AND_WORD.findall(value)
    return _fold(f"{name}: {first}", rest)


def _fold(line: str, pieces: Sequence[str]) -> list[str]:
    """Return lines that begin with the one given; each piece begins with its blanks and stays whole."""
    lines = [line]
    for piece in pieces:
        if len(lines[-1]) + len(piece) <= _LINE:
            lines[-1] += piece
        else:
            lines.append(piece)
    return lines
