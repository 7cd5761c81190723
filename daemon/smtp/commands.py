"""The commands of an envelope, as bytes: which parameters the message needs, which are only useful, and what the relay offers.

A parameter is used where the relay's EHLO offers it and nowhere else. SIZE and those of DSN are only useful: `plain` leaves them
out for relays that offer what they then refuse. Pure.

Sources: RFC 5321 4.1.1, RFC 1870 (SIZE), RFC 6152 (8BITMIME), RFC 6531 (SMTPUTF8), RFC 3461 (DSN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemon.core.smtp import Fault

PARAMETER_REFUSED: Final = frozenset({504, 555})
"""What says that a parameter of MAIL or RCPT isn't known (RFC 5321 4.1.1.11) or not implemented."""


@dataclass(frozen=True, slots=True)
class Notify:
    """What the relay is asked to report to the sender, as `mail.dsn_notify` says it, and the name of the envelope in a report."""

    when: str
    envelope_id: str


def refused_here(size: int, extensions: Mapping[str, str], *, smtputf8: bool) -> Fault | None:
    """Return why this relay can't take the message, by what it offers; None if it can."""
    limit = extensions.get("size", "")
    if limit.isascii() and limit.isdecimal() and 0 < int(limit) < size:
        return Fault.TOO_LARGE
    return Fault.SMTPUTF8_NOT_OFFERED if smtputf8 and "smtputf8" not in extensions else None


def mail(
    sender: str, size: int, extensions: Mapping[str, str], *, smtputf8: bool, notify: Notify | None = None, plain: bool = False
) -> bytes:
    """Return the MAIL command. Raises ValueError for an address that can't stand in one."""
    command = _path(b"MAIL FROM:", sender)
    if "size" in extensions and not plain:
        command += b" SIZE=%d" % size
    if smtputf8:
        command += b" BODY=8BITMIME SMTPUTF8" if "8bitmime" in extensions else b" SMTPUTF8"
    if notify and "dsn" in extensions and not plain:
        command += b" RET=HDRS ENVID=" + notify.envelope_id.encode()
    return command + b"\r\n"


def rcpt(recipient: str, extensions: Mapping[str, str], *, notify: Notify | None = None, plain: bool = False) -> bytes:
    """Return the RCPT command. Raises ValueError for an address that can't stand in one."""
    command = _path(b"RCPT TO:", recipient)
    if notify and "dsn" in extensions and not plain:
        command += b" NOTIFY=" + notify.when.upper().encode()
    return command + b"\r\n"


def _path(verb: bytes, address: str) -> bytes:
    """Put an address into a command. The message's builder has checked it; here is the last place to stop a slip."""
    quoted = address.startswith('"')
    if not address.isprintable() or (not quoted and any(character in "<> " for character in address)):
        raise ValueError("an address that can't stand in an SMTP command")
    return verb + b"<" + address.encode() + b">"
