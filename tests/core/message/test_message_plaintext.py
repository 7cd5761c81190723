"""plaintext: the words of an HTML text."""

from __future__ import annotations

import pytest

from daemon.core.message import plaintext


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("Hello", "Hello"),
        ("<p>Hello\n   Ann</p><p>Bye</p>", "Hello Ann\n\nBye"),
        ("a<br>b<BR/>c", "a\nb\nc"),
        ("<ul><li>one</li><li>two</li></ul>", "one\n\ntwo"),
        ("<b>bo</b>ld", "bold"),
        ('<a href="https://example.org/?a=1&amp;b=2">open</a>', "open (https://example.org/?a=1&b=2)"),
        ("<A class=x HREF='mailto:a@b.c'>mail</A>", "mail (mailto:a@b.c)"),
        ("<a href=https://x.example>x</a> y", "x (https://x.example) y"),
        ("<a href='#top'>up</a> <a href='javascript:x'>do</a> <a>no</a>", "up do no"),
        ("<a data-href='https://evil.example'>x</a>", "x"),
        ("<style>p { a: b }</style>x<script>if (1 < 2) y()</script>z", "xz"),
        ("<head><title>t</title></head><body>b</body>", "b"),
        ("<script>never closed", ""),
        ("&lt;b&gt; &eacute; &#8364; &nbsp;x", "<b> é € \u00a0x"),
        ("<img src=x><!-- hidden -->", ""),
        ("1 < 2 and 3 > 2 &lt;3", "1 < 2 and 3 > 2 <3"),
        ("\u4f60\u597d<p>\U0001f389", "\u4f60\u597d\n\n\U0001f389"),
    ],
)
def test_html_reads_as(html: str, text: str) -> None:
    """Words, paragraphs and the targets of links; nothing else."""
    assert plaintext.from_html(html) == text


def test_html_that_nobody_reads_has_no_text() -> None:
    """A megabyte of markup isn't worth the time of the worker's other jobs."""
    assert plaintext.from_html("x" * 1_000_001) == ""


@pytest.mark.parametrize("piece", ["<", "</", "<!--", "<a href=", "<script>", "&#", " \n", "<a x href"])
def test_hostile_markup_takes_linear_time(piece: str) -> None:
    """The parser of the standard library needs minutes for some of these; the time limit of the tests would end this one."""
    assert len(plaintext.from_html(piece * (900_000 // len(piece)))) <= 900_000
