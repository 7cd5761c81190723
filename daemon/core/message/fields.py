"""Which header fields may a job set, and how is each of them written?

Three kinds may be set: free text, which is encoded where it has to be; key words and identifiers, which never are; and what the
configuration allows beside those (as free text). Some never may, whoever allows them: they would be a second envelope, a forged
trace, a broken body, or stand beside the field of that name that the mail has already. What the configuration denies is denied
last of all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from daemon.core import settings
from daemon.core.message.message import refuse

_NAME = re.compile("[A-Za-z0-9-]{1,76}")
_TEXT = frozenset({"comments", "keywords", "organization"})
_KEYWORDS = frozenset(
    {"auto-submitted", "feedback-id", "importance", "in-reply-to", "precedence", "priority", "references", "sensitivity"},
)
_NEVER = frozenset(
    {"bcc", "cc", "date", "from", "message-id", "mime-version", "reply-to", "return-path", "sender", "subject", "to", "x-job-id"},
)
_NEVER_BEGINNINGS = ("arc-", "authentication-results", "content-", "dkim-", "received", "resent-")
_ONE_CLICK = "List-Unsubscribe=One-Click"
_HTTPS = re.compile("<https://[^<>]+>", re.IGNORECASE)


def is_never_set(name: str) -> bool:
    """Tell whether no configuration may allow a header field of this name."""
    lowered = name.lower()
    return lowered in _NEVER or lowered.startswith(_NEVER_BEGINNINGS)


def is_text(name: str, defaults: settings.Mail) -> bool:
    """Tell whether a job's field is free text; otherwise it is never encoded.

    Raises:
        Refusal: `header_not_allowed`.
    """
    lowered, field = name.lower(), f"headers.{name}"
    if not _NAME.fullmatch(name):
        refuse("header_not_allowed", field, "its name must be letters, digits and hyphens, at most 76")
    if is_never_set(name):
        refuse("header_not_allowed", field, "is never a job's to set")
    if lowered in map(str.lower, defaults.deny_headers):
        refuse("header_not_allowed", field, "is denied by mail.deny_headers")
    if lowered in _KEYWORDS or lowered.startswith("list-"):
        return False
    if not (lowered.startswith("x-") or lowered in _TEXT or lowered in map(str.lower, defaults.allow_headers)):
        refuse("header_not_allowed", field, "only X-*, List-*, a few others and those of mail.allow_headers can be set by a job")
    return True


def by_lowered_name(headers: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Return lower-case name -> value of a job's fields, each of which stands once and fits to the others.

    Raises:
        Refusal: `header_repeated`, `header_not_allowed` or `header_invalid`.
    """
    given: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in given:
            refuse("header_repeated", f"headers.{name}", "stands twice, in different spelling")
        given[name.lower()] = value
    if "list-unsubscribe-post" in given:
        _require_one_click(given)
    return given


def _require_one_click(given: Mapping[str, str]) -> None:
    """RFC 8058 section 3.1: readers show no button, and may count it against the sender, where any of this is missing."""
    field = "headers.List-Unsubscribe-Post"
    if "list-unsubscribe" not in given:
        refuse("header_not_allowed", field, "needs List-Unsubscribe beside it (RFC 8058)")
    if given["list-unsubscribe-post"] != _ONE_CLICK:
        refuse("header_invalid", field, f"must be {_ONE_CLICK} (RFC 8058)")
    if not _HTTPS.search(given["list-unsubscribe"]):
        refuse("header_invalid", "headers.List-Unsubscribe", "needs a <https://..> for one click (RFC 8058)")
