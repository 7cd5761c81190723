"""What one value of the configuration may be, in words that are shown to whoever wrote another.

Each type carries its limits and its `description`; `daemon.config` checks a value against the limits and, where it fails, says
"must be" and the description. What values must be to one another is `problems`'s business.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

_DOMAIN = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
_FULL_NAME = rf"{_DOMAIN.removesuffix('*')}+"
"""A name with a dot; many relays refuse to be greeted with another (504)."""
_ADDRESS = rf"[^\s@<>()\[\],;:\\\x22\x00-\x1f\x7f]+@{_DOMAIN}"

Seconds = Annotated[float, Meta(ge=0.001, le=2_592_000, description="a number of seconds, from 0.001 to 2592000 (30 days)")]
SecondsOrNever = Annotated[float, Meta(ge=0, le=2_592_000, description="a number of seconds, from 0 to 2592000 (30 days)")]
Count = Annotated[int, Meta(ge=1, le=1000, description="a whole number from 1 to 1000")]
CountOrNone = Annotated[int, Meta(ge=0, le=1000, description="a whole number from 0 to 1000")]
PoolSize = Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")]
Bytes = Annotated[int, Meta(ge=1024, le=1_073_741_824, description="a whole number of bytes, from 1024 to 1073741824 (1 GiB)")]
Port = Annotated[int, Meta(ge=1, le=65_535, description="a port, from 1 to 65535")]
Name = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.:-]{1,100}\Z", description="a name of letters, digits and _ . : - (at most 100 of them)"),
]
NameOrEmpty = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.:-]{0,100}\Z", description="empty, or a name of letters, digits and _ . : - (at most 100)"),
]
Dsn = Annotated[str, Meta(pattern=r"^postgres(ql)?://", description="an address that begins with postgresql://")]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:%-]{1,253}\Z", description="a host name or an IP address, without a port")]
DomainOrEmpty = Annotated[
    str,
    Meta(pattern=rf"^({_DOMAIN})?\Z", max_length=253, description="empty, or a domain name such as mail.example.org"),
]
EhloName = Annotated[
    str,
    Meta(
        pattern=rf"^({_FULL_NAME}|\[(IPv6:)?[0-9A-Fa-f.:]+\])?\Z",
        max_length=253,
        description="empty, a full name such as mail.example.org, or an address in brackets such as [192.0.2.1]",
    ),
]
AddressOrEmpty = Annotated[str, Meta(pattern=rf"^({_ADDRESS})?\Z", description="empty, or an address such as events@example.org")]
MailboxOrEmpty = Annotated[
    str,
    Meta(
        pattern=rf"^({_ADDRESS}|[^<>\r\n\x00]*<{_ADDRESS}>)?\Z",
        description="empty, or an address such as events@example.org or Events <events@example.org>",
    ),
]
Function = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z",
        description="a function written as package.module:function",
    ),
]
ErrorCode = Annotated[
    str, Meta(pattern=r"^[45][0-9]{0,2}\Z", description='an SMTP code or its beginning in quotes, such as "454", "45" or "5"')
]
EnhancedCode = Annotated[
    str,
    Meta(pattern=r"^[45](\.[0-9]{1,3}){1,2}\Z", description='an enhanced code or its subject in quotes, as in "4.7.1" or "5.7"'),
]
DsnNotify = Annotated[
    str,
    Meta(
        pattern=r"^(never|(success|failure|delay)(,(success|failure|delay)){0,2})?\Z",
        description='empty, "never", or some of success, failure and delay with commas between',
    ),
]
PerSecond = Annotated[float, Meta(ge=0, le=100_000, description="a number from 0 to 100000; 0 means no limit")]
HeaderName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9-]{1,76}\Z", description="a header field's name: letters, digits and hyphens (at most 76)")
]
VerpSeparator = Annotated[str, Meta(pattern=r"^[+=_-]\Z", description="one of + - = _")]
SelectorOrEmpty = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*)?\Z",
        max_length=100,
        description="empty, or the name of a key such as mail2026",
    ),
]
