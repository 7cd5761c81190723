"""header: fields as they stand on the wire, octet by octet."""

from __future__ import annotations

import re

import pytest

from daemon.core.message import header
from daemon.core.message.address import Mailbox
from daemon.core.message.brief import decoded_words
from daemon.core.message.message import Refusal
from tests.core.message.composing import composed, lines_of, parsed

WORD = re.compile(r"=\?utf-8\?[bq]\?[!-~]*\?=")


def box(name: str = "", address: str = "ann@example.org") -> Mailbox:
    """Return a mailbox without checks."""
    local, _, domain = address.rpartition("@")
    return Mailbox(name, local, domain)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("", "Subject:"),
        ("You are invited", "Subject: You are invited"),
        ('a = b? (yes); "c" <d@e>, f\\', 'Subject: a = b? (yes); "c" <d@e>, f\\'),
        ("a" * 69, "Subject: " + "a" * 69),
        ("a" * 68 + " b c", "Subject: " + "a" * 68 + "\r\n b c"),
        ("a" * 67 + "   b", "Subject: " + "a" * 67 + "\r\n   b"),
        ("a" * 200 + " b", "Subject: " + "a" * 200 + "\r\n b"),
        ("a" * 989, "Subject: " + "a" * 989),
        (" a", "Subject: =?utf-8?q?_a?="),
        ("a ", "Subject: =?utf-8?q?a_?="),
        (" ", "Subject: =?utf-8?q?_?="),
        ("what=?", "Subject: =?utf-8?b?d2hhdD0/?="),
        ("Invitation: Jörg, Ann + you", "Subject: =?utf-8?q?Invitation=3A_J=C3=B6rg=2C_Ann_+_you?="),
        ("Приглашение", "Subject: =?utf-8?b?0J/RgNC40LPQu9Cw0YjQtdC90LjQtQ==?="),
        ("🎉", "Subject: =?utf-8?b?8J+OiQ==?="),
    ],
)  # fmt: skip
def test_text_is_written_as(value: str, line: str) -> None:
    """Plain where every reader reads it as it is, else encoded as a whole."""
    assert header.text("Subject", value) == line
    assert parsed(composed(subject=value))["Subject"] == value


def test_text_that_looks_encoded_is_encoded_again() -> None:
    """On the wire no reader finds the word that the job's author wrote, and the one it finds is that word's text."""
    value = "=?utf-8?q?Hi=0D=0ABcc:_x=40example.net?="
    line = header.text("Subject", value)
    assert WORD.sub("", line).split() == ["Subject:"]
    assert "Bcc" not in line
    mail = parsed(composed(subject=value, headers={"X-A": value}, to={"name": value, "email": "ann@example.org"}))
    assert (mail["Subject"], mail["X-A"], mail["Bcc"]) == (value, value, None)


LONG = ["Приглашение на встречу " * 12, "🎉" * 100, "ab é" * 100, "刘瑞" * 90, "=?" * 100, "a" * 1000]
CUT_ANYWHERE = ["x" * before + character + "y" * 80 for before in range(38, 60) for character in ("é", "🎉", "=?")]


@pytest.mark.parametrize("value", [*LONG, *CUT_ANYWHERE])
def test_encoded_words_fit_their_lines(value: str) -> None:
    """75 octets a word, 76 a line, and no code point is cut in two (RFC 2047 sections 2 and 5)."""
    lines = header.text("Subject", value).removeprefix("Subject: ").split("\r\n ")
    assert len(lines) > 1
    assert decoded_words(" ".join(lines)) == value
    for number, line in enumerate(lines):
        assert WORD.fullmatch(line)
        assert len(line) <= (67 if number == 0 else 75)
        assert decoded_words(line)
        assert parsed(composed(headers={"X-Word": line}))["X-Word"] == line
    assert parsed(composed(subject=value))["Subject"] == value


def test_spaces_between_encoded_words_survive() -> None:
    """The standard library loses them on 3.10 to 3.12; here they are inside the words."""
    value = "Приглашение на встречу" + " x" * 40
    assert parsed(composed(subject=value))["Subject"] == value


