"""How does the daemon say what it did?

One event is one line: JSON for machines, a short form on a terminal. Whoever changed a state logs it, once, as
`structlog.get_logger("mailslot.<module>").info("noun.verb_past", job_id=..)`; fields bound to a logger or to the context come
along. The order of the chain below is the promise: an exception becomes text, then everything is cleaned (`core.masking`),
then it is rendered and cut. Nothing that comes after the cleaning adds text of its own.

- timestamp (RFC 3339, UTC, microseconds), level, event and logger stand first, then the bound fields
- addresses are masked unless `log.pii` is set; passwords and secrets never appear
- a line has at most LINE_BYTES bytes and no control character, whatever a relay or a job put into a field
- an exception becomes `error.type`, `error.message` and `error.stack_trace`, never with local variables
- under journald a line begins with its priority, so that `journalctl -p warning` works
- libraries that use the standard library's logging come the same way, from warning upwards
- a reader who is slow or gone neither stops nor delays anything (`outlet`)
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from daemon.core import settings
from daemon.core.masking import cleaned, masked, without_passwords
from daemon.outlet import Outlet, outlet_for

LINE_BYTES = 8_000
"""rsyslog cuts at 8 KiB, its own header included."""

_LINE_LIMIT = LINE_BYTES - len("<6>\n")
_TEXT_LIMIT = 20_000
TIMESTAMP = "%Y-%m-%dT%H:%M:%S.%fZ"
_FIRST_FIELDS = ("timestamp", "level", "event", "logger")
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_encode = json.JSONEncoder(separators=(",", ":")).encode

_outlets: list[Outlet] = []


def configure(log: settings.Log, *, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Send every event of this process to a stream; may be called again, and then the last call counts.

    `environ` says whether the stream is journald's (`JOURNAL_STREAM`) and whether colours are unwanted (`NO_COLOR`).
    """
    on_terminal = stream.isatty()
    console = log.format is settings.LogFormat.CONSOLE or (log.format is settings.LogFormat.AUTO and on_terminal)
    line_of = _console_line(colours=on_terminal and "NO_COLOR" not in environ) if console else _json_line
    prefixed = _is_journal(stream, environ)

    def render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
        line = line_of(event)
        return f"<{_PRIORITIES.get(str(event.get('level')), 6)}>{line}" if prefixed else line

    outlet = outlet_for(stream, lambda lines: line_of(_loss_event(lines)))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_logger,
            _explain_exception,
            structlog.processors.TimeStamper(fmt=TIMESTAMP, utc=True),
            _cleaner(pii=log.pii),
            render,
        ],
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
    """What structlog calls a logger: it takes the finished line of one event."""

    def __init__(self, outlet: Outlet, name: str = "mailslot") -> None:
        self.name = name
        self.debug = self.info = self.warning = self.error = self.critical = outlet.write


def _add_logger(logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event.setdefault("logger", logger.name)
    return event


def _explain_exception(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    error = event.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    elif error is True:
        error = sys.exception()
    if isinstance(error, BaseException):
        event["error.type"] = type(error).__qualname__
        event["error.message"] = str(error)
        event["error.stack_trace"] = "".join(traceback.format_exception(error))
    return event


def _cleaner(*, pii: bool) -> structlog.typing.Processor:
    def clean_text(text: str) -> str:
        shown = without_passwords(text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "…")
        return shown if pii else masked(shown)

    def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        trace = event.get("error.stack_trace")
        if isinstance(trace, str):
            event["error.stack_trace"] = trace[-_TEXT_LIMIT:]
        return cast("dict[str, object]", cleaned(event, clean_text))

    return clean


def _loss_event(lines: int) -> dict[str, object]:
    now = datetime.now(UTC).strftime(TIMESTAMP)
    return {"timestamp": now, "level": "warning", "event": "log.lines_lost", "logger": "mailslot.logs", "lines": lines}


def _json_line(event: Mapping[str, object]) -> str:
    first = {key: event[key] for key in _FIRST_FIELDS if key in event}
    line = _dumped(first | dict(event))
    for limit in (2_000, 400, 80):
        if len(line) <= _LINE_LIMIT:
            return line
        shortened = {key: _cut(value, limit, from_end=key == "error.stack_trace") for key, value in (first | dict(event)).items()}
        line = _dumped(shortened | {"cut": True})
    return line if len(line) <= _LINE_LIMIT else _dumped({key: _cut(first[key], 80) for key in first} | {"cut": True})


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
