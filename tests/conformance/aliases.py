"""Other ways to say what `behaviour` and `jobs` have words for; each becomes the plain one before anybody looks at it.

rcpt_limit, max_recipients: 2             rcpt_after_2_recipients: "452 4.5.3 .."
connection_limit, max_connections: 3      fourth connection: greeted by a 421
pipelining, smtputf8, dsn, chunking: true an extension more
tls_handshake: "close|rst|hang"           what follows the 220 to STARTTLS
connect: "refused"                        refuse
refuse: 3                                 the first three connections
attachments[..].size_bytes                so many octets
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any, Final

_EXTENSIONS: Final = frozenset({"pipelining", "smtputf8", "dsn", "chunking", "8bitmime"})
_TOO_MANY: Final = "421 4.7.0 Too many concurrent connections"
_EHLO: Final = ("SIZE 10485760", "8BITMIME", "ENHANCEDSTATUSCODES")
_TRANSPORT: Final = {
    "max_size": "max_message_bytes",
    "size_limit": "max_message_bytes",
    "max_connections": "connections",
    "pool_size": "connections",
    "max_messages": "messages_per_connection",
    "max_messages_per_connection": "messages_per_connection",
    "rate": "rate_per_s",
    "messages_per_second": "rate_per_s",
    "dsn": "dsn_notify",
}


def plain_behaviour(said: dict[str, Any]) -> dict[str, Any]:
    """Return the behaviour of one relay in plain words."""
    plain = dict(said)
    for key in plain.keys() & {"rcpt_limit", "max_recipients", "max_rcpt"}:
        count, reply = _counted(plain.pop(key), "452 4.5.3 Too many recipients")
        plain[f"rcpt_after_{count}_recipients"] = reply
    for key in plain.keys() & {"connection_limit", "max_connections"}:
        count, reply = _counted(plain.pop(key), _TOO_MANY)
        plain[f"{count + 1}th_parallel_connection_greeting"] = reply
    offered = [key.upper() for key in sorted(plain.keys() & _EXTENSIONS) if plain.pop(key)]
    if offered:
        plain["ehlo"] = [*plain.get("ehlo", _EHLO), *offered]
    for key in plain.keys() & {"tls_handshake", "handshake"}:
        plain["starttls"] = {"reply": "220 2.0.0 go", "then": plain.pop(key)}
    if plain.get("connect") in ("refuse", "refused"):
        plain["refuse"] = bool(plain.pop("connect"))
    if isinstance(plain.get("refuse"), int) and not isinstance(plain["refuse"], bool):
        plain["first_connections"] = {"count": plain.pop("refuse"), "then": "refuse"}
    return plain


def plain_transport(said: dict[str, Any]) -> dict[str, Any]:
    """Return what a job says about the relay's configuration in plain words."""
    plain = {_TRANSPORT.get(key, key): value for key, value in said.items()}
    if "starttls" in plain:
        plain["tls"] = "starttls" if plain.pop("starttls") else "none"
    if "use_tls" in plain:
        plain["tls"] = "implicit" if plain.pop("use_tls") else "none"
    return plain


def plain_job(said: dict[str, Any]) -> dict[str, Any]:
    """Return a job in plain words."""
    plain = dict(said)
    for key in plain.keys() & {"expires_at", "send_by", "not_after"}:
        plain["expires_in_s"] = (_instant(str(plain.pop(key))) - datetime.now(UTC)).total_seconds()
    if isinstance(plain.get("attachments"), list):
        plain["attachments"] = [_sized(each) if isinstance(each, dict) else each for each in plain["attachments"]]
    return plain


def _counted(value: Any, reply: str) -> tuple[int, Any]:  # noqa: ANN401  JSON
    if isinstance(value, dict):
        return int(value["count"]), value.get("reply", value.get("step", reply))
    return int(value), reply


def _instant(text: str) -> datetime:
    """Read an instant, or a distance from now such as "-1 h" or "in 60 s"."""
    if found := re.fullmatch(r"(?:now|in)? ?([+-]?) ?(\d+(?:\.\d+)?) ?(s|min|m|h|d)(?: ago)?", text):
        seconds = float(found[2]) * {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}[found[3]]
        past = found[1] == "-" or text.endswith("ago")
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() + (-seconds if past else seconds), UTC)
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _sized(attachment: dict[str, Any]) -> dict[str, Any]:
    plain = dict(attachment)
    for key in plain.keys() & {"size_bytes", "size"}:
        plain["content_b64"] = base64.b64encode(b"x" * int(plain.pop(key))).decode("ascii")
    return plain
