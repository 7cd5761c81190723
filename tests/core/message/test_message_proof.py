"""proof: a mail that says anything else than it was asked for is found out, by the brief proof and by the full one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from daemon.core.message import body, header, payload, proof
from daemon.core.message.address import Mailbox
from daemon.core.message.message import Unbuildable
from daemon.core.message.proof import Asked, mismatch
from tests.core.message.composing import composed, outcome_of, refused

ANN = Mailbox("Ann Example", "ann", "example.org")
BOB = Mailbox("", "bob", "example.org")
LIU = Mailbox("刘瑞, Dr.", "liu", "example.org")
PDF = payload.Attachment(
    filename="plän.pdf", content_type="application/pdf", content_id="a@b", is_inline=False, data=b"%PDF" * 30
)
LARGE = payload.Attachment(filename="large.bin", content_type="a/b", content_id="", is_inline=False, data=bytes(range(256)) * 400)


def mail(to: Sequence[Mailbox], subject: str, root: body.Part) -> tuple[bytes, Asked]:
    """Return a small mail, and what it has to say."""
    lines = [header.mailboxes("To", to), header.text("Subject", subject), "MIME-Version: 1.0\r\n"]
    content = "\r\n".join(lines).encode() + root.wire()
    asked = Asked(fields=[("To", tuple(to)), f"Subject: {subject}"], root=root)
    return content if content.endswith(b"\r\n") else content + b"\r\n", asked


def plain() -> tuple[bytes, Asked]:
    """Return a mail that the brief proof proves."""
    return mail([ANN, BOB], "You are invited", body.text_part("Hello\r\nBye\r\n", "plain"))


def rich() -> tuple[bytes, Asked]:
    """Return a mail that only the full proof proves."""
    text, html = body.text_part("naïve text\r\n", "plain"), body.text_part("<p>刘瑞</p>\r\n", "html")
    return mail([LIU, ANN], "Grüße, Приглашение на встречу в следующую пятницу", body.tree(text, html, [PDF, LARGE], "0"))


def test_what_was_asked_is_proven() -> None:
    """Neither proof finds fault with an honest mail."""
    assert mismatch(*plain()) == ""
    assert mismatch(*rich()) == ""


def test_plain_mail_is_proven_without_the_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The common case costs microseconds; a fold changes nothing about it."""
    monkeypatch.setattr(proof, "message_from_string", None)
    to = ["Ann Example <ann@example.org>"] * 9
    message = composed(subject="word " * 40 + "end", to=to, headers={"X-A": "a (b) <c>"}, text="é" * 90 + "\n" * 9)
    assert message.recipients == ("ann@example.org",)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"Subject: You", b"Bcc: x@example.org\r\nSubject: You", "header names"),
        (b"Subject: You", b"Subject: you", "Subject"),
        (b"Subject: You are invited", b"Subject: You are invited\r\n=20", "header names"),
        (b"To: Ann", b"To: ann", "To"),
        (b"Ann Example <ann@example.org>", b'"Ann Example" <ann@evil.example>', "To"),
        (b", bob@example.org", b", bob@example.org, x@example.org", "To"),
        (b", bob@example.org", b" bob@example.org", "To"),
        (b"To: Ann Example", b"To: =?utf-8?q?Ann_=41xample?=", "To"),
        (b"MIME-Version: 1.0\r\n", b"", "header names"),
        (b"text/plain", b"text/html", "content type"),
        (b": 7bit", b": base64", "body"),
        (b"Hello", b"hello", "body"),
        (b"Bye", b"Bye\r\n", "body"),
        (b"Hello\r\n", b"Hello\n", "line ends"),
        (b"Hello\r\n", b"Hello\r", "line ends"),
        (b"Hello\r\n", b"Hello\n\r", "line ends"),
        (b"Hello\r\n", b"Hello\r\r\n", "line ends"),
        (b"Hello\r\n", b"Hello\n\r\n", "line ends"),
        (b"Bye\r\n", b"Bye\r\n\r", "line ends"),
        (b"Bye\r\n", b"Bye", "line ends"),
        (b"Hello", b"Hell\0", "octets"),
        (b"Hello", "Hellö".encode(), "octets"),
        (b"Hello", b"Hello" + b"o" * 993, "body"),
        (b"Hello", b"Hello" + b"o" * 994, "line length"),
    ],
)
def test_plain_mail_that_says_something_else_is_found_out(old: bytes, new: bytes, fault: str) -> None:
    """One change each; the name of what differs is the answer."""
    content, asked = plain()
    assert old in content
    assert mismatch(content.replace(old, new), asked) == fault


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"Subject:", b"X-A: 1\r\nSubject:", "header names"),
        (b"=?utf-8?b?R3L", b"=?utf-8?b?R3I", "Subject"),
        (b"liu@", b"lia@", "To"),
        (b"Ann Example", b"Ann, Example", "To"),
        (b"Ann Example", b"AnnExample", "To"),
        (b"multipart/alternative", b"multipart/related", "content type"),
        (b"na=C3=AFve", b"naive", "body"),
        (b"PHA+", b"PGI+", "body"),
        (b"Content-ID: <a@b>", b"Content-ID: <a@c>", "content id"),
        (b"pl%C3%A4n", b"plan", "file name"),
        (b"JVBERiVQ", b"JVBERiVR", "body"),
        (b"--=_m0--", b"--=_m0", "parts"),
        (b"\r\n--=_m0--", b"\r\n--=_m0\r\n\r\nmore\r\n--=_m0--", "parts"),
        (b"gYKDhIWG", b"gYKDhIWH", "body"),
    ],
)
def test_rich_mail_that_says_something_else_is_found_out(old: bytes, new: bytes, fault: str) -> None:
    """One change each, in the last place where it can be made."""
    content, asked = rich()
    assert old in content
    head, _, tail = content.rpartition(old)
    assert mismatch(head + new + tail, asked) == fault


