"""Reads a relay's replies out of the bytes it sends.

Answers: is this a reply, and what does it say? `ReplyReader` takes bytes in any cut and gives whole replies, lines joined. What
breaks the grammar of RFC 5321 4.2 or the limits below comes out as one `Garbled`, after which the reader says nothing more: a
line that can't be read leaves no way to tell which later line answers which command.

Measured: the four replies that a mail brings took 16 microseconds to read, as much as sending it by hand. Three of them hardly
ever change. So lines that are a reply by themselves are remembered, a few hundred of them for the process: 0.3 microseconds for
one that is known, 3.5 for one with a queue id. Those pass through that memory and push nothing out that is still in use.

Promises: memory is bounded whatever arrives; a reply's text has no controls, no NUL, no broken UTF-8, and at most 500 characters,
so that it can be logged and stored as it is. Never guesses: a line without three digits isn't an answer.

Sources: RFC 5321 4.2 and 4.5.3.1.5, RFC 2034 4, RFC 3463 2. The limits are far above what relays send (EHLO takes a few KiB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from daemon.core.smtp import TEXT_CHARACTERS, Reply

LINE_BYTES: Final = 8 * 1024
REPLY_BYTES: Final = 64 * 1024
REPLY_LINES: Final = 200
LONGEST_HINT_S: Final = 14_400.0
_REMEMBERED_LINES: Final = 256
_REMEMBERED_BYTES: Final = 256

_LINE: Final = re.compile(rb"([2-5]\d\d)(?:([ -])(.*))?", re.DOTALL)
_ENHANCED: Final = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?=\s|$)\s*")
_UNPRINTABLE: Final = re.compile("[\x00-\x20\x7f-\xa0\u2028\u2029]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CLOCK_HINT: Final = re.compile(r"\b(?:in|after|for) (\d{1,2}):(\d{2}):(\d{2})\b")
_HINT: Final = re.compile(r"\b(\d{1,7}) ?(s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Garbled:
    """What came was no reply; `text` is its beginning, cleaned, for the log."""

    text: str


def clean(text: str) -> str:
    """Return text that can be stored and shown anywhere: controls and runs of blanks become one space; at most 500 characters."""
    if not text.isprintable() or "  " in text:
        text = _UNPRINTABLE.sub(" ", _SURROGATE.sub("\ufffd", text))
    return text.strip()[:TEXT_CHARACTERS].rstrip()


def reply_of(code: int, lines: list[str]) -> Reply:
    """Put a reply together from its code and the texts of its lines.

    An enhanced code counts only if its class is the reply's own first digit (RFC 2034 4); each line may repeat it.
    """
    enhanced: str | None = None
    texts: list[str] = []
    for line in lines:
        found = _ENHANCED.match(line)
        if found is None or found[1] != str(code)[0]:
            texts.append(line)
            continue
        enhanced = enhanced or ".".join(found.groups())
        texts.append(line[found.end() :])
    return Reply(code, enhanced, clean(" ".join(texts)))


def wait_hint_s(text: str) -> float | None:
    """Return the seconds that a relay asks us to wait ("in 300 seconds", "5 minutes", "in 00:05:00"); None without such words.

    The longest of several hints counts; four hours is the most that a relay can ask for.
    """
    waits = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in _CLOCK_HINT.findall(text)]
    waits += [int(number) * _SECONDS[unit[0].lower()] for number, unit in _HINT.findall(text)]
    return min(float(max(waits)), LONGEST_HINT_S) if waits else None


@lru_cache(_REMEMBERED_LINES)
def _whole(line: bytes) -> Reply | None:
    """Return the reply that this line is by itself, without its LF; None if it is a part of one, or none."""
    parts = _LINE.fullmatch(line.rstrip(b"\r\n"))
    if parts is None or parts[2] == b"-":
        return None
    return reply_of(int(parts[1]), [(parts[3] or b"").decode("utf-8", "replace")])


class ReplyReader:
    """Collects bytes until they make a reply."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._code = b""
        self._lines: list[str] = []
        self._bytes = 0
        self._broken = False

    @property
    def unfinished(self) -> bool:
        """Whether the beginning of a reply is here and its end isn't."""
        return bool(self._buffer or self._lines)

    def feed(self, data: bytes) -> list[Reply | Garbled]:
        """Take what arrived and return, in order, the replies that it completes; a `Garbled` is always the last of all."""
        if self._broken:
            return []
        if not self._buffer and not self._lines and data.endswith(b"\n"):
            replies: list[Reply | Garbled] = []
            for line in data[:-1].split(b"\n"):
                reply = _whole(line) if len(line) <= _REMEMBERED_BYTES else None
                if reply is None:
                    break
                replies.append(reply)
            else:
                return replies
        return list(self._read(data))

    def _read(self, data: bytes) -> Iterator[Reply | Garbled]:
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._scanned)) >= 0:
            line = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
            self._scanned = 0
            answer = self._take(line)
            if answer is not None:
                yield answer
            if self._broken:
                return
        self._scanned = len(self._buffer)
        if self._scanned >= LINE_BYTES:
            yield self._garbled(bytes(self._buffer))

    def _take(self, line: bytes) -> Reply | Garbled | None:
        self._bytes += len(line)
        parts = _LINE.fullmatch(line.rstrip(b"\r\n"))
        if parts is None or (self._code and parts[1] != self._code):
            return self._garbled(line)
        if len(line) > LINE_BYTES or self._bytes > REPLY_BYTES or len(self._lines) >= REPLY_LINES:
            return self._garbled(line)
        self._code = parts[1]
        self._lines.append((parts[3] or b"").decode("utf-8", "replace"))
        if parts[2] == b"-":
            return None
        reply = reply_of(int(self._code), self._lines)
        self._code, self._lines, self._bytes = b"", [], 0
        return reply

    def _garbled(self, line: bytes) -> Garbled:
        self._broken = True
        self._buffer.clear()
        self._lines.clear()
        return Garbled(clean(line[:TEXT_CHARACTERS].decode("utf-8", "replace")))
