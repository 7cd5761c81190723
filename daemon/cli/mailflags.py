"""From the flags of `mailslot enqueue` to the same line of JSON that `--json` reads.

So there is one way into the database, and what is refused there is refused here. Reads the files that flags name; never checks
an address or a header itself.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import msgspec

from daemon.cli.exits import UsageError

ENVELOPE = {
    "queue": "queue",
    "key": "idempotency_key",
    "at": "available_at",
    "expires": "expires_at",
    "priority": "priority",
    "on_doubt": "on_doubt",
    "kind": "kind",
    "max_attempts": "max_attempts",
    "traceparent": "traceparent",
    "relay": "relay",
}
"""Flag -> key of the envelope."""
MAIL = ("to", "cc", "bcc", "reply_to", "from_", "subject", "text", "html", "text_file", "html_file", "attach", "header")
"""Flags that make up the payload of a mail."""

_BETWEEN_COMMAS = re.compile(r'(?:"(?:\\.|[^"\\])*"|[^,"])+')


def line_from(arguments: Namespace) -> bytes:
    """Return the envelope that the flags describe; raises UsageError if they contradict each other or a file can't be read."""
    given = {key: value for flag, key in ENVELOPE.items() if (value := getattr(arguments, flag)) is not None}
    if arguments.payload is not None:
        return msgspec.json.encode({**given, "payload": _raw_payload(arguments)})
    if arguments.kind is not None:
        raise UsageError("--kind goes with --payload: only a mail is made of --to, --subject and --text")
    return msgspec.json.encode({**given, "payload": _mail(arguments)})


def require_alone(arguments: Namespace) -> None:
    """Raise UsageError if a flag that describes one job is given beside `--json`, whose lines say all of it."""
    flags = [flag for flag in (*MAIL, *ENVELOPE, "payload") if getattr(arguments, flag) not in (None, [])]
    if flags:
        raise UsageError(f"--{flags[0].strip('_').replace('_', '-')} can't go with --json; say it in the lines")


def mailboxes(values: Iterable[str]) -> list[str]:
    """Split what stands between commas, except in quotes: `"Ray, Maya" <maya@example.org>, sam@example.org` is two."""
    return [part.strip() for value in values for part in _BETWEEN_COMMAS.findall(value) if part.strip()]


def _raw_payload(arguments: Namespace) -> msgspec.Raw:
    for flag in MAIL:
        if getattr(arguments, flag) not in (None, []):
            raise UsageError(f"--{flag.strip('_').replace('_', '-')} can't go with --payload; put it into the payload")
    try:
        msgspec.json.decode(arguments.payload)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(f"--payload isn't JSON: {error}") from error
    return msgspec.Raw(arguments.payload)


def _mail(arguments: Namespace) -> dict[str, object]:
    mail: dict[str, object] = {field: mailboxes(getattr(arguments, field)) for field in ("to", "cc", "bcc", "reply_to")}
    mail["from"] = arguments.from_
    mail["subject"] = arguments.subject
    mail["text"] = _body(arguments.text, arguments.text_file, "text")
    mail["html"] = _body(arguments.html, arguments.html_file, "html")
    mail["headers"] = _headers(arguments.header)
    mail["attachments"] = [_attachment(name) for name in arguments.attach]
    return {key: value for key, value in mail.items() if value not in (None, [], {})}


def _body(text: str | None, file: str | None, name: str) -> str | None:
    if file is None:
        return text
    if text is not None:
        raise UsageError(f"--{name} and --{name}-file can't both be given")
    try:
        return _content(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} isn't UTF-8: {error}") from error


def _headers(values: Iterable[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for value in values:
        name, colon, content = value.partition(":")
        if not colon:
            raise UsageError(f"--header {value!r} has no colon; write 'List-Id: <news.example.org>'")
        if name.strip() in headers:
            raise UsageError(f"--header {name.strip()} is given twice")
        headers[name.strip()] = content.strip()
    return headers


def _attachment(name: str) -> dict[str, str]:
    content_type, encoding = mimetypes.guess_type(name)
    return {
        "filename": Path(name).name,
        "content_type": content_type if content_type and not encoding else "application/octet-stream",
        "content_b64": base64.b64encode(_content(name)).decode("ascii"),
    }


def _content(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from error
