"""How does the daemon say what it did?

One event is one line: JSON for machines, a short form on a terminal. Whoever changed a state logs it, once, as
`structlog.get_logger("mailslot.<module>").info("noun.verb_past", job_id=..)`; fields bound to a logger or to the context come
along. The order in `_chain` is the promise: an exception becomes text, then everything is cleaned (`core.masking`), then it is
rendered and cut. Nothing that comes after the cleaning adds text of its own.

- timestamp (RFC 3339, UTC, microseconds), level, event and logger stand first, then the bound fields
- addresses are masked unless `log.pii` is set; passwords and secrets never appear
- a line has at most LINE_BYTES bytes and no control character, whatever a relay or a job put into a field
- an exception becomes `error.type`, `error.message` and `error.stack_trace`, never with local variables
- under journald a line begins with its priority, so that `journalctl -p warning` works
- libraries that use the standard library's logging come the same way, from warning upwards
- a reader who is slow or gone neither stops nor delays anything (`outlet`)

A mail is one line, so a line has to be cheap. Most lines need no cleaning: their fields are plain, nothing in them could belong
to an address or a password, and they fit. `_plain_line` encodes such a line in one go and then looks for what is suspicious in
the whole of it; when in doubt it leaves the line to the long way, the only one that cleans. Measured for `job.sent` in a busy
loop, CPU with the outlet's thread: 42 us when every line went the long way, 8 us now; 25 us where the relay's reply holds an
address. Tried and rejected: one regular expression for all that is suspicious (1.3 us, the searches 0.1).

structlog's own part is kept small by whoever logs for each mail: `log.bind()`, held, saves 2 us a line, and a line below the
level costs 0.3 us instead of 2.5. Rejected: `cache_logger_on_first_use`, with which a module's logger would never hear of a
second `configure`, and would still cost 1 us.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO, cast

import msgspec
import structlog
from structlog.contextvars import get_contextvars
from structlog.typing import EventDict, WrappedLogger

from daemon.core import settings
from daemon.core.masking import cleaned, is_harmless, masked, without_passwords
from daemon.outlet import Outlet, outlet_for

LINE_BYTES = 8_000
"""rsyslog cuts at 8 KiB, its own header included."""

_LINE_LIMIT = LINE_BYTES - len("<6>\n")
_TEXT_LIMIT = 20_000
_FIRST_FIELDS = ("timestamp", "level", "event", "logger")
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_PLAIN = frozenset({str, int, bool, type(None)})
"""Exactly these types are written alike by both encoders. A float may be no number, a subclass may have a text of its own."""

_encode = json.JSONEncoder(separators=(",", ":")).encode
_encode_plain = msgspec.json.Encoder().encode

_outlets: list[Outlet] = []


def configure(log: settings.Log, *, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Send every event of this process to a stream; may be called again, and then the last call counts.

    `environ` says whether the stream is journald's (`JOURNAL_STREAM`) and whether colours are unwanted (`NO_COLOR`).
    """
    on_terminal = stream.isatty()
    console = log.format is settings.LogFormat.CONSOLE or (log.format is settings.LogFormat.AUTO and on_terminal)
    line_of = _console_line(colours=on_terminal and "NO_COLOR" not in environ) if console else _json_line
    outlet = outlet_for(stream, lambda lines: _encoded(line_of(_loss_event(lines))))
    structlog.configure(
        processors=[_chain(line_of, pii=log.pii, plain=not console, prefixed=_is_journal(stream, environ))],
        wrapper_class=structlog.make_filtering_bound_logger(log.level),
        logger_factory=lambda *names: _Line(outlet, *names),
        cache_logger_on_first_use=False,
    )
    _use(outlet)
    _take_over_standard_logging()


def flush(timeout_s: float = 1.0) -> bool:
    """Wait until all lines so far are written, at most `timeout_s`; return whether they are. Called by itself at exit."""
    return all(outlet.flush(timeout_s) for outlet in _outlets)


def lost_lines() -> int:
    """Return how many lines couldn't be written since the last `configure`."""
    return sum(outlet.lost_lines for outlet in _outlets)


def _use(outlet: Outlet) -> None:
    for former in _outlets:
        former.close()
    if not _outlets:
        atexit.register(flush)
    _outlets[:] = [outlet]


class _Line:
    """What structlog calls a logger: it has a name, and takes the finished line of one event."""

    def __init__(self, outlet: Outlet, name: str = "mailslot") -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = outlet.write


