"""Signs messages by DKIM (RFC 6376), where the configuration wants it; usually the relay does.

Owns the key: read and tried at start, so that one that can't sign stops the start and not each mail. Signs the final bytes,
once in every attempt and right before SMTP; relaxed/relaxed, over the fields of `dkim.headers`, each of them once more than it is
there, so that nobody can add another on the way without breaking the signature (RFC 6376 section 8.15). A mail whose From isn't
in the domain that signs is refused: such a signature proves nothing to DMARC, and hides that the configuration is wrong.

The only importer of dkimpy, which works in pure Python for some ten milliseconds: in a thread, so that the loop comes round.
RSA only, of at least 1024 bits (RFC 8301 section 3.2). Never looks into the DNS.
"""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from daemon.core import settings
from daemon.core.errors import ConfigError
from daemon.core.message import Message, Unbuildable
from daemon.core.settings import Problem, Secret

CREDENTIAL = "dkim_private_key"
KEY = "dkim.private_key_file"
LEAST_BITS = 1024

log = structlog.get_logger("mailslot.dkim")


def load(dkim: settings.Dkim, environ: Mapping[str, str]) -> Signer | None:
    """Return what signs; None if nothing does.

    Raises:
        ConfigError: when the library or the key is missing, or the key can't sign.
    """
    if not dkim.domain:
        return None
    try:
        library = import_module("dkim")
    except ModuleNotFoundError as error:
        message = "needs dkimpy, which isn't installed: run `pip install 'mailslot[dkim]'`"
        raise ConfigError([Problem("dkim.domain", message)]) from error
    return Signer(library, dkim, _key(dkim, environ))


class Signer:
    """Holds the key, and signs with it."""

    def __init__(self, library: Any, dkim: settings.Dkim, key: Secret) -> None:  # noqa: ANN401  dkimpy has no types
        """Try the key; raises ConfigError if it can't sign."""
        self._library = library
        self._selector = dkim.selector.encode("ascii")
        self._domain = dkim.domain.lower()
        self._key = key
        self._headers = tuple(dict.fromkeys(name.lower().encode("ascii") for name in ("From", *dkim.headers)))
        _require_usable(library, key)
        try:
            self._signature(b"From: trial\r\n\r\ntrial\r\n")
        except library.ParameterError as error:
            raise ConfigError([Problem("dkim.headers", str(error))]) from error

    async def sign(self, message: Message) -> Message | Unbuildable:
        """Return the message with a signature before it, or why it can't have one. Cancelling is safe."""
        if fault := misaligned(message, self._domain):
            return fault
        signature = await asyncio.to_thread(self._signature, message.content)
        return replace(message, content=signature + message.content)

    def _signature(self, content: bytes) -> bytes:
        signature: bytes = self._library.sign(
            content,
            self._selector,
            self._domain.encode("ascii"),
            self._key.reveal().encode(),
            canonicalize=(b"relaxed", b"relaxed"),
            include_headers=list(self._signed(content)),
        )
        return signature

    def _signed(self, content: bytes) -> Iterator[bytes]:
        """Yield each name as often as its field is there, and once more."""
        head = content.partition(b"\r\n\r\n")[0]
        there = [line.partition(b":")[0].lower() for line in head.split(b"\r\n") if line[:1] not in {b" ", b"\t"}]
        for name in self._headers:
            yield from [name] * (there.count(name) + 1)


def misaligned(message: Message, domain: str) -> Unbuildable | None:
    """Return why a domain must not sign a message: its From is neither in it nor below it."""
    domain = domain.lower()
    if message.from_domain == domain or message.from_domain.endswith(f".{domain}"):
        return None
    return Unbuildable("dkim_alignment", "from", f"is not in {domain}, which signs (dkim.domain)")


def _key(dkim: settings.Dkim, environ: Mapping[str, str]) -> Secret:
    folder = environ.get("CREDENTIALS_DIRECTORY")
    path = Path(dkim.private_key_file) if dkim.private_key_file else Path(folder, CREDENTIAL) if folder else None
    if path is None:
        message = f"is missing, though a domain is set: name a file, or provide the credential {CREDENTIAL}"
        raise ConfigError([Problem(KEY, message)])
    try:
        text = path.read_text("ascii")
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't text in ASCII"
        raise ConfigError([Problem(KEY, f"can't be read from {path}: {reason}")]) from error
    if stat.S_IMODE(mode) & stat.S_IROTH:
        log.warning("dkim.key_exposed", path=str(path), advice=f"everybody on this machine may read it: chmod o-r {path}")
    return Secret(text)


def _require_usable(library: Any, key: Secret) -> None:  # noqa: ANN401  dkimpy has no types
    crypto = library.crypto
    digest = hashlib.sha256(b"a trial")
    try:
        parsed = crypto.parse_pem_private_key(key.reveal().encode())
        signature = crypto.RSASSA_PKCS1_v1_5_sign(digest, parsed)
        usable = crypto.RSASSA_PKCS1_v1_5_verify(digest, signature, parsed)
    except (crypto.UnparsableKeyError, crypto.DigestTooLargeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        # The text of these errors may hold pieces of the key.
        raise ConfigError([Problem(KEY, "isn't a private key of RSA in PEM form")]) from error
    if not usable:
        raise ConfigError([Problem(KEY, "is damaged: what it signs can't be verified")])
    if parsed["modulus"].bit_length() < LEAST_BITS:
        raise ConfigError([Problem(KEY, f"has fewer than {LEAST_BITS} bits, and nobody trusts such a key (RFC 8301)")])