def test_large_file_is_cut_short_for_the_parsers_only() -> None:
    """A change behind the first lines is found, though no parser sees that far."""
    content, asked = rich()
    position = content.rindex(b"gYKDhIWG")
    assert position > content.index(b"large.bin") + 100_000
    assert mismatch(content[:position] + b"A" + content[position + 1 :], asked) == "body"


def test_large_part_that_was_written_wrong_is_found_out() -> None:
    """What is cut away from the parsers is decoded and compared before."""
    content, asked = rich()
    *others, large = asked.root.children
    large = replace(large, data=large.data[:-1] + b"x")
    assert mismatch(content, Asked(fields=asked.fields, root=replace(asked.root, children=(*others, large)))) == "body"


def test_boundary_within_a_large_part_is_found_out() -> None:
    """The parsers see all of a body that could hold one."""
    text = "a" * 70 + "\r\n"
    evil = text * 100 + "--=_m0--\r\n" + text * 1000
    part = replace(body.text_part(evil, "plain"), encoding="7bit", body=evil.encode())
    part = replace(part, fields=part.fields.replace("quoted-printable", "7bit"))
    assert mismatch(*mail([ANN], "Hi", body.tree(part, None, [PDF], "0"))) == "parts"


def test_plain_field_that_readers_would_decode_is_found_out() -> None:
    """The brief proof compares octets and doesn't know about encoded words, so that it leaves these alone."""
    content, asked = plain()
    word = "=?utf-8?q?Hi?="
    asked = replace(asked, fields=[asked.fields[0], f"Subject: {word}"])
    assert mismatch(content.replace(b"You are invited", word.encode()), asked) == "Subject"


def test_what_a_parser_cannot_read_is_a_mismatch() -> None:
    """A parser that raises has confirmed nothing; the legacy one does for this charset, where the modern one finds no fault."""
    content, asked = plain()
    word = "=?0?Q???="
    asked = replace(asked, fields=[asked.fields[0], f"Subject: {word}"])
    assert mismatch(content.replace(b"You are invited", word.encode()), asked) in {"parser: LookupError", "Subject"}


def test_only_an_address_may_leave_ascii() -> None:
    """A mail that needs no SMTPUTF8 must not use it, and one that says it does must."""
    content, asked = plain()
    to = (replace(ANN, local="änn"), BOB)
    assert mismatch(content, Asked(fields=[("To", to), *asked.fields[1:]], root=asked.root)) == "octets"
    octets = "naïve\r\n".encode()
    part = replace(asked.root, body=octets, data=octets)
    assert mismatch(*mail([ANN, BOB], "You are invited", part)) == "octets"


def test_mail_that_is_not_proven_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of the standard library's old fault, if our own writer had it."""
    monkeypatch.setattr(header, "text", lambda name, value: f"{name}: {value}\r\nBcc: x@example.net")
    assert refused(subject="Hi") == Unbuildable(
        "proof_failed", "header names", "the finished mail does not say what the job asks for"
    )
    monkeypatch.undo()
    monkeypatch.setattr(
        header, "mailboxes", lambda name, boxes: f"{name}: {', '.join(f'{box.name} <{box.address}>' for box in boxes)}"
    )
    found = outcome_of({"to": {"name": "Things, Inc.", "email": "a@example.org"}, "text": "x"})
    assert isinstance(found, Unbuildable)
    assert found.field == "To"


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (b"", ""),
        (b"x" * 999 + b"\r\n", "line length"),
        (b"x" * 998 + b"\r\n", ""),
        (b"x\n", "line ends"),
        (b"x\rx\r\n", "line ends"),
        (b"x\0\r\n", "octets"),
        (b"x", "line ends"),
    ],
)
def test_large_mails_are_looked_at_without_keeping_anything_for_each_line(
    wrong: bytes, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expression keeps a hundred bytes for each: with eight megabytes of empty lines that was half a gigabyte."""
    monkeypatch.setattr(proof, "_LINES", None)
    _, asked = plain()
    found = mismatch(b"a line\r\n" * 10_000 + wrong, asked)
    assert found == fault if fault else found not in {"line length", "line ends", "octets"}