@pytest.mark.parametrize(
    ("boxes", "lines"),
    [
        ([box()], "To: ann@example.org"),
        ([box("Ann Example")], "To: Ann Example <ann@example.org>"),
        ([box("Example, Ann")], 'To: "Example, Ann" <ann@example.org>'),
        ([box("Dr. Ann")], 'To: "Dr. Ann" <ann@example.org>'),
        ([box("A  B")], 'To: "A  B" <ann@example.org>'),
        ([box('a"b\\')], 'To: "a\\"b\\\\" <ann@example.org>'),
        ([box("刘瑞")], "To: =?utf-8?b?5YiY55Ge?= <ann@example.org>"),
        ([box("Jörg, J."), box("Ann")], "To: =?utf-8?b?SsO2cmcsIEou?= <ann@example.org>, Ann <ann@example.org>"),
        (
            [box("Team Invitations, Inc.", f"a{'b' * 40}@example.org"), box("Bob"), box("Cleo")],
            f'To: "Team Invitations, Inc." <a{"b" * 40}@example.org>,\r\n Bob <ann@example.org>, Cleo <ann@example.org>',
        ),
        (
            [box("é" * 30, "a@b.example"), box()],
            f"To: =?utf-8?b?{'w6nDqcOp' * 6}w6k=?=\r\n =?utf-8?b?{'w6nDqcOp' * 3}w6nDqQ==?= <a@b.example>, ann@example.org",
        ),
    ],
)  # fmt: skip
def test_mailboxes_are_written_as(boxes: list[Mailbox], lines: str) -> None:
    """Quotes stay whole, addresses are never encoded, folds are between mailboxes and between encoded words."""
    assert header.mailboxes("To", boxes) == lines


def test_long_name_with_a_comma_stays_one_mailbox() -> None:
    """The standard library loses the quotes when it folds, and makes two of it."""
    name = "Team Invitations at A Really Long Company Name Incorporated, International Division of Things"
    message = composed(**{"from": {"name": name, "email": "very.long.address.of.somebody@subdomain.example.org"}})
    assert lines_of(message, "From") == f'From: "{name}" <very.long.address.of.somebody@subdomain.example.org>'


def test_identifiers_are_folded_at_spaces_only() -> None:
    """A message id cut in two is no message id."""
    ids = [f"<{'a' * 40}{number}@example.org>" for number in range(3)]
    assert header.identifiers("References", " ".join(ids), "") == "References: " + "\r\n ".join(ids)


def test_identifier_of_a_thousand_octets_is_refused() -> None:
    """It can be neither folded nor encoded, and a line ends at 998."""
    longest = "a" * (998 - len("References: "))
    assert header.identifiers("References", longest, "") == f"References: {longest}"
    with pytest.raises(Refusal, match="header_too_long"):
        header.identifiers("References", longest + "a", "headers.References")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("plan v2 (final).pdf", ['filename="plan v2 (final).pdf"']),
        ("Größe.pdf", ["filename*=utf-8''Gr%C3%B6%C3%9Fe.pdf"]),
        ('a"b.pdf', ["filename*=utf-8''a%22b.pdf"]),
        ("a;b*c%d'e.pdf", ["filename*=utf-8''a%3Bb%2Ac%25d%27e.pdf"]),
        ("=?utf-8?q?a?=", ["filename*=utf-8''%3D%3Futf-8%3Fq%3Fa%3F%3D"]),
        (
            "价格" * 5 + ".pdf",
            [
                "filename*0*=utf-8''%E4%BB%B7%E6%A0%BC%E4%BB%B7%E6%A0%BC%E4%BB%B7",
                "filename*1*=%E6%A0%BC%E4%BB%B7%E6%A0%BC%E4%BB%B7%E6%A0%BC.pdf",
            ],
        ),
    ],
)
def test_file_name_is_written_as(name: str, parameters: list[str]) -> None:
    """RFC 2231, cut between characters."""
    assert header.file_name(name) == parameters
