"""The commands of an envelope, as bytes: which parameters the message needs, which are only useful, and what the relay offers.

A parameter is used where the relay's EHLO offers it and nowhere else. SIZE and those of DSN are only useful: `plain` leaves them
out for relays that offer what they then refuse. Pure.

Sources: RFC 5321 4.1.1, RFC 1870 (SIZE), RFC 2920 (PIPELINING), RFC 6152 (8BITMIME), RFC 6531 (SMTPUTF8), RFC 3461 (DSN).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

import msgspec

from daemon.core.smtp import Fault

PARAMETER_REFUSED: Final = frozenset({504, 555})
"""What says that a parameter of MAIL or RCPT isn't known (RFC 5321 4.1.1.11) or not implemented."""
_SIZE_DIGITS: Final = 20
"""RFC 1870 allows no more; Python refuses to read a number of thousands of digits."""


class Notify(msgspec.Struct, frozen=True):
    """What the relay is asked to report to the sender, as `mail.dsn_notify` says it, and the name of the envelope in a report."""

    when: str
    envelope_id: str


class Offer:
    """What one relay offers of what we can use; read once for each connection."""

    __slots__ = ("_dsn", "_eight_bit", "_largest", "_size", "_smtputf8", "pipelining")

    def __init__(self, extensions: Mapping[str, str]) -> None:
        self.pipelining = "pipelining" in extensions
        self._dsn = "dsn" in extensions
        self._eight_bit = "8bitmime" in extensions
        self._smtputf8 = "smtputf8" in extensions
        self._size = "size" in extensions
        limit = extensions.get("size", "")
        is_limit = limit.isascii() and limit.isdecimal() and len(limit) <= _SIZE_DIGITS
        self._largest = (int(limit) if is_limit else 0) or inf

    def refusal(self, size: int, *, smtputf8: bool) -> Fault | None:
        """Return why this relay can't take the message, by what it offers; None if it can."""
        if size > self._largest:
            return Fault.TOO_LARGE
        return Fault.SMTPUTF8_NOT_OFFERED if smtputf8 and not self._smtputf8 else None

    def envelope(
        self, sender: str, recipients: Sequence[str], *, size: int, smtputf8: bool, notify: Notify | None, plain: bool
    ) -> list[bytes]:
        """Return MAIL and one RCPT for each recipient. Raises ValueError for an address that can't stand in a command."""
        mail = b"MAIL FROM:" + _path(sender)
        if self._size and not plain:
            mail += b" SIZE=%d" % size
        if smtputf8:
            mail += b" BODY=8BITMIME SMTPUTF8" if self._eight_bit else b" SMTPUTF8"
        end = b"\r\n"
        if notify and self._dsn and not plain:
            mail += b" RET=HDRS ENVID=" + notify.envelope_id.encode()
            end = b" NOTIFY=" + notify.when.upper().encode() + end
        return [mail + b"\r\n", *[b"RCPT TO:" + _path(recipient) + end for recipient in recipients]]


def _path(address: str) -> bytes:
    """Put an address between its brackets. The message's builder has checked it; here is the last place to stop a slip."""
    if not address.isprintable() or (("<" in address or ">" in address or " " in address) and not address.startswith('"')):
        raise ValueError("an address that can't stand in an SMTP command")
    return b"<%b>" % address.encode()
