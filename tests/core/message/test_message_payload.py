"""payload: every wrong kind of payload is refused, with the path of its first fault."""

from __future__ import annotations

import json

import msgspec
import pytest

from daemon.core.message import Unbuildable
from tests.core.message.composing import DEFAULTS, composed, outcome_of, parsed, refused

FILE = {"filename": "a.txt", "content_b64": "QQ=="}


@pytest.mark.parametrize("payload", ["[]", '"x"', "1", "null", "true"])
def test_payload_that_is_no_object_is_refused(payload: str) -> None:
    """Only an object has keys."""
    assert outcome_of(payload) == Unbuildable("not_an_object", "", "the payload must be a JSON object")


@pytest.mark.parametrize("payload", ["", "{", "{'to': 1}", "NaN", '{"text": "a\nb"}', "\ud83d"])
def test_payload_that_is_no_json_is_refused(payload: str) -> None:
    """Also when it can't even be written in UTF-8."""
    found = outcome_of(payload)
    assert isinstance(found, Unbuildable)
    assert found.reason in {"not_json", "text_invalid"}


@pytest.mark.parametrize("key", ["text", "subject"])
def test_lone_surrogate_is_refused(key: str) -> None:
    """It has no bytes; the next job must not suffer for it."""
    assert refused(**{key: "bad \ud83d surrogate"}).reason == "text_invalid"


@pytest.mark.parametrize(
    ("payload", "reason", "field"),
    [
        ({"to": []}, "no_recipients", "to"),
        ({"to": None}, "no_recipients", "to"),
        ({"to": 7}, "wrong_type", "to"),
        ({"to": [7]}, "wrong_type", "to[0]"),
        ({"to": [["ann@example.org"]]}, "wrong_type", "to[0]"),
        ({"to": ["ann@example.org", {"name": "Bob"}]}, "wrong_type", "to[1].email"),
        ({"to": [{"name": 1, "email": "a@example.org"}]}, "wrong_type", "to[0].name"),
        ({"to": [{"email": "a@example.org", "mail": ""}]}, "unknown_key", "to[0].mail"),
        ({"to": {"email": "a"}}, "address_invalid", "to.email"),
        ({"cc": ["ann"]}, "address_invalid", "cc[0]"),
        ({"bcc": "a@example.org, b@example.org"}, "address_invalid", "bcc"),
        ({"to": ["a@example.org"] * 1001}, "too_many", "to"),
        ({"from": ["a@example.org"]}, "wrong_type", "from"),
        ({"from": '<a href="https://spam.example">x</a> <team@example.org>'}, "address_invalid", "from"),
        ({"reply_to": "nobody"}, "address_invalid", "reply_to"),
        ({"subject": 1}, "wrong_type", "subject"),
        ({"subject": "a" * 8001}, "header_too_long", "subject"),
        ({"text": ["x"]}, "wrong_type", "text"),
        ({"html": {}}, "wrong_type", "html"),
        ({"text": None}, "no_body", "text"),
        ({"text": " \n\t"}, "no_body", "text"),
        ({"text": "", "html": "\n "}, "no_body", "text"),
        ({"headers": [["X-A", "1"]]}, "wrong_type", "headers"),
        ({"headers": {"X-A": 1}}, "wrong_type", "headers.X-A"),
        ({"headers": {"X-A": None}}, "wrong_type", "headers.X-A"),
        ({"headers": {f"X-{index}": "" for index in range(201)}}, "too_many", "headers"),
        ({"tempalte": "invite"}, "unknown_key", "tempalte"),
        ({"To": "ann@example.org"}, "unknown_key", "To"),
        ({"attachments": FILE}, "wrong_type", "attachments"),
        ({"attachments": ["a.txt"]}, "wrong_type", "attachments[0]"),
        ({"attachments": [FILE] * 201}, "too_many", "attachments"),
        ({"attachments": [FILE, FILE | {"path": "/etc/passwd"}]}, "unknown_key", "attachments[1].path"),
        ({"attachments": [{"filename": "a"}]}, "wrong_type", "attachments[0].content_b64"),
        ({"attachments": [FILE | {"content": "QQ=="}]}, "attachment_invalid", "attachments[0].content"),
        ({"attachments": [{"content": 1}]}, "wrong_type", "attachments[0].content"),
        ({"attachments": [FILE | {"content_b64": "Q"}]}, "attachment_invalid", "attachments[0].content_b64"),
        ({"attachments": [FILE | {"content_b64": "Q!Q=="}]}, "attachment_invalid", "attachments[0].content_b64"),
        ({"attachments": [FILE | {"content_b64": "ÄÄÄÄ"}]}, "attachment_invalid", "attachments[0].content_b64"),
        ({"attachments": [FILE | {"inline": "yes"}]}, "wrong_type", "attachments[0].inline"),
        ({"attachments": [FILE | {"inline": True}]}, "attachment_invalid", "attachments[0].cid"),
        ({"attachments": [FILE | {"inline": True, "cid": "a"}]}, "attachment_invalid", "attachments"),
        ({"attachments": [FILE | {"cid": "a b"}]}, "attachment_invalid", "attachments[0].cid"),
        ({"attachments": [FILE | {"cid": "a>\r\nX: 1"}]}, "attachment_invalid", "attachments[0].cid"),
        ({"attachments": [FILE | {"cid": "a"}, FILE | {"cid": "a"}]}, "attachment_invalid", "attachments[1].cid"),
        ({"attachments": [FILE | {"filename": 1}]}, "wrong_type", "attachments[0].filename"),
        ({"attachments": [FILE | {"filename": "a\r\nX: 1"}]}, "header_control_char", "attachments[0].filename"),
        ({"attachments": [FILE | {"filename": "../.."}]}, "attachment_invalid", "attachments[0].filename"),
        ({"attachments": [FILE | {"filename": "ä" * 128}]}, "attachment_invalid", "attachments[0].filename"),
        ({"attachments": [FILE | {"content_type": "text"}]}, "attachment_invalid", "attachments[0].content_type"),
        ({"attachments": [FILE | {"content_type": "text/plain\r\nX: 1"}]}, "attachment_invalid", "attachments[0].content_type"),
        ({"attachments": [FILE | {"content_type": "text/plain; name=x"}]}, "attachment_invalid", "attachments[0].content_type"),
        ({"attachments": [FILE | {"content_type": "message/rfc822"}]}, "attachment_invalid", "attachments[0].content_type"),
        ({"attachments": [FILE | {"content_type": "multipart/mixed"}]}, "attachment_invalid", "attachments[0].content_type"),
    ],
)
def test_fault_is_refused_with_its_path(payload: dict[str, object], reason: str, field: str) -> None:
    """Whoever reads the dead letter finds the line of code that made it."""
    found = refused(**payload)
    assert (found.reason, found.field) == (reason, field)


