"""DKIM: what is signed, that others can verify it, and which keys and messages are refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import dkim as dkimpy
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from structlog.testing import capture_logs

from daemon.core.errors import ConfigError
from daemon.core.message import Message, Unbuildable
from daemon.core.settings import SIGNED, Dkim
from daemon.dkim import LEAST_BITS, Signer, load
from tests.core.message.composing import composed

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
DKIM = Dkim(domain="example.org", selector="mail")


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> str:
    """Return a private key as a file holds it."""
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


def published(name: bytes, timeout: float = 5) -> bytes | None:  # noqa: ARG001  dkimpy's signature
    """Return what the DNS says about the key."""
    if name != b"mail._domainkey.example.org.":
        return None
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return b"v=DKIM1; k=rsa; p=" + b"".join(public.splitlines()[1:-1])


def is_verified(content: bytes) -> bool:
    """Ask a verifier that isn't ours."""
    return bool(dkimpy.verify(content, dnsfunc=published))


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    """Return a signer for example.org."""
    return signer_with(tmp_path, DKIM)


def signer_with(folder: Path, dkim: Dkim, key: str = "") -> Signer:
    """Return a signer with a key of these settings."""
    path = folder / "key.pem"
    path.touch(mode=0o600)
    path.write_text(key or pem(KEY))
    signer = load(msgspec.structs.replace(dkim, private_key_file=str(path)), {})
    assert signer is not None
    return signer


async def signed(signer: Signer, message: Message) -> bytes:
    """Return the content of a message that can be signed."""
    found = await signer.sign(message)
    assert isinstance(found, Message), str(found)
    return found.content


def covered(content: bytes) -> list[str]:
    """Return the names of h=, in order."""
    value = content.partition(b"\r\nDate:")[0].decode()
    found = re.search(r"h=([^;]*);", value)
    assert found is not None
    return [name.strip() for name in found[1].split(":")]


def test_nothing_is_signed_without_a_domain() -> None:
    """The default; then neither key nor package is looked for."""
    assert load(Dkim(), {}) is None


async def test_a_signature_is_verified(signer: Signer) -> None:
    """It stands before the message, whose bytes stay as they were, and changes nothing else about it."""
    message = composed(to={"name": "刘", "email": "liu@example.org"}, subject="Grüße " * 30, html="<p>é</p>", text="..\n.\n\n\n")
    found = await signer.sign(message)
    assert isinstance(found, Message)
    assert found.content.endswith(message.content)
    assert found.content.startswith(b"DKIM-Signature: ")
    assert msgspec.to_builtins(found) | {"content": b""} == msgspec.to_builtins(message) | {"content": b""}
    assert is_verified(found.content)
    assert b"c=relaxed/relaxed;" in found.content
    assert b"d=example.org;" in found.content
    assert b" l=" not in found.content.partition(b"\r\nDate:")[0]


async def test_the_fields_that_matter_are_signed_once_more_than_they_are_there(signer: Signer) -> None:
    """Those of one click too; so nobody can add another on the way."""
    headers = {"List-Unsubscribe": "<https://example.org/u>", "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"}
    found = covered(await signed(signer, composed(headers=headers)))
    there = {"from", "to", "subject", "date", "message-id", "mime-version", "content-type", *map(str.lower, headers)}
    assert {name: found.count(name) for name in found} == {name.lower(): 1 + (name.lower() in there) for name in SIGNED}


@pytest.mark.parametrize(
    "name",
    [*SIGNED, "from", "SUBJECT"],
)
async def test_a_field_that_is_added_on_the_way_breaks_the_signature(signer: Signer, name: str) -> None:
    """At the top, where most readers look first, and at the bottom."""
    content = await signed(signer, composed())
    head, _, body = content.partition(b"\r\n\r\n")
    field = f"{name}: x@example.net".encode()
    assert is_verified(content)
    assert not is_verified(field + b"\r\n" + content)
    assert not is_verified(head + b"\r\n" + field + b"\r\n\r\n" + body)


async def test_what_relays_do_on_the_way_does_not_break_the_signature(signer: Signer) -> None:
    """They add their trace, and may fold and pad."""
    content = await signed(signer, composed(subject="You are invited"))
    content = b"Received: from a by b\r\n" + content.replace(b"Subject: You are", b"subject:  You\r\n\t are") + b"\r\n\r\n"
    assert is_verified(content)
    assert not is_verified(content.replace(b"You", b"Not"))
    assert not is_verified(content.replace(b"Hello", b"Hallo"))


async def test_configured_fields_are_signed_and_from_always_is(tmp_path: Path) -> None:
    """RFC 6376 section 5.4 allows no signature without it."""
    signer = signer_with(tmp_path, msgspec.structs.replace(DKIM, headers=["X-Campaign", "x-campaign"]))
    content = await signed(signer, composed(headers={"X-Campaign": "winter"}))
    assert covered(content) == ["from", "from", "x-campaign", "x-campaign"]
    assert is_verified(content)


async def test_a_message_with_addresses_outside_ascii_is_signed(signer: Signer) -> None:
    """With SMTPUTF8 the header fields hold UTF-8."""
    content = await signed(signer, composed(to="ünï@example.org"))
    assert is_verified(content)


@pytest.mark.parametrize("sender", ["a@example.org", "a@EXAMPLE.org", "a@news.example.org"])
async def test_from_in_the_domain_or_below_it_is_signed(signer: Signer, sender: str) -> None:
    """What DMARC calls aligned, in its relaxed way."""
    assert is_verified(await signed(signer, composed(**{"from": sender})))


