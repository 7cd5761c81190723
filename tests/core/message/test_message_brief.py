"""brief: the reader that most mails need no other beside says yes only where both parsers of the standard library do."""

from __future__ import annotations

from email import message_from_string
from email.header import decode_header, make_header
from email.policy import Policy, compat32, default
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from daemon.core.message import body, brief, header, payload, proof
from daemon.core.message.address import Mailbox
from daemon.core.message.brief import Field, decoded, decoded_words, is_read
from daemon.core.message.proof import Asked
from tests.core.message.composing import composed
from tests.core.message.test_message_hostile import HOSTILE, TEXTS

ANN = Mailbox("Ann Example", "ann", "example.org")
BOB = Mailbox("Example, Bob", "bob", "example.org")
LIU = Mailbox("刘瑞, Dr.", "liu", "example.org")
SUBJECT = "Grüße, =?utf-8?q?a?=, Приглашение на встречу в следующую пятницу"
PDF = payload.Attachment(filename="plan.pdf", content_type="application/pdf", content_id="", is_inline=False, data=b"%PDF" * 30)
LOGO = payload.Attachment(filename="logo.png", content_type="image/png", content_id="a@b", is_inline=True, data=b"\x89PNG")


def mail() -> tuple[bytes, Asked]:
    """Return a mail of every kind of part that the reader knows, and what it has to say."""
    text, html = body.text_part("Hello\r\n", "plain"), body.text_part("<p>naïve</p>\r\n", "html")
    root = body.tree(text, html, [PDF, LOGO], "0")
    lines = [
        header.mailboxes("To", [ANN]),
        header.mailboxes("Cc", [BOB, LIU]),
        header.text("Subject", SUBJECT),
        "X-Plain: You are invited",
        "X-Q: =?utf-8?q?J=C3=B6rg,_a=3Db?=".replace(",", "=2C"),
        "X-None:",
        "MIME-Version: 1.0\r\n",
    ]
    fields: list[Field] = [
        ("To", (ANN,)),
        ("Cc", (BOB, LIU)),
        f"Subject: {SUBJECT}",
        "X-Plain: You are invited",
        "X-Q: Jörg, a=b",
        "X-None:",
    ]
    asked = Asked(fields=fields, root=root)
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
        {"subject": "Приглашение на встречу " * 12},
        {"subject": "=?utf-8?q?a?= "},
        {"subject": ""},
        {"subject": "Are you there?", "headers": {"X-A": "刘瑞" * 90}},
        {"to": {"name": "刘瑞", "email": "a@example.org"}},
        {"to": [{"name": "Example, Dr. Ann (you)", "email": "a@example.org"}, {"name": "é" * 90, "email": "b@example.org"}] * 5},
        {"to": [], "bcc": "ann@example.org"},
        {"text": "Привет\n" * 30, "html": "<p>é</p>" * 30},
    ],
)
def test_mail_in_any_language_is_proven_without_the_parsers(changed: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded words, names in quotes and a group of nobody are nothing that two readers could disagree about."""
    monkeypatch.setattr(proof, "message_from_string", None)
    assert composed(**changed).content


@pytest.mark.parametrize(
    "changed",
    [
        {"to": {"name": 'Ann "A." Example', "email": "a@example.org"}},
        {"to": "käthe@example.org"},
        {"headers": {"References": "<a=?b@example.org>"}},
        {"attachments": [{"filename": "plän.pdf", "content": "AAAA"}]},
    ],
)
def test_other_mail_is_left_to_the_parsers(changed: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where readers could disagree, two that are known must agree."""
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
        (b"X-Plain: You", b"Bcc: x@example.org\r\nX-Plain: You"),
        (b"X-Plain: You are", b"X-Plain: You  are"),
        (b"X-Plain: You are", b"X-Plain: You are\r"),
        (b"X-Plain: You are", b"X-Plain: You are\n"),
        (b"X-Plain: You are", b"X-Plain: You are\t"),
        (b"X-Plain: You are", b"X-Plain: You \xe4re"),
        (b"X-Plain: You are", b"X-Plain: =?utf-8?q?You?= are"),
        (b"X-Plain:", b"X-plain:"),
        (b"X-None:", b"X-None:\r\n "),
        (b"X-None:", b"X-None: "),
        (b"X-None:", b"X-None: ?"),
        (b"X-None:", b"X-None: =?utf-8?q??="),
        (b"X-None:", b"X-Null:"),
        (b"X-Q: =?utf-8?q?J", b"X-R: =?utf-8?q?J"),
        (b"X-Q: =?utf-8?q?J", b"X-Q: =?utf-8?q?j"),
        (b"X-Q: =?utf-8?q?J", b"X-Q: =?utf-8?Q?J"),
        (b"X-Q: =?utf-8?q?J", b"X-Q: =?utf-8*de?q?J"),
        (b"X-Q: =?utf-8?q?J", b"X-Q: =?latin1?q?J"),
        (b"=3Db?=", b"=b?="),
        (b"=3Db?=", b"=3Db?= "),
        (b"=3Db?=", b"=3D?= =?utf-8?q??= =?utf-8?q?b?="),
        (b"=3Db?=", b"=3Db?=b"),
        (b"=3Db?=", b"=3D?= b"),
        (b"=3Db?=", b"=3D?=  =?utf-8?q?b?="),
        (b"=C3=B6", b"=C3?= =?utf-8?q?=B6"),
        (b"Subject: =?utf-8?b?", b"Subject: =?utf-8?b?="),
        (b'"Example, Bob"', b"Example, Bob"),
        (b'"Example, Bob"', b'"Example, Bob" (x)'),
        (b'"Example, Bob"', b'"Example, \\Bob"'),
        (b'"Example, Bob"', b'"Example, Bob'),
        (b'"Example, Bob"', b'"Example,  Bob"'),
        (b'Bob" <bob@', b'Bob" <bab@'),
        (b'Bob" <bob@', b'Bob"<bob@'),
        (b"bob@example.org>,", b"bob@example.org>;"),
        (b"bob@example.org>,", b"bob@example.org>, bob@example.org,"),
        (b"<liu@example.org>", b"<liu@example.org>,\r\n x@example.org"),
        (b"<liu@example.org>", b"<liu@example.org>,\r\n "),
        (b"<liu@example.org>", b"<liu@example.org>\r\n "),
        (b"Ann Example <ann", b"Ann  Example <ann"),
        (b"Ann Example <ann", b'"=?utf-8?q?Ann_Example?=" <ann'),
        (b"Ann Example <ann@example.org>", b""),
        (b"To: Ann", b"To: Bob"),
        (b"To: Ann", b"Tx: Ann"),
        (b"bob@example.org>, ", b"bob@example.org>,"),
        (b"To: Ann Example <ann@", b"To: Ann Example <bob@"),
        (b"MIME-Version: 1.0\r\n", b""),
        (b"MIME-Version: 1.0", b"MIME-Version: 1.1"),
        (b"mixed", b"digest"),
        (b"Content-Type: multipart/mixed;\r\n", b"Content-Type: multipart/mixed;\r\n\t"),
        (b"Content-Type: multipart/mixed", b"Content-ID: <x>\r\nContent-Type: multipart/mixed"),
        (b"Content-Type: multipart/mixed", b"X-Type: multipart/mixed"),
        (b"Content-Type: multipart/mixed", b"multipart/mixed"),
        (b"X-None:\r\nMIME-Version", b"X-None:\r\nX: MIME-Version"),
        (b"MIME-Version: 1.0\r\n", b"MIME-Version: 1.0\r\n (x)\r\n"),
        (b'boundary="=_m0"', b'boundary="=_m0"\r\nContent-ID: <x>'),
        (b'boundary="=_a0"', b'boundary="=_a1"'),
        (b';\r\n boundary="=_m0"', b""),
        (b'boundary="=_m0"', b'x="\x01";\r\n boundary="=_m0"'),
        (b'boundary="=_m0"', b'boundary="=_a0";\r\n boundary="=_m0"'),
        (b' name="plan.pdf"', b' name="plan\x01.pdf"'),
        (b' name="plan.pdf"', b' name="=?utf-8?q?plan.pdf?="'),
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
        (b"Content-Transfer-Encoding: 7bit", b"Content-Transfer-Encoding:\r\n 7bit"),
        (b"To: Ann", b"To:\r\n Ann"),
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


@pytest.mark.parametrize(
    ("line", "box"),
    [
        ("A  B <ann@example.org>", Mailbox("A  B", "ann", "example.org")),
        ("=?utf-8?q?a?=@example.org", Mailbox("", "=?utf-8?q?a?=", "example.org")),
        ("Ann <=?utf-8?q?a?=@example.org>", Mailbox("Ann", "=?utf-8?q?a?=", "example.org")),
        ("=?utf-8?q?A?= n <ann@example.org>", Mailbox("=?utf-8?q?A?= n", "ann", "example.org")),
    ],
)
def test_mailbox_that_some_readers_change_is_not_proven(line: str, box: Mailbox) -> None:
    """Octet for octet what was asked, and yet not what everybody reads."""
    root = body.text_part("x\r\n", "plain")
    content = f"To: {line}\r\nMIME-Version: 1.0\r\n".encode() + root.wire()
    assert not is_read(content, [("To", (box,))], root)
    assert proof._full_fault(content, Asked([("To", (box,))], root)) == "To"  # noqa: SLF001  the claim is about this


def test_group_that_may_hold_somebody_is_not_proven() -> None:
    """Only the one that everybody writes is known to be empty."""
    root = body.text_part("x\r\n", "plain")
    for line, is_empty in (
        ("undisclosed-recipients:;", True),
        ("Team:;", False),
        ("undisclosed-recipients: a@b.example;", False),
    ):
        content = f"To: {line}\r\nMIME-Version: 1.0\r\n".encode() + root.wire()
        assert is_read(content, [("To", ())], root) is is_empty


@pytest.mark.parametrize("changed", [{"filename": "a.txt"}, {"content_id": "a@b"}, {"content_type": "text/calendar"}])
def test_file_that_stands_there_as_a_text_is_not_proven(changed: dict[str, str]) -> None:
    """Its name is missed."""
    root = body.text_part("x\r\n", "plain")
    content = b"MIME-Version: 1.0\r\n" + root.wire().replace(b"text/plain", changed.get("content_type", "text/plain").encode())
    assert not is_read(content, [], replace(root, **changed))


PIECES = some.sampled_from(
    [
        b"\r\n", b" ", b"\t", b";", b'"', b"\r\n ", b"\r\n\r\n", b"--", b"--=_m0", b"\r\n--=_a0\r\n", b"\r\n--=_r0--", b"=",
        b"=?utf-8?q?", b"?=", b"?= =?utf-8?b?", b"_",
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


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("=?utf-8?q?J=C3=B6rg?=", "Jörg"),
        ("=?utf-8?q?J=c3=b6rg?=", "Jörg"),
        ("=?utf-8?q?=C3=B6?= =?utf-8?b?w7Y=?=", "öö"),
        ("=?utf-8?q?_?=", " "),
        ("=?utf-8?q?" + "a" * 63 + "?=", "a" * 63),
    ],
)
def test_encoded_words_are_read(written: str, read: str) -> None:
    """A blank between two of them is none of the text."""
    assert decoded_words(written) == read


@pytest.mark.parametrize(
    "written",
    [
        "", "a", "=?utf-8?q?a?=b", "a =?utf-8?q?a?=", "=?utf-8?q?a?= b",
        "=?utf-8?q?a?==?utf-8?q?b?=", "=?utf-8?q?a?=  =?utf-8?q?b?=",
        "=?utf-8?q??=", "=?utf-8?q?a b?=", "=?utf-8?q?a?b?=", "=?utf-8?q?(a)?=", "=?utf-8?q?" + "a" * 64 + "?=",
        "=?utf-8?q?=4?=", "=?utf-8?q?=?=", "=?utf-8?q?==41?=", "=?utf-8?q?=GG?=",
        "=?utf-8?q?=FF?=", "=?utf-8?q?=C3?= =?utf-8?q?=B6?=", "=?utf-8?q?=ED=A0=80?=",
        "=?utf-8?b?w7Y?=", "=?utf-8?b?w7Y==?=", "=?utf-8?b?w7Y=w7Y=?=", "=?utf-8?b?w===?=",
        "=?utf-8?b?/w==?=", "=?utf-8?b?w-_=?=",
        "=?UTF-8?q?a?=", "=?utf-8?Q?a?=", "=?utf-8*en?q?a?=", "=?us-ascii?q?a?=", "=?utf-8?x?a?=",
    ],
)  # fmt: skip
def test_words_that_could_be_read_in_two_ways_say_nothing(written: str) -> None:
    """Cut characters, missing digits, lax base64, other charsets: each is taken in its own way by some reader."""
    assert decoded_words(written) is None


SCRAPS = some.sampled_from(
    [
        "=?utf-8?q?", "=?utf-8?b?", "?=", "?= =?utf-8?q?", "?= =?utf-8?b?", " ", "_", "=", "=C3", "=B6", "=3D", "=0A", "w7Y=",
        "YQ==", "?", "a",
    ]
)  # fmt: skip
WRITTEN = TEXTS.map(lambda text: header.text("X", text).removeprefix("X: ").replace("\r\n", ""))
WORDS = some.lists(some.one_of(SCRAPS, WRITTEN), max_size=7).map("".join)


@HOSTILE
@given(WORDS)
def test_words_that_are_read_say_the_same_to_both_parsers(written: str) -> None:
    """What the brief reader makes of encoded words, the standard library makes of them."""
    said = decoded_words(written)
    if said is not None and said.isprintable():
        mail = {
            policy: message_from_string(f"Subject: {written}\r\n\r\n", policy=policy)["Subject"] for policy in (default, compat32)
        }
        assert mail[default] == said
        assert str(make_header(decode_header(mail[compat32]))) == said


@HOSTILE
@given(subject=TEXTS, name=TEXTS, other=TEXTS)
def test_what_is_written_and_read_is_what_both_parsers_read(subject: str, name: str, other: str) -> None:
    """Whatever the texts: a yes to our own writing is a yes of the two long readers."""
    boxes = (Mailbox(name.strip(), "ann", "example.org"), Mailbox(other.strip(), "bob", "example.org"))
    fields: list[Field] = [("To", boxes), ("Reply-To", boxes[1:]), f"Subject: {subject}" if subject else "Subject:"]
    lines = [header.mailboxes("To", boxes), header.mailboxes("Reply-To", boxes[1:])]
    lines += [header.text("Subject", subject), "MIME-Version: 1.0\r\n"]
    root = body.text_part("Hello\r\n", "plain")
    content = "\r\n".join(lines).encode() + root.wire()
    if is_read(content, fields, root):
        assert proof._full_fault(content, Asked(fields, root)) == ""  # noqa: SLF001  the claim is about this


def test_senders_that_are_remembered_are_few() -> None:
    """A job may name any sender; the memory of a worker must not grow with them."""
    for number in range(200):
        composed(**{"from": f"a{number}@example.org"})
    assert header.sender.cache_info().currsize <= 64
    assert brief._names_sender.cache_info().currsize <= 64  # noqa: SLF001  the claim is about this


def test_sender_that_is_remembered_is_read_again() -> None:
    """The same line for another sender is no proof."""
    line, other = "From: Ann <ann@example.org>", Mailbox("Ann", "eve", "example.org")
    for box, is_his in ((Mailbox("Ann", "ann", "example.org"), True), (other, False)):
        root = body.text_part("x\r\n", "plain")
        content = f"{line}\r\nMIME-Version: 1.0\r\n".encode() + root.wire()
        assert is_read(content, [("From", (box,))], root) is is_his


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