@pytest.mark.parametrize("character", [*map(chr, range(32)), "\x7f", "\x85", "\x9f", "\u2028", "\u2029"])
def test_control_character_is_refused_in_every_header_value(character: str) -> None:
    """Each ends a line, or a value, for some reader."""
    value = f"Hi{character}Bcc: evil@example.net"
    for payload, field in (
        ({"subject": value}, "subject"),
        ({"headers": {"X-A": value}}, "headers.X-A"),
        ({"headers": {"References": value}}, "headers.References"),
        ({"to": {"name": value, "email": "a@example.org"}}, "to"),
        ({"to": {"name": "", "email": f"a{character}@example.org"}}, "to.email"),
        ({"from": f'"{value}" <a@example.org>'}, "from"),
        ({"reply_to": f"a@example.org{character}"}, "reply_to"),
        ({"attachments": [FILE | {"filename": value}]}, "attachments[0].filename"),
    ):
        found = refused(**payload)
        assert (found.reason, found.field) in {("header_control_char", field), ("address_invalid", field)}


def test_detail_says_which_character_without_repeating_it() -> None:
    """The sentence goes to logs and terminals."""
    found = refused(subject="Hi\r\nBcc: evil@example.net")
    assert str(found) == "header_control_char: subject: U+000D at character 2 may not stand here"


def test_hostile_name_of_a_field_is_shown_cut_and_clean() -> None:
    """A key may be as hostile as a value."""
    found = refused(**{"\x1b[2J" + "a" * 5000: 1})
    assert found.field == "?[2J" + "a" * 75 + "…"
    assert len(str(found)) <= 200


def test_attachments_larger_than_a_message_are_refused_before_they_are_decoded() -> None:
    """Thirty megabytes must not be copied only to be thrown away."""
    defaults = msgspec.structs.replace(DEFAULTS, max_message_bytes=1000)
    whole, half = {"content": "!" * 1001}, {"content": "A" * 600}
    assert refused(defaults, attachments=[whole]).reason == "message_too_large"
    assert refused(defaults, attachments=[half, half]).field == "attachments[1].content"


def test_texts_larger_than_a_message_are_refused() -> None:
    """Before their HTML is read."""
    assert (
        refused(msgspec.structs.replace(DEFAULTS, max_message_bytes=1000), html="<" * 1001).detail
        == "text and html have 1007 characters"
    )


def test_payload_of_thirty_megabytes_is_refused() -> None:
    """By the default limit."""
    found = outcome_of(json.dumps({"to": "ann@example.org", "text": "x" * 30_000_000}))
    assert isinstance(found, Unbuildable)
    assert found.reason == "message_too_large"


def test_null_means_absent() -> None:
    """Serialisers write it for what isn't there."""
    nothing = dict.fromkeys(("from", "cc", "bcc", "reply_to", "subject", "html", "headers", "attachments"))
    assert composed(**nothing) == composed()
    assert composed(to={"name": None, "email": "ann@example.org"}) == composed()
    file = {"content": "QQ==", "filename": None, "cid": None, "inline": None, "content_type": None}
    assert composed(attachments=[file]) == composed(attachments=[{"content_b64": "QQ=="}])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\ann\\plan.pdf", "plan.pdf"),
        ("evil\u202efdp.exe", "evilfdp.exe"),
        (" plan.pdf\u00a0", "plan.pdf"),
        ("Größe 价格.pdf", "Größe 价格.pdf"),
        ('a"b;c=d.pdf', 'a"b;c=d.pdf'),
        ("=?utf-8?q?a?=.pdf", "=?utf-8?q?a?=.pdf"),
        ("100%25'.pdf", "100%25'.pdf"),
        ("价" * 85, "价" * 85),
    ],
)
def test_file_name_arrives_without_its_folder(given: str, read: str) -> None:
    """Paths and overrides of the writing direction are dropped, all else is kept."""
    [part] = parsed(composed(attachments=[FILE | {"filename": given}])).iter_attachments()
    assert part.get_filename() == read


def test_base64_may_be_folded() -> None:
    """Encoders of MIME put line ends into it."""
    [part] = parsed(composed(attachments=[{"content": "QU\r\nJD\n"}])).iter_attachments()
    assert part.get_content() == b"ABC"
