"""Addresses and passwords in text, wherever they stand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.masking import DEPTH, cleaned, is_harmless, masked, without_passwords
from daemon.core.settings import Secret

LOCAL_PARTS = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789.!#$%&'*+-/=?^_`{|}~äßé例"), min_size=2, max_size=64)
DOMAINS = st.sampled_from(["example.org", "mail.example.co.uk", "bücher.example", "[192.0.2.1]", "x"])
SURROUNDINGS = st.sampled_from([" ", "<", ">", "\n", ",", "(", ")", ":", ";", '"', "\\", "RCPT TO:<", "> refused: "])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("maya@example.org", "m…@example.org"),
        ("550 5.1.1 <maya@example.org>: no such user", "550 5.1.1 <m…@example.org>: no such user"),
        ("maya.smith+tag@example.org,bob@x.org", "m…@example.org,b…@x.org"),
        ('"maya smith"@example.org', "m…@example.org"),
        (r'"maya \"s\" smith"@example.org', "m…@example.org"),
        ("jürgen@bücher.example", "j…@bücher.example"),
        ("maya@[192.0.2.1]", "m…@[192.0.2.1]"),
        ("a@x", "a…@x"),
        ("at 10 @ 5, @decorator, no address", "at 10 @ 5, @decorator, no address"),
        ("", ""),
    ],
)
def test_an_address_keeps_its_first_letter_and_its_domain(text: str, shown: str) -> None:
    """Enough to recognise, too little to know."""
    assert masked(text) == shown


@settings(deadline=None)
@given(local=LOCAL_PARTS, domain=DOMAINS, before=SURROUNDINGS, after=SURROUNDINGS)
def test_no_address_survives_wherever_it_stands(local: str, domain: str, before: str, after: str) -> None:
    """The local part is gone but for its first letter, the domain is there, and doing it twice changes nothing."""
    text = f"{before}{local}@{domain}{after}"
    shown = masked(text)
    assert f"{local}@" not in shown
    assert shown.endswith(f"{before}{local[0]}…@{domain}{after}")
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["a" * 300_000 + "@x", "a" * 300_000 + " @", '"' * 300_000 + "@x", '"a\\' * 100_000 + "@x", "@" * 300_000, "://a:" * 4_000],
    ids=["run", "run without a domain", "quotes", "escapes", "at signs", "connection strings"],
)
def test_a_hostile_text_takes_no_longer_than_a_harmless_one(text: str) -> None:
    """A relay may answer what it likes; were a pattern not linear, the suite's time limit would end this."""
    masked(text)
    without_passwords(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("cannot reach postgresql://u:p@ss:w@h:5432/d now", "cannot reach postgresql://u:***@h:5432/d now"),
        ("postgresql://u@h:5432/d?application_name=a", "postgresql://u@h:5432/d?application_name=a"),
        ("postgresql:///d?password=geheim&host=/run", "postgresql:///d?password=***&host=/run"),
        ("host=h Password=geheim user=u", "host=h Password=*** user=u"),
        ("PGPASSWORD=geheim psql", "PGPASSWORD=*** psql"),
        ("https://example.org/a:b", "https://example.org/a:b"),
        ("http://a/b,postgres://u:p@h", "http://a/b,postgres://u:***@h"),
    ],
)
def test_the_password_of_a_connection_string_becomes_stars(text: str, shown: str) -> None:
    """And what isn't one stays readable."""
    assert without_passwords(text) == shown


@given(text=st.text(st.sampled_from('@=:/ "<abp\\')) | st.text())
@settings(max_examples=500)
def test_what_is_called_harmless_holds_nothing_to_hide(text: str) -> None:
    """Whoever asks saves the cleaning, so the answer may only ever err in the other direction."""
    for whole in (text, f"{text}://u:p{text}h", f"{text}password{text}x", f"maya{text}example.org"):
        if is_harmless(whole):
            assert masked(without_passwords(whole)) == whole


@pytest.mark.parametrize("text", ["maya@example.org", "postgresql://u:p@h/d", "Password=geheim"])
def test_what_has_to_be_hidden_isnt_called_harmless_in_json_either(text: str) -> None:
    """The question is asked of whole documents, where escapes could have hidden what it looks for."""
    assert not is_harmless(text)
    assert not is_harmless(json.dumps({"reply": f"\r\n\x00{text}"}))
    assert not is_harmless(msgspec.json.encode({"reply": f"\r\n\x00{text}"}).decode())


def test_an_ordinary_reply_is_called_harmless() -> None:
    """If everything were suspicious, each mail's line would go the long way."""
    assert is_harmless("250 2.0.0 Ok: queued as 4F1A2B3C4D")


def test_every_text_of_a_value_is_cleaned_keys_included() -> None:
    """What a job or a relay sent may be nested."""
    value = {"maya@x.org": ["bob@x.org", ("eve@x.org", {"a": "sam@x.org"})], "n": [1, 2.5, True, None]}
    assert cleaned(value, masked) == {
        "m…@x.org": ["b…@x.org", ["e…@x.org", {"a": "s…@x.org"}]],
        "n": [1, 2.5, True, None],
    }


def test_what_json_doesnt_know_becomes_text() -> None:
    """A field of any type can be logged, and a secret never."""
    uid = UUID(int=5)
    assert cleaned([uid, datetime(2026, 1, 1, tzinfo=UTC), {1}, b"x", float("nan"), float("inf")], masked) == [
        str(uid),
        "2026-01-01 00:00:00+00:00",
        [1],
        "b'x'",
        "nan",
        "inf",
    ]
    assert cleaned(ValueError("maya@x.org"), masked) == "m…@x.org"
    assert cleaned({"password": Secret("geheim")}, masked) == {"password": "Secret(***)"}


def test_a_value_that_contains_itself_ends() -> None:
    """Logging it must not take the worker down."""
    value: list[object] = []
    value.append(value)
    shown = cleaned(value, masked)
    for _ in range(DEPTH):
        assert isinstance(shown, list)
        (shown,) = shown
    assert shown == "…"
