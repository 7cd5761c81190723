"""The form of a body, and of a reply as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.smtp import Fault, Reply, Report, Stage, stuff


def unstuffed(body: bytes) -> bytes:
    """Return what a receiver makes of a body: one dot off each line that begins with one (RFC 5321 4.5.2)."""
    return b"".join(line.removeprefix(b".") for line in re.findall(rb".*?\r\n", body, re.DOTALL))


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (b"a\r\n", b"a\r\n"),
        (b"a", b"a\r\n"),
        (b"", b"\r\n"),
        (b".\r\n", b"..\r\n"),
        (b"a\r\n.\r\n.\r\nb\r\n", b"a\r\n..\r\n..\r\nb\r\n"),
        (b"..x\r\n", b"...x\r\n"),
        (b"a\n.\nb\r.\rc", b"a\r\n..\r\nb\r\n..\r\nc\r\n"),
        (b"a\r\r\n.\r\n", b"a\r\n\r\n..\r\n"),
        (b"a\r\n.\r", b"a\r\n..\r\n"),
    ],
)
def test_dots_are_doubled_and_line_ends_made_whole(content: bytes, body: bytes) -> None:
    """The examples of smuggling: none leaves as it came."""
    assert stuff(content) == body


@given(st.lists(st.sampled_from([b"\r", b"\n", b".", b"x", b"\r\n", b"\r\n."])).map(b"".join))
def test_no_body_can_end_the_message(content: bytes) -> None:
    """Whatever the content, no CR or LF stands alone and no line is a dot; the receiver gets the lines back."""
    body = stuff(content)
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n", body)
    assert body.endswith(b"\r\n")
    assert not re.search(rb"(^|\r\n)\.\r\n", body)
    whole = re.sub(rb"\r\n|\r|\n", b"\r\n", content)
    assert unstuffed(body) == (whole if whole.endswith(b"\r\n") else whole + b"\r\n")


@pytest.mark.parametrize(("code", "positive"), [(199, False), (200, True), (250, True), (299, True), (300, False), (354, False)])
def test_any_2yz_is_positive(code: int, positive: bool) -> None:  # noqa: FBT001 - a table
    """RFC 5321 4.2 lets unknown codes count by their first digit."""
    assert Reply(code, None, "").positive is positive


def test_reply_reads_as_it_came() -> None:
    """As text a reply is its parts, without gaps for what it lacks."""
    assert str(Reply(250, "2.0.0", "queued as 4F1")) == "250 2.0.0 queued as 4F1"
    assert str(Reply(250, None, "")) == "250"
    assert len(str(Reply(250, "2.0.0", "x" * 500))) == 500


def test_reports_that_say_the_same_are_equal() -> None:
    """What the system said about a fault is for the log alone."""
    report = Report("relay", Stage.TLS, Fault.TLS_FAILED, detail="one reason")
    same = Report("relay", Stage.TLS, Fault.TLS_FAILED, detail="another")
    others = [
        Report("other", Stage.TLS, Fault.TLS_FAILED),
        Report("relay", Stage.AUTH, Fault.TLS_FAILED),
        Report("relay", Stage.TLS, Fault.CLOSED),
        Report("relay", Stage.TLS, Fault.TLS_FAILED, reused=True),
    ]
    assert {report, same, *others} == {report, *others}
    assert len({report, same, *others}) == 5
    assert report != "relay"
