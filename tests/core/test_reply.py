"""What the reply reader makes of what relays send."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.core.reply import LINE_BYTES, REPLY_BYTES, REPLY_LINES, Garbled, ReplyReader, clean, reply_of, wait_hint_s
from daemon.core.smtp import Reply

GOOD = [
    (b"250 ok\r\n", Reply(250, None, "ok")),
    (b"250\r\n", Reply(250, None, "")),
    (b"250 \r\n", Reply(250, None, "")),
    (b"250 ok\n", Reply(250, None, "ok")),
    (b"250 at 250 Elm Street\r\n", Reply(250, None, "at 250 Elm Street")),
    (b"250 2.1.5 fine\r\n", Reply(250, "2.1.5", "fine")),
    (b"550-5.1.1 no such\r\n550 5.1.1 user\r\n", Reply(550, "5.1.1", "no such user")),
    (b"250-a\r\n250-\r\n250 b\r\n", Reply(250, None, "a b")),
    (b"450 5.1.1 two minds\r\n", Reply(450, None, "5.1.1 two minds")),
    (b"550 5.1.1\r\n", Reply(550, "5.1.1", "")),
    (b"550 5.1.1000 odd\r\n", Reply(550, None, "5.1.1000 odd")),
    (b"550 no\x00pe \x1b[31m\xff\r\n", Reply(550, None, "no pe [31m\ufffd")),
    (b"354 " + b"x" * 600 + b"\r\n", Reply(354, None, "x" * 500)),
]

BAD = [
    b"xyz ok\r\n",
    b"25 ok\r\n",
    b"\r\n",
    b"2500 ok\r\n",
    b"250ok\r\n",
    b"150 what\r\n",
    b"650 what\r\n",
    b"250-a\r\n251 b\r\n",
    b"250-a\r\nb\r\n",
    b"\xff\xfe\x00\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"2\xc2\xb250 ok\r\n",
]


@pytest.mark.parametrize(("sent", "expected"), GOOD)
def test_reply_is_read(sent: bytes, expected: Reply) -> None:
    """Code, enhanced code and text come apart; what can't be stored is cleaned away."""
    assert ReplyReader().feed(sent) == [expected]


@pytest.mark.parametrize(("sent", "expected"), GOOD)
def test_reply_may_come_in_single_bytes(sent: bytes, expected: Reply) -> None:
    """No reply is there before its last byte, and then it is the same."""
    reader = ReplyReader()
    for byte in sent[:-1]:
        assert reader.feed(bytes([byte])) == []
        assert reader.unfinished
    assert reader.feed(sent[-1:]) == [expected]
    assert not reader.unfinished


@pytest.mark.parametrize(("sent", "expected"), GOOD)
def test_reply_may_be_cut_anywhere(sent: bytes, expected: Reply) -> None:
    """Also between its lines, where what follows looks like a reply by itself."""
    for cut in range(1, len(sent)):
        reader = ReplyReader()
        assert reader.feed(sent[:cut]) + reader.feed(sent[cut:]) == [expected]


def test_lines_that_are_remembered_are_read_as_those_that_are_not() -> None:
    """Whoever has seen a line says the same again, also where it is a part of a longer reply."""
    for _ in range(2):
        assert ReplyReader().feed(b"250 2.0.0 ok\r\n" * 3) == [Reply(250, "2.0.0", "ok")] * 3
        assert ReplyReader().feed(b"250-first\r\n250 2.0.0 ok\r\n") == [Reply(250, "2.0.0", "first ok")]


@pytest.mark.parametrize("sent", BAD)
def test_malformed_reply_ends_the_reading(sent: bytes) -> None:
    """A line without a reply's form gives one Garbled, and nothing that follows is taken for an answer."""
    reader = ReplyReader()
    answers = reader.feed(sent)
    assert [type(answer) for answer in answers] == [Garbled]
    assert reader.feed(b"250 ok\r\n") == []