@pytest.mark.parametrize("sender", ["a@example.net", "a@badexample.org", "a@org", "a@example.org.example.net"])
async def test_from_of_another_domain_is_refused(signer: Signer, sender: str) -> None:
    """A signature of somebody else proves nothing to the reader."""
    found = await signer.sign(composed(**{"from": sender}))
    assert found == Unbuildable("dkim_alignment", "from", "is not in example.org, which signs (dkim.domain)")


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_keys_are_read_as_tools_write_them(tmp_path: Path, form: PrivateFormat, line_end: str) -> None:
    """Both forms of PEM, with either line end."""
    signer = signer_with(tmp_path, DKIM, pem(KEY, form).replace("\n", line_end))
    assert is_verified(await signed(signer, composed()))


def test_the_key_may_be_a_credential(tmp_path: Path) -> None:
    """Where no file is named."""
    (tmp_path / "dkim_private_key").write_text(pem(KEY))
    assert load(DKIM, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) is not None


def without_a_line(text: str) -> str:
    """Return a text without its fourth line."""
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:3], *lines[4:]])


BAD_KEYS: dict[str, tuple[Callable[[], str], str]] = {
    "empty": (lambda: "\n", "isn't a private key of RSA"),
    "no key": (lambda: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "isn't a private key of RSA"),
    "no base64": (lambda: "-----BEGIN PRIVATE KEY-----\nA!A\n-----END PRIVATE KEY-----\n", "isn't a private key of RSA"),
    "not ASCII": (lambda: "ü", "can't be read from .*: it isn't text in ASCII"),
    "another kind": (lambda: pem(ec.generate_private_key(ec.SECP256R1())), "isn't a private key of RSA"),
    "cut short": (lambda: without_a_line(pem(KEY)), "isn't a private key of RSA|is damaged"),
    "a public key": (
        lambda: KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
        "isn't a private key of RSA",
    ),
}


@pytest.mark.parametrize("case", BAD_KEYS)
def test_a_key_that_cannot_sign_stops_the_start(tmp_path: Path, case: str) -> None:
    """And nothing of it is in the message."""
    text, sentence = BAD_KEYS[case][0](), BAD_KEYS[case][1]
    with pytest.raises(ConfigError, match=sentence) as caught:
        signer_with(tmp_path, DKIM, text)
    assert [problem.path for problem in caught.value.problems] == ["dkim.private_key_file"]
    assert not any(line in str(caught.value) for line in text.splitlines() if len(line) > 3)


def test_a_damaged_number_of_a_key_is_found_out(tmp_path: Path) -> None:
    """The file is well-formed; only what it signs is worth nothing."""
    lines = pem(KEY, PrivateFormat.TraditionalOpenSSL).splitlines(keepends=True)
    # In its second half stand the primes and what is made of them.
    lines[15] = lines[15][:20] + ("A" if lines[15][20] != "A" else "B") + lines[15][21:]
    with pytest.raises(ConfigError, match="is damaged: what it signs can't be verified"):
        signer_with(tmp_path, DKIM, "".join(lines))


def test_a_key_that_nobody_trusts_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 8301 section 3.2: 1024 bits are enough here, one less isn't."""
    short = pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))  # noqa: S505  its weakness is the claim
    assert LEAST_BITS == 1024
    assert signer_with(tmp_path, DKIM, short) is not None
    monkeypatch.setattr("daemon.dkim.LEAST_BITS", 1025)
    with pytest.raises(ConfigError, match="has fewer than 1025 bits"):
        signer_with(tmp_path, DKIM, short)


@pytest.mark.parametrize("name", ["Received", "DKIM-Signature", "Return-Path", "Comments"])
def test_a_field_that_must_not_be_signed_stops_the_start(tmp_path: Path, name: str) -> None:
    """Relays change it on the way (RFC 6376 section 5.4.1)."""
    with pytest.raises(ConfigError) as caught:
        signer_with(tmp_path, msgspec.structs.replace(DKIM, headers=["From", name]))
    assert [problem.path for problem in caught.value.problems] == ["dkim.headers"]
    assert name.lower() in str(caught.value)


def test_a_missing_key_stops_the_start(tmp_path: Path) -> None:
    """Named as what it is: no file, no credential, or one that isn't there."""
    with pytest.raises(ConfigError, match="is missing, though a domain is set"):
        load(DKIM, {})
    with pytest.raises(ConfigError, match="No such file"):
        load(DKIM, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    with pytest.raises(ConfigError, match="No such file"):
        load(msgspec.structs.replace(DKIM, private_key_file=str(tmp_path / "nowhere")), {})


def test_without_its_package_signing_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    monkeypatch.setitem(sys.modules, "dkim", None)
    with pytest.raises(ConfigError, match=r"run `pip install 'mailslot\[dkim\]'`"):
        load(DKIM, {})
    assert load(Dkim(), {}) is None


def test_a_key_that_everybody_may_read_is_warned_of(tmp_path: Path) -> None:
    """It works all the same."""
    path = tmp_path / "key.pem"
    path.write_text(pem(KEY))
    for mode, warned in ((0o640, 0), (0o644, 1)):
        path.chmod(mode)
        with capture_logs() as logged:
            assert load(msgspec.structs.replace(DKIM, private_key_file=str(path)), {}) is not None
        assert [line["event"] for line in logged] == ["dkim.key_exposed"] * warned


def test_the_key_is_not_shown(signer: Signer) -> None:
    """Not by accident."""
    assert "PRIVATE" not in repr(vars(signer))
