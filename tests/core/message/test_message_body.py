"""body: transfer encodings, and the structure of parts."""

from __future__ import annotations

import base64
import os

import pytest

from daemon.core.message import body
from tests.core.message.composing import composed, parsed

LONG = "z" * 76
PNG = {"filename": "logo.png", "content_type": "image/png", "content": "iVBORw0KGgo=", "cid": "logo", "inline": True}
PDF = {"filename": "plan.pdf", "content_type": "application/pdf", "content": "JVBERg=="}


def encoded(message_text: str) -> tuple[str, bytes]:
    """Return the transfer encoding and the wire form of a text."""
    part = body.text_part(message_text, "plain")
    return part.encoding, part.body


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", "a\r\n"),
        ("a\nb\n", "a\r\nb\r\n"),
        ("a\rb\r\nc\n\rd", "a\r\nb\r\nc\r\n\r\nd\r\n"),
        ("\r\r\n", "\r\n\r\n"),
        ("a\u2028b\x85", "a\u2028b\x85\r\n"),
    ],
)
def test_every_line_ends_in_crlf(given: str, read: str) -> None:
    """Bare CR and LF are line ends too; nothing else is."""
    assert body.normalised(given) == read


@pytest.mark.parametrize(
    ("text", "encoding", "wire"),
    [
        ("Hello\r\n", "7bit", b"Hello\r\n"),
        (".\r\n..\r\n.x\r\n", "7bit", b".\r\n..\r\n.x\r\n"),
        ("a\tb\r\n", "7bit", b"a\tb\r\n"),
        (LONG + "\r\n", "7bit", LONG.encode() + b"\r\n"),
        (LONG + "z\r\n", "quoted-printable", b"z" * 75 + b"=\r\nzz\r\n"),
        ("-- \r\n", "quoted-printable", b"--=20\r\n"),
        ("a\t\r\n", "quoted-printable", b"a=09\r\n"),
        ("--=_m\r\n", "quoted-printable", b"--=3D_m\r\n"),
        ("a naïve = sign\r\n", "quoted-printable", b"a na=C3=AFve =3D sign\r\n"),
        ("Привет\r\n", "base64", b"0J/RgNC40LLQtdGCDQo="),
        ("a\0b\x0cc\r\n", "base64", b"YQBiDGMNCg=="),
        ("a\x7f\r\n", "base64", b"YX8NCg=="),
        ("é" + "a" * 8 + "\r\n", "quoted-printable", b"=C3=A9aaaaaaaa\r\n"),
        ("é" + "a" * 7 + "\r\n", "base64", b"w6lhYWFhYWFhDQo="),
        (
            "é" * 30 + "\r\n",
            "base64",
            b"w6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nDqcOpw6nD\r\nqcOpDQo=",
        ),
    ],
)
def test_text_travels_as(text: str, encoding: str, wire: bytes) -> None:
    """As it is, if every relay leaves it alone; else quoted, or in base64 where that is shorter or needed."""
    assert encoded(text) == (encoding, wire)


def test_relay_never_sees_more_than_seven_bits_or_76_octets() -> None:
    """No 8BITMIME is needed, and no signature breaks on the way."""
    message = composed(
        text="é " * 500 + "x" * 3000, html="<p>" + "刘" * 3000 + "</p>", attachments=[PDF | {"content": "QUJD" * 999}]
    )
    assert message.content.isascii()
    assert max(map(len, message.content.split(b"\r\n"))) <= 76


@pytest.mark.parametrize(
    ("payload", "structure"),
    [
        ({}, ["text/plain"]),
        ({"html": "<p>x</p>"}, ["multipart/alternative", "text/plain", "text/html"]),
        ({"text": None, "html": "<p>x</p>"}, ["multipart/alternative", "text/plain", "text/html"]),
        ({"text": "", "html": "<img src=cid:logo>"}, ["text/html"]),
        ({"text": None, "html": "<img>", "attachments": [PNG]}, ["multipart/related", "text/html", "image/png"]),
        ({"attachments": [PDF]}, ["multipart/mixed", "text/plain", "application/pdf"]),
        (
            {"html": "<p>x</p>", "attachments": [PDF, PNG, PDF]},
            [
                "multipart/mixed",
                "multipart/alternative",
                "text/plain",
                "multipart/related",
                "text/html",
                "image/png",
                "application/pdf",
                "application/pdf",
            ],
        ),
    ],
)
def test_parts_stand_in_this_order(payload: dict[str, object], structure: list[str]) -> None:
    """Readers show the last alternative that they understand, so that the plain text comes first."""
    assert [part.get_content_type() for part in parsed(composed(**payload)).walk()] == structure


def test_html_alone_gets_its_words_as_text() -> None:
    """The link too: an invitation without it is worthless."""
    mail = parsed(composed(text=None, html="<h1>Hi</h1><p>Open <a href='https://example.org/i/1'>this</a></p>"))
    text = mail.get_body(("plain",))
    assert text is not None
    assert text.get_content() == "Hi\r\n\r\nOpen this (https://example.org/i/1)\r\n"


def test_inline_image_is_not_listed_as_an_attachment() -> None:
    """It has the disposition inline and the content id that the HTML names."""
    mail = parsed(composed(html="<img src=cid:logo>", attachments=[PNG]))
    [image] = [part for part in mail.walk() if part.get_content_type() == "image/png"]
    assert (image["Content-ID"], image.get_content_disposition()) == ("<logo>", "inline")
    assert list(mail.iter_attachments()) == []


def test_attachment_with_a_content_id_may_stay_an_attachment() -> None:
    """Not every named part is shown inside the text."""
    [part] = parsed(composed(attachments=[PDF | {"cid": "plan@example.org"}])).iter_attachments()
    assert (part["Content-ID"], part.get_content_disposition()) == ("<plan@example.org>", "attachment")


@pytest.mark.parametrize("size", [0, 1, 57, 58, 200_000])
def test_octets_of_a_file_arrive(size: int) -> None:
    """Every octet, whatever the length."""
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    [part] = parsed(composed(attachments=[{"content": base64.b64encode(data).decode()}])).iter_attachments()
    assert part.get_payload(decode=True) == data


def test_text_that_holds_a_boundary_cannot_end_its_part() -> None:
    """Somebody who knows the job's uid could write its boundary into a name."""
    content = composed(attachments=[PDF]).content
    boundary = content[content.index(b"--=_") :].partition(b"\r\n")[0].decode()
    text = f"a\r\n{boundary}--\r\n{boundary}\r\nContent-Type: text/html\r\n\r\n<b>evil</b>\r\n"
    mail = parsed(composed(text=text, attachments=[PDF]))
    plain = mail.get_body(("plain",))
    assert plain is not None
    assert plain.get_content() == text
    assert [part.get_content_type() for part in mail.walk()] == ["multipart/mixed", "text/plain", "application/pdf"]


def test_every_line_break_is_that_of_the_wire() -> None:
    """No bare CR or LF is left, which is what smuggling needs."""
    content = composed(text=f"a\nb\rc{os.linesep}d\r\r\n", html="\r<p>\n", subject="é" * 90).content
    assert content.count(b"\r\n") == content.count(b"\r") == content.count(b"\n")
    assert content.endswith(b"\r\n")
