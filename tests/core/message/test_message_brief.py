"""brief: the reader that most mails need no other beside says yes only where both parsers of the standard library do."""

from __future__ import annotations

from email import message_from_string
from email.policy import Policy, compat32, default
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from daemon.core.message import body, header, payload, proof
from daemon.core.message.address import Mailbox
from daemon.core.message.brief import decoded, is_read
from daemon.core.message.proof import Asked
from tests.core.message.composing import composed
from tests.core.message.test_message_hostile import HOSTILE

ANN = Mailbox("Ann Example", "ann", "example.org")
PDF = payload.Attachment(filename="plan.pdf", content_type="application/pdf", content_id="", is_inline=False, data=b"%PDF" * 30)
LOGO = payload.Attachment(filename="logo.png", content_type="image/png", content_id="a@b", is_inline=True, data=b"\x89PNG")


def mail() -> tuple[bytes, Asked]:
    """Return a mail of every kind of part that the reader knows, and what it has to say."""
    text, html = body.text_part("Hello\r\n", "plain"), body.text_part("<p>naïve</p>\r\n", "html")
    root = body.tree(text, html, [PDF, LOGO], "0")
    lines = [header.mailboxes("To", [ANN]), header.text("Subject", "You are invited"), "MIME-Version: 1.0\r\n"]
    asked = Asked(fields=[("To", (ANN,)), ("Subject", "You are invited")], root=root, is_ascii=True)
    return "\r\n".join(lines).encode() + root.wire() + b"\r\n", asked


CONTENT, ASKED = mail()


def is_proven(content: bytes) -> bool:
    """Ask the reader about the mail, changed."""
    return is_read(content, ASKED.fields, ASKED.root)


def test_ordinary_mail_is_proven_without_the_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, HTML, an inline image and attachments cost microseconds, not milliseconds."""
    monkeypatch.setattr(proof, "message_from_string", None)
    logo = {"filename": "logo.png", "content_type": "image/png", "content": "iVBORw0KGgo=", "cid": "logo", "inline": True}
    calendar = {"filename": "a b.ics", "content_type": "text/calendar; method=REQUEST; charset=utf-8", "content": "QkVHSU4="}
    html = '<img src="cid:logo">' + "<p>é</p>" * 30
    assert composed(html=html, attachments=[logo, calendar, {"content": "AAAA"}]).content
    assert composed(attachments=[calendar]).content
    assert composed(html="<p>x</p>", text=None).content


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": "Grüße"},
        {"to": {"name": "刘", "email": "a@example.org"}},
        {"attachments": [{"filename": "plän.pdf", "content": "AAAA"}]},
    ],
)
def test_other_mail_is_left_to_the_parsers(changed: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where readers have to decode, two that are known must agree."""
    policies = []

    def read(text: str, *, policy: Policy[Any]) -> Any:  # noqa: ANN401  a mail of either policy
        policies.append(policy)
        return message_from_string(text, policy=policy)

    monkeypatch.setattr(proof, "message_from_string", read)
    assert composed(**changed).content
    assert policies == [default, compat32]


