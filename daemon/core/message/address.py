"""One mailbox: a name for people, and an address that leads to exactly one place.

Owns what an address may be: one addr-spec (RFC 5321 section 4.1.2) within the limits of section 4.5.3.1, in Unicode's NFC, its
domain in lower case and as A-labels by IDNA 2008 (the codec of the standard library is IDNA 2003, which makes another domain of
`faß.example`). Never takes comments, groups, source routes, address literals or quoted local parts: readers disagree about
where mail to those goes (GHSA-mm7p-fcc7-pg87), and a list in one string is no mailbox.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import idna
import msgspec

from daemon.core.message.characters import require_clean
from daemon.core.message.message import refuse

# RFC 5321 section 4.5.3.1; a path has two angle brackets more than its address.
_LOCAL_LIMIT = 64
_DOMAIN_LIMIT = 255
_ADDRESS_LIMIT = 254
# Ours: a name is written on one line together with its address, and a line ends at 998.
_NAME_LIMIT = 320
_STRING_LIMIT = _NAME_LIMIT * 2 + _ADDRESS_LIMIT + 8

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u0080-\U0010ffff-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)*(?!\d+$){_LABEL}")
_STRING = re.compile(r'(?:"(?P<quoted>(?:[^"\\]|\\.)*)" *|(?P<bare>[^"<>@:;()\\]*))<(?P<address>[^<>]*)>')
# What most payloads hold, in a single look: nothing of it changes, and no limit is near. All else takes the long way.
_COMMON_ADDRESS = r"([A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*)@((?:[a-z0-9]+(?:-[a-z0-9]+)*\.)+[a-z]+)"
_COMMON = re.compile(_COMMON_ADDRESS)
_COMMON_MAILBOX = re.compile(rf"(?:([A-Za-z0-9]+(?: [A-Za-z0-9]+)*) <)?{_COMMON_ADDRESS}(?(1)>)")
_COMMON_LIMIT = 64
_ESCAPE = re.compile(r"\\(.)")
_MAILBOX_KEYS = frozenset({"name", "email"})


class Mailbox(msgspec.Struct, frozen=True):
    """A checked mailbox; `name` may be empty."""

    name: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        """The addr-spec, as in the envelope."""
        return f"{self.local}@{self.domain}"


def mailbox(value: object, field: str) -> Mailbox:
    """Read one mailbox from `{"name", "email"}`, `Name <address>` or a bare address.

    Raises:
        Refusal: `wrong_type`, `unknown_key`, `header_control_char` or `address_invalid`.
    """
    if isinstance(value, str):
        if len(value) <= _COMMON_LIMIT and (common := _COMMON_MAILBOX.fullmatch(value)):
            name, local, domain = common.groups()
            return Mailbox(name or "", local, domain)
        name, address = _split(value, field)
        where = field
    elif isinstance(value, dict):
        name, address = _from_object(value, field)
        where = f"{field}.email"
    else:
        refuse("wrong_type", field, "must be a string or an object with name and email")
    local, domain = _address(address, where)
    return Mailbox(_name(name, field), local, domain)


def domain_name(value: str, field: str) -> str:
    """Return a domain in lower case and as A-labels.

    Raises:
        Refusal: `address_invalid`.
    """
    domain = value.lower()
    if not domain.isascii() or "xn--" in domain:
        domain = _a_labels(domain, field)
    if len(domain) > _DOMAIN_LIMIT:
        refuse("address_invalid", field, f"its domain is longer than {_DOMAIN_LIMIT} octets")
    if not _DOMAIN.fullmatch(domain):
        refuse("address_invalid", field, "its domain is no domain name")
    return domain


def _split(value: str, field: str) -> tuple[str, str]:
    if "<" not in value:
        return "", value
    if len(value) > _STRING_LIMIT:
        refuse("address_invalid", field, "is too long for one mailbox")
    found = _STRING.fullmatch(value.strip(" "))
    if found is None:
        refuse("address_invalid", field, 'is not one mailbox of the form "Name <address>"; other names need name and email')
    quoted = found["quoted"]
    return (found["bare"] if quoted is None else _ESCAPE.sub(r"\1", quoted)), found["address"]


def _from_object(value: dict[str, object], field: str) -> tuple[str, str]:
    for key in value:
        if key not in _MAILBOX_KEYS:
            refuse("unknown_key", f"{field}.{key}", "a mailbox has name and email")
    name, address = value.get("name"), value.get("email")
    if name is None:
        name = ""
    if not isinstance(name, str):
        refuse("wrong_type", f"{field}.name", "must be a string")
    if not isinstance(address, str):
        refuse("wrong_type", f"{field}.email", "must be a string")
    return name, address


def _name(name: str, field: str) -> str:
    name = require_clean(name, field).strip()
    if len(name) > _NAME_LIMIT:
        refuse("address_invalid", field, f"its name is longer than {_NAME_LIMIT} characters")
    return name


def _address(value: str, field: str) -> tuple[str, str]:
    if len(value) <= _COMMON_LIMIT and (common := _COMMON.fullmatch(value)):
        local, domain = common.groups()
        return local, domain
    address = require_clean(value, field).strip(" ")
    if len(address) > _ADDRESS_LIMIT:
        refuse("address_invalid", field, f"is longer than {_ADDRESS_LIMIT} octets")
    if not address.isascii():
        # Before every check: NFC turns some characters into others that mean something, U+037E into a semicolon.
        address = unicodedata.normalize("NFC", address)
    local, at, domain = address.rpartition("@")
    if not at:
        refuse("address_invalid", field, "has no @")
    if not _LOCAL.fullmatch(local) or not local.isprintable():
        refuse("address_invalid", field, "what stands before its @ is not plain words with single dots between")
    if "=?" in local:
        refuse("address_invalid", field, "what stands before its @ can be read as an encoded word")
    if len(local.encode()) > _LOCAL_LIMIT:
        refuse("address_invalid", field, f"what stands before its @ is longer than {_LOCAL_LIMIT} octets")
    domain = domain_name(domain, field)
    if len(local.encode()) + 1 + len(domain) > _ADDRESS_LIMIT:
        refuse("address_invalid", field, f"is longer than {_ADDRESS_LIMIT} octets")
    return local, domain


def _a_labels(domain: str, field: str) -> str:
    try:
        return _by_idna(unicodedata.normalize("NFC", domain))
    except UnicodeError:
        # Also idna.IDNAError, which is a UnicodeError; its text may quote the domain and stays out.
        refuse("address_invalid", field, "its domain is not allowed by IDNA 2008")


# The domains of a worker's configuration, and the recipients' that come again.
@lru_cache(maxsize=256)
def _by_idna(domain: str) -> str:
    return ".".join(idna.alabel(label).decode("ascii") for label in domain.split("."))
