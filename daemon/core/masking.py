"""What may be shown of a value: addresses without their owner, connection strings without their password.

Logs outlive jobs and travel further than the database, so `maya@example.org` is written `m…@example.org` there, wherever it
stands: in a field, a key, a relay's reply, a traceback. Passwords inside connection strings are hidden whatever the settings
say. All patterns are linear in the text's length: a relay may answer with a megabyte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

_LOCAL = r"[^\s<>()\[\],;:@\"\\]"
# The look-behind lets a match begin only where a run of such characters begins: no run is scanned twice. What stands in quotes
# may hold anything, so its length is bounded instead; an address has 254 characters at most (RFC 5321, 4.5.3.1.3).
_ADDRESS = re.compile(rf'(?:(?<!{_LOCAL})({_LOCAL}){_LOCAL}*+|"([^"\\\s])(?:[^"\\]|\\.){{0,250}}")(?=@[^\s@])', re.DOTALL)
# Up to the fourth @, for a password may hold some: too much hidden is the better mistake. The bounds keep it linear.
_DSN_PASSWORD = re.compile(r"(?<=://)([^\s:@/?]{0,200}+):(?:[^\s@]{0,500}@){1,4}")
_DSN_OPTION = re.compile(r"(?i)(password=)[^&\s'\"]+")

DEPTH = 8


def is_harmless(text: str) -> bool:
    """Return whether there is nothing to hide in a text; False means no more than that somebody should look.

    An address has an `@`, and so has a URL with a password; a password that is an option has a `=`. JSON writes both as they are,
    so the answer for a document is the answer for all texts in it.
    """
    return "@" not in text and "=" not in text


def masked(text: str) -> str:
    """Return the text with each address reduced to its first letter and its domain; doing it twice changes nothing."""
    return _ADDRESS.sub(lambda found: f"{found[1] or found[2]}…", text) if "@" in text else text


def without_passwords(text: str) -> str:
    """Return the text with the password of each connection string in it replaced by stars."""
    if "://" in text:
        text = _DSN_PASSWORD.sub(r"\1:***@", text)
    return _DSN_OPTION.sub(r"\1***", text) if "=" in text else text


def cleaned(value: object, clean: Callable[[str], str], depth: int = DEPTH) -> object:
    """Return a value of JSON's types in which `clean` was applied to every text, keys included.

    What JSON doesn't know becomes its text; what lies deeper than `depth` levels becomes "…".
    """
    if isinstance(value, str):  # first, for it is what nearly all values are, and to ask for a Mapping is dear
        return clean(str(value))
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {clean(str(key)): cleaned(item, clean, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [cleaned(item, clean, depth - 1) for item in value]
    return clean(str(value))
