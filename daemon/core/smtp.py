"""The words of an SMTP conversation: stages, replies, faults, the report that an exchange ends in, and the form of a body.

A report says what happened, raw; `verdicts` decides what it means. Stages are RFC 5321's order of commands.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec


class Stage(StrEnum):
    """How far an exchange has come. Before DOT nothing was sent; from DOT on only a reply tells."""

    BUILD = "build"
    CONNECT = "connect"
    GREETING = "greeting"
    EHLO = "ehlo"
    TLS = "tls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    DOT = "dot"


class Fault(StrEnum):
    """What can come instead of a reply."""

    REFUSED = "connection_refused"
    UNREACHABLE = "unreachable"
    NAME_UNKNOWN = "name_unknown"
    NAME_UNAVAILABLE = "name_unavailable"
    CLOSED = "connection_closed"
    TIMEOUT = "timeout"
    GARBAGE = "garbled_reply"
    TLS_NOT_OFFERED = "tls_not_offered"
    TLS_FAILED = "tls_failed"
    AUTH_NOT_OFFERED = "auth_not_offered"
    TOO_LARGE = "message_too_large"
    SMTPUTF8_NOT_OFFERED = "smtputf8_not_offered"


CLOSING: Final = 421
"""The one code that says, at any stage, that the relay is about to close the connection (RFC 5321 3.8)."""
GO_AHEAD: Final = 354
"""What DATA is answered with by a relay that waits for the body."""
TEXT_CHARACTERS: Final = 500
"""As much of a reply as is kept, shown and stored."""


class Reply(msgspec.Struct, frozen=True):
    """A relay's answer: three digits, the enhanced code if it has one (RFC 3463), and the text without either."""

    code: int
    enhanced: str | None
    text: str

    @property
    def positive(self) -> bool:
        """Whether the relay did what it was asked: any 2yz, since RFC 5321 4.2 lets unknown codes count by their first digit."""
        return 200 <= self.code < 300  # noqa: PLR2004 - the digits are the protocol's own

    def __str__(self) -> str:
        return " ".join(part for part in (str(self.code), self.enhanced, self.text) if part)[:TEXT_CHARACTERS]


class Report(msgspec.Struct, frozen=True, eq=False):
    """What one stage of an exchange ended with; equal to another that says the same, whatever its detail."""

    relay: str
    stage: Stage
    answer: Reply | Fault
    reused: bool = False
    """Whether the connection had carried a transaction before: then a fault may be its age's, not ours."""
    detail: str = ""
    """What the system or OpenSSL said about a fault, for the log: which host name, which authority, which port."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Report) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)

    @property
    def _said(self) -> tuple[str, Stage, Reply | Fault, bool]:
        return self.relay, self.stage, self.answer, self.reused


_ANY_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def stuff(content: bytes) -> bytes:
    """Return a message as it travels after DATA: CRLF line ends only, dots doubled, one CRLF at the end, the final dot left out.

    A CR or LF that stands alone never leaves, since some servers take it for a line end and others don't: that difference is what
    SMTP smuggling lives on. Content that is clean already, which is the rule, costs three counts and one replacement: 3
    microseconds for 1 kB. Splitting it into lines and joining them took as long, one regular expression three to ten times that.
    """
    ends = content.count(b"\r\n")
    if content.count(b"\r") != ends or content.count(b"\n") != ends:
        content = _ANY_LINE_END.sub(b"\r\n", content)
    if not content.endswith(b"\r\n"):
        content += b"\r\n"
    doubled = content.replace(b"\r\n.", b"\r\n..")
    return b"." + doubled if doubled.startswith(b".") else doubled