def _chain(
    line_of: Callable[[Mapping[str, object]], str], *, pii: bool, plain: bool, prefixed: bool
) -> Callable[[WrappedLogger, str, EventDict], bytes]:
    """Return the one processor that makes a line of an event; with `plain` it tries the short way first."""
    prefixes = {level: f"<{priority}>".encode() if prefixed else b"" for level, priority in _PRIORITIES.items()}
    clean = _cleaner(pii=pii)

    def line(logger: WrappedLogger, level: str, fields: EventDict) -> bytes:
        event = {"timestamp": "", "level": "", "event": "", "logger": logger.name, **get_contextvars(), **fields}
        event["timestamp"] = _now()
        event["level"] = level
        text = _plain_line(event) if plain else None
        return prefixes[level] + (text or _encoded(line_of(clean(_explained(event)))))

    return line


def _plain_line(event: EventDict) -> bytes | None:
    """Return the line of an event that needs no cleaning, no escaping beyond the encoder's and no cut; None when it might.

    What the encoder leaves as it is, and JSON's own escaping here doesn't: DEL, and all that isn't ASCII.
    """
    if "exc_info" in event or not _PLAIN.issuperset(map(type, event.values())):
        return None
    try:
        line = _encode_plain(event)
    except ValueError:  # a lone surrogate
        return None
    text = line.decode()
    return line if is_harmless(text) and text.isascii() and "\x7f" not in text and len(line) <= _LINE_LIMIT else None


def _now() -> str:
    """Return the present as RFC 3339, in UTC, always with six digits after the point."""
    second, microsecond = divmod(time.time_ns() // 1_000, 1_000_000)
    return f"{_second(second)}.{microsecond:06}Z"


@lru_cache(maxsize=1)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _explained(event: EventDict) -> EventDict:
    error = event.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    elif error is True:
        error = sys.exception()
    if isinstance(error, BaseException):
        event["error.type"] = type(error).__qualname__
        event["error.message"] = str(error)
        event["error.stack_trace"] = "".join(traceback.format_exception(error))[-_TEXT_LIMIT:]
    return event


def _cleaner(*, pii: bool) -> Callable[[EventDict], EventDict]:
    def clean_text(text: str) -> str:
        if len(text) > _TEXT_LIMIT:
            text = text[:_TEXT_LIMIT] + "…"
        if is_harmless(text):
            return text
        shown = without_passwords(text)
        return shown if pii else masked(shown)

    return lambda event: cast("EventDict", cleaned(event, clean_text))


def _loss_event(lines: int) -> dict[str, object]:
    return {"timestamp": _now(), "level": "warning", "event": "log.lines_lost", "logger": "mailslot.logs", "lines": lines}


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace")


def _json_line(event: Mapping[str, object]) -> str:
    line = _dumped(event)
    for limit in (2_000, 400, 80):
        if len(line) <= _LINE_LIMIT:
            return line
        shortened = {key: _cut(value, limit, from_end=key == "error.stack_trace") for key, value in event.items()}
        line = _dumped(shortened | {"cut": True})
    if len(line) <= _LINE_LIMIT:
        return line
    return _dumped({key: _cut(event[key], 80) for key in _FIRST_FIELDS if key in event} | {"cut": True})


def _dumped(value: object) -> str:
    # DEL is the one control character that JSON's escaping leaves as it is.
    return _encode(value).replace("\x7f", "\\u007f")


def _cut(value: object, limit: int, *, from_end: bool = False) -> object:
    """Return a value whose JSON has about `limit` bytes at most; of a traceback the end says most."""
    if len(_dumped(value)) <= limit:
        return value
    text = value if isinstance(value, str) else _dumped(value)
    while (size := len(_dumped(text))) > limit:
        kept = max(1, len(text) * limit // size)
        text = text[-kept:] if from_end else text[:kept]
    return f"…{text}" if from_end else f"{text}…"


def _console_line(*, colours: bool) -> Callable[[Mapping[str, object]], str]:
    def line_of(event: Mapping[str, object]) -> str:
        level = str(event.get("level", ""))
        shown_level = f"\x1b[{_COLOURS.get(level, '0')}m{level:<8}\x1b[0m" if colours else f"{level:<8}"
        fields = " ".join(
            f"{_visible(key)}={_visible(_cut(value, 2_000))}"
            for key, value in event.items()
            if key not in {*_FIRST_FIELDS, "error.stack_trace"}
        )
        trace = str(event.get("error.stack_trace", "")).rstrip().splitlines()
        clock = str(event.get("timestamp", ""))[11:23]
        head = f"{clock} {shown_level} {_visible(event.get('event', '')):<24} {fields}".rstrip()
        return "\n".join([head, *(f"    {_visible(line)}" for line in trace)])

    return line_of


def _visible(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class _StandardLogging(logging.Handler):
    """Hands records of the standard library's logging to the chain."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(
            min(record.levelno, logging.CRITICAL) // 10 * 10,
            "library.logged",
            message=record.getMessage(),
            exc_info=record.exc_info,
        )


def _take_over_standard_logging() -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StandardLogging)]:
        root.removeHandler(handler)
    root.addHandler(_StandardLogging())
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