def test_what_was_asked_is_read() -> None:
    """To the last octet of the last part."""
    assert is_proven(CONTENT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Subject: You", b"Bcc: x@example.org\r\nSubject: You"),
        (b"Subject: You are", b"Subject: You  are"),
        (b"To: Ann", b"To: Bob"),
        (b"To: Ann Example <ann@", b"To: Ann Example <bob@"),
        (b"MIME-Version: 1.0\r\n", b""),
        (b"MIME-Version: 1.0", b"MIME-Version: 1.1"),
        (b"mixed", b"digest"),
        (b"Content-Type: multipart/mixed;\r\n", b"Content-Type: multipart/mixed;\r\n\t"),
        (b"Content-Type: multipart/mixed", b"Content-ID: <x>\r\nContent-Type: multipart/mixed"),
        (b'boundary="=_a0"', b'boundary="=_a1"'),
        (b';\r\n boundary="=_m0"', b""),
        (b'boundary="=_m0"', b'x="\x01";\r\n boundary="=_m0"'),
        (b'boundary="=_m0"', b'boundary="=_a0";\r\n boundary="=_m0"'),
        (b' name="plan.pdf"', b' name="plan\x01.pdf"'),
        (b"--=_m0\r\n", b"preamble\r\n--=_m0\r\n"),
        (b"--=_m0--", b"--=_m0--\r\nepilogue"),
        (b"--=_m0--", b"--=_m0"),
        (b"--=_r0\r\nContent-Type: image", b"--=_r0 \r\nContent-Type: image"),
        (b"\r\n--=_a0--", b"\r\n--=_a0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nmore\r\n--=_a0--"),
        (b"text/plain; charset=utf-8", b"text/plain; charset=latin1"),
        (b"text/plain; charset=utf-8", b"text/plain"),
        (b"text/html; charset", b"text/enriched; charset"),
        (b"Content-Transfer-Encoding: 7bit\r\n", b""),
        (b"Content-Transfer-Encoding: 7bit\r\n", b"Content-Transfer-Encoding: 7bit\r\nContent-Language: de\r\n"),
        (b"Content-Transfer-Encoding: 7bit\r\n", b"Content-Transfer-Encoding: 7bit\r\n" * 2),
        (b"Content-Transfer-Encoding: 7bit", b"Content-Transfer-Encoding: 8bit"),
        (b"Content-Transfer-Encoding: quoted-printable", b"Content-Transfer-Encoding: base64"),
        (b"Hello", b"hello"),
        (b"na=C3=AFve", b"na=C3=AAve"),
        (b'filename="plan.pdf"', b'filename="plan.exe"'),
        (b';\r\n filename="plan.pdf"', b""),
        (b";\r\n filename=", b";\r\n filename*="),
        (b"Content-Disposition: attachment", b"Content-Disposition: form-data"),
        (b"Content-ID: <a@b>", b"Content-ID: <a@c>"),
        (b"Content-ID: <a@b>\r\n", b""),
        (b"JVBERiVQ", b"JVBERiVR"),
        (b"JVBERiVQ", b"JVBERiVQ\r\n-"),
    ],
)
def test_changed_mail_is_not_proven(old: bytes, new: bytes) -> None:
    """One change each, where it is found first."""
    assert old in CONTENT
    assert not is_proven(CONTENT.replace(old, new, 1))


PIECES = some.sampled_from(
    [
        b"\r\n", b" ", b"\t", b";", b'"', b"\r\n ", b"\r\n\r\n", b"--", b"--=_m0", b"\r\n--=_a0\r\n", b"\r\n--=_r0--", b"=",
        b"=20", b"=\r\n", b":", b",", b"<x@y>", b"A", b"\r\nBcc: x@example.org", b"\r\nContent-Type: text/html", b"=?", b"\\",
        b"(c)", b"*",
    ]
)  # fmt: skip


@HOSTILE
@given(some.lists(some.tuples(some.integers(0, len(CONTENT)), some.integers(0, 12), some.one_of(PIECES, some.binary(max_size=3))),
                  min_size=1, max_size=3))  # fmt: skip
def test_nothing_is_proven_that_both_parsers_would_not_prove(changes: list[tuple[int, int, bytes]]) -> None:
    """Whatever is put in, cut out or overwritten: a yes of the brief reader is a yes of the two long ones."""
    content = CONTENT
    for place, length, piece in changes:
        content = content[:place] + piece + content[place + length :]
    if is_proven(content):
        assert proof._full_fault(content, ASKED) == ""  # noqa: SLF001  the claim is about this


@pytest.mark.parametrize("encoding", ["8bit", "", "x-uuencode"])
def test_unknown_encoding_says_nothing(encoding: str) -> None:
    """We write three."""
    assert decoded(encoding, b"x") is None


@pytest.mark.parametrize("octets", [b"QQ", b"QQ==\r\nQQ==", b"Q-Q=", b"=QQ="])
def test_base64_that_readers_could_take_for_something_else_says_nothing(octets: bytes) -> None:
    """A reader that skips what isn't base64 and one that stops there would see two files."""
    assert decoded("base64", octets) is None


def test_empty_file_is_proven() -> None:
    """Its part ends right after its header fields."""
    root = body.tree(body.text_part("x\r\n", "plain"), None, [replace(PDF, data=b"")], "0")
    assert is_read(b"MIME-Version: 1.0\r\n" + root.wire() + b"\r\n", [], root)