def test_replies_before_a_malformed_one_count() -> None:
    """What was answered well stays answered."""
    answers = ReplyReader().feed(b"250 one\r\n550 5.1.1 two\r\nthree\r\n250 four\r\n")
    assert answers == [Reply(250, None, "one"), Reply(550, "5.1.1", "two"), Garbled("three")]


@given(st.lists(st.sampled_from([sent for sent, _ in GOOD]), min_size=1), st.data())
def test_cuts_make_no_difference(sent: list[bytes], data: st.DataObject) -> None:
    """The same bytes give the same replies however the network cuts them."""
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    reader = ReplyReader()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [answer for piece in pieces for answer in reader.feed(piece)] == ReplyReader().feed(stream)


@given(st.lists(st.binary(max_size=200)))
def test_reader_survives_anything(pieces: list[bytes]) -> None:
    """Any bytes at all give replies with codes from 200 to 599, and at most one Garbled, which is the last."""
    reader = ReplyReader()
    answers = [answer for piece in pieces for answer in reader.feed(piece)]
    assert all(200 <= answer.code <= 599 for answer in answers[:-1] if isinstance(answer, Reply))
    assert not any(isinstance(answer, Garbled) for answer in answers[:-1])


def test_line_at_the_limit_is_read_and_one_byte_more_is_not() -> None:
    """The limit counts the line end."""
    fits = b"250 " + b"x" * (LINE_BYTES - 6) + b"\r\n"
    assert isinstance(ReplyReader().feed(fits)[0], Reply)
    assert isinstance(ReplyReader().feed(fits[:-2] + b"x\r\n")[0], Garbled)


def test_endless_line_is_given_up_at_the_limit() -> None:
    """A relay that never ends its line can't fill the memory."""
    reader = ReplyReader()
    fed = 0
    while not reader.feed(b"x" * 100):
        fed += 100
        assert fed <= LINE_BYTES
    assert not reader.unfinished


def test_endless_reply_is_given_up_by_its_lines() -> None:
    """A reply that always goes on ends at the limit of lines."""
    answers = ReplyReader().feed(b"250-more\r\n" * REPLY_LINES)
    assert answers == []
    assert [type(a) for a in ReplyReader().feed(b"250-more\r\n" * (REPLY_LINES + 1))] == [Garbled]


def test_endless_reply_is_given_up_by_its_size() -> None:
    """So does one of few long lines."""
    line = b"250-" + b"x" * 8000 + b"\r\n"
    answers = ReplyReader().feed(line * (REPLY_BYTES // len(line) + 1))
    assert [type(answer) for answer in answers] == [Garbled]


def test_limits_count_each_reply_anew() -> None:
    """Many short replies on one connection are no long one."""
    reader = ReplyReader()
    assert all(len(reader.feed(b"250-a\r\n250 b\r\n")) == 1 for _ in range(REPLY_BYTES // 8))


@given(st.text())
def test_clean_text_can_be_stored(text: str) -> None:
    """No control, no NUL, no lone surrogate, at most 500 characters, and cleaning twice changes nothing."""
    cleaned = clean(text)
    assert len(cleaned) <= 500
    assert not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", cleaned)
    cleaned.encode()
    assert clean(cleaned) == cleaned


def test_surrogates_of_another_reader_are_cleaned() -> None:
    """What aiosmtplib decodes has surrogates for broken UTF-8; they can't reach the database."""
    assert reply_of(535, ["5.7.8 \udcff no"]) == Reply(535, "5.7.8", "\ufffd no")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Greylisted, try again in 300 seconds", 300),
        ("please retry in 5 minutes", 300),
        ("wait 2 hours", 7200),
        ("come back in 00:04:59", 299),
        ("again in 45s", 45),
        ("10 sec or 1 min", 60),
        ("try again later", None),
        ("550 messages", None),
        ("5 mailboxes", None),
        ("retry in 9999999 hours", 14_400),
        ("retry in 99999999999999999999 seconds", None),
        ("", None),
    ],
)
def test_hint_says_how_long_to_wait(text: str, seconds: float | None) -> None:
    """Relays name waits in several ways; none can make us wait for longer than four hours."""
    assert wait_hint_s(text) == seconds
