"""Hostile text, by the thousand, read again with both parsers of the standard library.

What is accepted must read as it was asked for; what isn't must be refused for its own fault, never because the proof failed.
"""

from __future__ import annotations

import base64
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.utils import getaddresses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from daemon.core.message import Message, Unbuildable
from tests.core.message.composing import composed, outcome_of

HOSTILE = settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

CHARACTERS = some.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029")
TRAPS = [
    "=?utf-8?q?x=0D=0ABcc:_y=40z?=",
    "=?utf-8?b?YQ==?=",
    "=?",
    "?=",
    "?q?",
    "a@b.example",
    "=20",
    "%41",
    "word",
    "刘瑞",
    "   ",
]
PIECES = some.sampled_from([*TRAPS, *" ,;:\"\\<>@()=_'*./é🎉", "\u200d", "\u0301", "\u00a0", "\u3000", "\u202e"])
TEXTS = some.one_of(some.text(CHARACTERS, max_size=120), some.lists(PIECES, max_size=40).map("".join))
LINES = some.sampled_from(
    [
        ".",
        "..",
        "\r",
        "\n",
        "\r\n",
        "From ",
        "x" * 80,
        " ",
        "\t",
        "=",
        "é",
        "刘",
        "\0",
        "\x0c",
        "\x7f",
        "--",
        "--=_m",
        "\u2028",
        "--\r\n",
    ]
)
BODIES = some.one_of(
    some.text(some.characters(exclude_categories=["Cs"]), max_size=300), some.lists(LINES, max_size=60).map("".join)
).map(lambda text: f"{text}.")
WORDS = some.sampled_from(
    [
        "ann",
        ".",
        "@",
        "=",
        "=?",
        "ü",
        "用户",
        "\u212a",
        "\u037e",
        "<\u0338",
        "a\u0308",
        " ",
        '"',
        ",",
        "<",
        ">",
        "(",
        ":",
        "\u200b",
    ]
)
PLACES = some.sampled_from(
    ["@example.org", "@bücher.example", "@FASS.example", "@faß.example", "@xn--zz", "@1.2", "@a_b.c", "@b。c", "@a..b", ""]
)
ADDRESSES = some.builds("{}{}".format, some.lists(WORDS, max_size=5).map("".join), PLACES)

KEYS = some.sampled_from(
    ["to", "from", "cc", "subject", "text", "html", "headers", "attachments", "name", "email", "content", "inline", "cid", "x"]
)
SCALARS = some.none() | some.booleans() | some.integers() | some.text(max_size=5) | some.just("a@example.org")


def unblanked(text: str) -> str:
    """Return a text without blanks; the modern parser on Python 3.11 adds one between two encoded words of a name."""
    return "".join(text.split())


def normal(text: str) -> bytes:
    """Return a body as it has to arrive."""
    return (
        ("\n".join(text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")) + "\n")
        .replace("\n", "\r\n")
        .encode()
    )


@HOSTILE
@given(subject=TEXTS, name=TEXTS, other=TEXTS)
def test_hostile_header_text_arrives_as_it_was(subject: str, name: str, other: str) -> None:
    """Subject, names and free headers, through the modern and the legacy parser."""
    name, other = name.strip(), other.strip()
    people = [{"name": name, "email": "a@example.org"}, {"name": other, "email": "b@example.org"}]
    message = composed(subject=subject, to=people, reply_to=people[1], headers={"X-Free": other, "Comments": name})

    modern = message_from_bytes(message.content, policy=policy.default)
    assert (modern["Subject"], modern["X-Free"], modern["Comments"]) == (subject, other, name)
    boxes = [(unblanked(box.display_name), box.addr_spec) for box in modern["To"].addresses]
    assert boxes == [(unblanked(name), "a@example.org"), (unblanked(other), "b@example.org")]

    legacy = message_from_bytes(message.content)
    assert legacy.keys() == modern.keys()
    assert not {"bcc", "cc"} & {key.lower() for key in legacy}
    assert str(make_header(decode_header(legacy["Subject"].replace("\r\n", "")))) == subject
    found = [
        (str(make_header(decode_header(written))), address)
        for written, address in getaddresses([legacy["To"].replace("\r\n", "")])
    ]
    assert found == [(name, "a@example.org"), (other, "b@example.org")]


@HOSTILE
@given(text=BODIES, html=BODIES, name=TEXTS, data=some.binary(max_size=200))
def test_hostile_bodies_and_files_arrive_as_they_were(text: str, html: str, name: str, data: bytes) -> None:
    """Every octet of text, HTML and file, through the modern and the legacy parser; the wire stays clean."""
    files = [{"filename": f"a{name}".replace("/", "").replace("\\", ""), "content": base64.b64encode(data).decode()}]
    message = outcome_of({"to": "a@example.org", "text": text, "html": html, "attachments": files})
    if isinstance(message, Unbuildable):
        assert message.field == "attachments[0].filename"
        return
    for parse_policy in (policy.default, policy.compat32):
        _, _, plain, rich, file = message_from_bytes(message.content, policy=parse_policy).walk()
        assert plain.get_payload(decode=True) == normal(text)
        assert rich.get_payload(decode=True) == normal(html)
        assert file.get_payload(decode=True) == data
    assert message.content.isascii()
    assert b"\0" not in message.content
    assert message.content.count(b"\r\n") == message.content.count(b"\r") == message.content.count(b"\n")
    assert max(map(len, message.content.split(b"\r\n"))) <= 998


@HOSTILE
@given(ADDRESSES, ADDRESSES, TEXTS)
def test_hostile_address_is_taken_whole_or_refused(first: str, second: str, name: str) -> None:
    """Nothing is in the envelope that isn't in the payload, and no address is split."""
    found = outcome_of({"to": [first, f"{name} <{second}>"], "bcc": {"name": name, "email": first}, "text": "x"})
    if isinstance(found, Message):
        assert len(found.recipients) <= 2
        assert all(address.count("@") == 1 for address in found.recipients)
    else:
        assert found.reason == "address_invalid"


@HOSTILE
@given(
    some.one_of(
        TEXTS,
        some.lists(some.sampled_from(["<https://x.example/?a=?b>", "=?utf-8?", "?q?", "=?", "?=", "<a@b>", " "])).map("".join),
    )
)
def test_hostile_identifiers_arrive_or_are_refused(value: str) -> None:
    """They are never encoded, so that some can't be sent."""
    found = outcome_of({"to": "a@example.org", "text": "x", "headers": {"References": value, "List-Unsubscribe": value}})
    if isinstance(found, Message):
        assert message_from_bytes(found.content, policy=policy.default)["References"] == value
    else:
        assert found.reason == "header_invalid"


@settings(HOSTILE, max_examples=80)
@given(
    some.dictionaries(
        KEYS, some.recursive(SCALARS, lambda inner: some.lists(inner) | some.dictionaries(KEYS, inner), max_leaves=6)
    )
)
def test_any_json_has_an_answer(payload: object) -> None:
    """Whatever its shape; nothing is raised."""
    assert isinstance(outcome_of(payload), Message | Unbuildable)
