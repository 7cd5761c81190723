"""What composing ends in: a message that is ready for the wire, or the reason why there can't be one.

Both are values. Inside this package a refusal travels as `Refusal`, from the line that sees the fault up to `compose`, which
returns what it carries; the exception never leaves the package.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

_SHOWN = 80
_SENTENCE = 200


class Message(msgspec.Struct, frozen=True):
    """One mail and its envelope, the same bytes whenever it is composed from the same job."""

    envelope_from: str
    recipients: tuple[str, ...]
    """Who gets it, each address once, in the order to, cc, bcc."""
    content: bytes
    """Lines end in CRLF, also the last; dots are not stuffed. All of it is ASCII unless `needs_smtputf8`."""
    message_id: str
    """With its angle brackets, as in the header."""
    needs_smtputf8: bool
    """Whether an address has a local part outside ASCII, which only a relay with RFC 6531 takes."""
    subject: str
    from_domain: str
    """Of the address in From, in lower case; who signs must be responsible for it."""


class Unbuildable(msgspec.Struct, frozen=True):
    """Why a payload is no mail; nothing that is tried again later can change it."""

    reason: str
    """A stable code, such as `no_recipients`."""
    field: str
    """Where in the payload: `to[1].email`, `headers.Bcc`; empty for the payload itself."""
    detail: str
    """A sentence for the person who has to act; holds no address and no body."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.reason, self.field, self.detail) if part)[:_SENTENCE]


class Refusal(Exception):  # noqa: N818 - no error: the way of a value out of nested calls
    """Carries an `Unbuildable` from where it was found to `compose`."""

    def __init__(self, unbuildable: Unbuildable) -> None:
        super().__init__(str(unbuildable))
        self.unbuildable = unbuildable


def refuse(reason: str, field: str, detail: str) -> NoReturn:
    """Leave with an `Unbuildable`; `field` may hold hostile names and is made fit to be shown.

    Raises:
        Refusal: always.
    """
    raise Refusal(Unbuildable(reason=reason, field=shown(field), detail=detail))


def shown(value: str) -> str:
    """Return at most 80 characters of a hostile value, with a question mark for each that can't be printed."""
    cut = value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
    return "".join(character if character.isprintable() else "?" for character in cut)
