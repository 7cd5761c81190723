"""Which characters may stand in a header, a name, an address, a file name.

A CR or LF there begins a header of its own; NUL, DEL and the other controls end values early in some readers; NEL and the two
Unicode separators are line ends to some; a lone surrogate has no bytes at all (RFC 5322 section 2.2, RFC 2047 section 5).
"""

from __future__ import annotations

import re

from daemon.core.message.message import refuse

# Ours: readers may take quadratic time on longer ones, and some relays cut a header block at 100 kB.
_HEADER_LIMIT = 8_000

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_plain(value: str) -> bool:
    """Tell whether a value is printable ASCII, blanks included."""
    return value.isascii() and value.isprintable()


def require_header(value: str, field: str) -> str:
    """Return the value unchanged.

    Raises:
        Refusal: `header_too_long` or `header_control_char`.
    """
    if len(value) > _HEADER_LIMIT:
        refuse("header_too_long", field, f"has {len(value)} characters, {_HEADER_LIMIT} are allowed")
    return require_clean(value, field)


def require_clean(value: str, field: str) -> str:
    """Return the value unchanged.

    Raises:
        Refusal: `header_control_char`, when a control, a line separator or a lone surrogate is in it.
    """
    if not (value.isascii() and value.isprintable()) and (found := _FORBIDDEN.search(value)):
        refuse("header_control_char", field, f"U+{ord(found[0]):04X} at character {found.start()} may not stand here")
    return value
