"""Lines as a collector and a person see them, and a reader who is slow or gone."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from daemon import logs, outlet
from daemon.core.settings import Log, LogFormat, LogLevel, Secret
from tests.support.logs import as_before

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with as_before():
        yield


def configured(
    *, level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.JSON, pii: bool = False
) -> tuple[Any, io.StringIO]:
    """Configure logs into memory and return a logger and the stream."""
    stream = io.StringIO()
    logs.configure(Log(level=level, format=form, pii=pii), stream=stream)
    return structlog.get_logger("mailslot.test"), stream


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the lines of a stream, each of which must be an object."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_begins_with_time_level_event_and_logger_then_the_bound_fields() -> None:
    """In this order, for whoever reads lines without a tool; the time in UTC with microseconds."""
    log, stream = configured()
    structlog.contextvars.bind_contextvars(worker="w1")
    before = datetime.now(UTC)
    log.bind(job_id=5, attempt=2).info("job.sent", **{"smtp.code": 250, "duration_ms": 1.5})
    after = datetime.now(UTC)
    (line,) = objects(stream)
    assert list(line)[:4] == ["timestamp", "level", "event", "logger"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])
    assert before <= datetime.fromisoformat(line.pop("timestamp")) <= after
    assert line == {
        "level": "info",
        "event": "job.sent",
        "logger": "mailslot.test",
        "worker": "w1",
        "job_id": 5,
        "attempt": 2,
        "smtp.code": 250,
        "duration_ms": 1.5,
    }


def test_a_time_always_has_its_six_digits_and_its_own_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector with a fixed layout would not read one line in a million; a clock that is set back is told as it is."""
    log, stream = configured()
    started = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000_000
    for after_ns in (0, 1_999, 999_999_999, 1_000_000_000, 86_400_000_000_000, 5_000):
        monkeypatch.setattr(time, "time_ns", lambda now=started + after_ns: now)
        log.info("thing.happened")
    monkeypatch.undo()
    assert [line["timestamp"] for line in objects(stream)] == [
        "2026-01-01T00:00:00.000000Z",
        "2026-01-01T00:00:00.000001Z",
        "2026-01-01T00:00:00.999999Z",
        "2026-01-01T00:00:01.000000Z",
        "2026-01-02T00:00:00.000000Z",
        "2026-01-01T00:00:00.000005Z",
    ]


def test_a_field_cannot_pass_for_the_time_or_the_level() -> None:
    """Both are ours, wherever the other was bound; the name of the logger may be told by who hands over another's line."""
    log, stream = configured()
    structlog.contextvars.bind_contextvars(level="error", timestamp="never", logger="context")
    log.bind(timestamp=0, event="bound").warning("thing.happened", level="info", logger="other")
    log.info("thing.happened")
    first, second = objects(stream)
    assert (first["level"], first["event"], first["logger"]) == ("warning", "thing.happened", "other")
    assert (second["level"], second["logger"]) == ("info", "context")
    assert list(first) == ["timestamp", "level", "event", "logger"]
    for line in (first, second):
        assert datetime.now(UTC) - datetime.fromisoformat(line["timestamp"]) < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("level", "written"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.WARNING, ["warning", "error"]),
        (LogLevel.ERROR, ["error"]),
    ],
)
def test_what_is_less_severe_than_the_level_isnt_written(level: LogLevel, written: list[str]) -> None:
    """The level of the configuration is the least severe one."""
    log, stream = configured(level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("thing.happened")
    assert [line["level"] for line in objects(stream)] == written


def boom(secret: str) -> None:
    """Fail while a secret lies in a local variable."""
    local = secret
    raise ValueError(f"no answer from maya@example.org ({len(local)})")


def test_an_exception_is_three_fields_without_local_variables() -> None:
    """One line also then; what a variable held isn't in it, and the text's address is masked."""
    log, stream = configured()
    try:
        boom("geheim")
    except ValueError:
        log.exception("slot.failed")
    (line,) = objects(stream)
    assert (line["level"], line["error.type"], line["error.message"]) == (
        "error",
        "ValueError",
        "no answer from m…@example.org (6)",
    )
    assert "in boom" in line["error.stack_trace"]
    assert "raise ValueError(f" in line["error.stack_trace"]
    assert "geheim" not in stream.getvalue().replace('boom(\\"geheim\\")', "")
    assert "exc_info" not in line


def test_an_exception_that_is_handed_over_is_explained_too() -> None:
    """Not only the one that is being handled."""
    log, stream = configured()
    log.warning("relay.lost", exc_info=OSError("gone"))
    assert objects(stream)[0]["error.type"] == "OSError"


def test_a_line_holds_no_control_character_not_even_del() -> None:
    """JSON's own escaping leaves that one out."""
    log, stream = configured()
    texts = ["".join(map(chr, range(160))).replace("@", ""), "\x7f"]
    for text in texts:
        log.info("job.dead", reply=text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", stream.getvalue())
    assert [line["reply"] for line in objects(stream)] == texts


class Colour(StrEnum):
    """An enumeration whose text isn't its value."""

    RED = "red"

    def __str__(self) -> str:
        return "shown"


@dataclass
class Account:
    """A record that an encoder could read field by field."""

    key: Secret


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00+00:00"),
        (timedelta(seconds=90), "0:01:30"),
        (b"x", "b'x'"),
        (Decimal("1.50"), "1.50"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**80, 2**80),
        (-(2**70), -(2**70)),
        (Colour.RED, "shown"),
        (Account(Secret("geheim")), "Account(key=Secret(***))"),
        (Log(), str(Log())),
        ("\ud800", "\ud800"),
        ([1, "a", {"b": None}], [1, "a", {"b": None}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_shown_in_one_way_whatever_an_encoder_knows_of_its_type(value: object, shown: object) -> None:
    """What JSON has no word for is its Python text: also what a fast encoder could write by itself, secrets and all."""
    log, stream = configured()
    log.info("thing.happened", value=value)
    assert objects(stream)[0]["value"] == shown


ORDINARY = {
    "job_id": 5,
    "job_kind": "email",
    "attempt": 1,
    "reason": "accepted",
    "relay": None,
    "reply": "250 2.0.0 Ok: queued as 1A",
}


def test_a_mails_line_is_the_same_by_the_short_way_and_by_the_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two encoders make these lines; a collector must not see which."""
    lines = []
    for short in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: 1_800_000_000_000_001_000)
            if short:
                patch.setattr(logs, "cleaned", pytest.fail)
            else:
                patch.setattr(logs, "_plain_line", lambda _event: None)
            log, stream = configured()
            structlog.contextvars.bind_contextvars(owner="worker-1:4711")
            log.info("job.sent", quoted='"/\\\r\n\x00', **ORDINARY)
            lines.append(stream.getvalue())
    assert lines[0] == lines[1]
    assert lines[0].startswith(
        '{"timestamp":"2027-01-15T08:00:00.000001Z","level":"info","event":"job.sent","logger":"mailslot.test"'
    )


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@hypothesis_settings(deadline=None)
@given(fields=st.dictionaries(st.from_regex(r"\A[a-z_]{1,12}\Z").filter(lambda key: key not in {"event", "exc_info"}), JSON_LIKE))
def test_whatever_a_field_holds_the_line_is_one_ascii_object(fields: dict[str, Any]) -> None:
    """Lone surrogates, NUL, line breaks, NaN, bytes: a line stays a line, and a collector can read it."""
    log, stream = configured()
    log.bind(**fields).info("thing.happened")
    text = stream.getvalue()
    assert text.isascii()
    assert text.endswith("\n")
    assert not re.search(r"[\x00-\x1f\x7f]", text[:-1])
    assert json.loads(text, parse_constant=pytest.fail)["event"] == "thing.happened"


@hypothesis_settings(deadline=None)
@given(
    local=st.from_regex(r"\A[a-z0-9.+_-]{3,30}\Z"),
    place=st.sampled_from(["event", "field", "key", "nested", "exception", "library", "bound"]),
)
def test_no_address_leaves_in_any_part_of_a_line(local: str, place: str) -> None:
    """One processor at the end of the chain sees what all others added."""
    address = f"q{local}@example.org"
    log, stream = configured()
    match place:
        case "event":
            text = f"550 <{address}>"
            log.info(text)
        case "field":
            log.info("job.dead", reply=f"550 5.1.1 <{address}> unknown")
        case "key":
            log.info("job.dead", recipients={address: "dead"})
        case "nested":
            log.info("job.dead", recipients=[{"to": (address, {address})}])
        case "exception":
            log.info("job.dead", exc_info=ValueError(address))
        case "library":
            logging.getLogger("library").error("refused %s", address)
        case _:
            log.bind(to=address).info("job.dead")
    assert f"q{local}" not in stream.getvalue()
    assert "example.org" in stream.getvalue()


def test_pii_writes_addresses_in_full_and_secrets_still_not() -> None:
    """Who asked for addresses didn't ask for passwords."""
    log, stream = configured(pii=True)
    log.info("relay.connected", to="maya@example.org", password=Secret("geheim"), dsn="postgresql://u:geheim@h/d")
    (line,) = objects(stream)
    assert line["to"] == "maya@example.org"
    assert line["dsn"] == "postgresql://u:***@h/d"
    assert "geheim" not in stream.getvalue()


@pytest.mark.parametrize(
    "fields",
    [
        {"reply": "x" * 1_000_000},
        {"reply": "ü\U0001f4e7" * 100_000},
        {"recipients": {f"recipient {number}": "dead" for number in range(5_000)}},
        {f"field_{number}": "y" * 500 for number in range(60)},
        {f"field_{number}": number for number in range(5_000)},
        {"k" * 20_000: 1},
    ],
    ids=["long", "wide", "nested", "many long", "very many", "long key"],
)
def test_a_line_is_never_longer_than_its_limit(fields: dict[str, Any]) -> None:
    """What is cut says so; time, level, event and logger are always whole."""
    log, stream = configured()
    log.info("job.dead", job_id=5, **fields)
    text = stream.getvalue()
    assert len(text) + len("<6>") <= logs.LINE_BYTES
    line = json.loads(text)
    assert (line["level"], line["event"], line["logger"], line["cut"]) == ("info", "job.dead", "mailslot.test", True)


def test_a_short_field_survives_beside_a_long_one() -> None:
    """Only what is too long is cut."""
    log, stream = configured()
    log.info("job.dead", reply="x" * 100_000, job_id=5, reason="refused")
    (line,) = objects(stream)
    assert (line["job_id"], line["reason"]) == (5, "refused")
    assert line["reply"].startswith("xxx")
    assert line["reply"].endswith("…")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    """The last frame is where it happened."""
    log, stream = configured()
    error = ValueError("y" * 30_000)
    error.add_note("the last line")
    log.error("slot.failed", exc_info=error)
    (line,) = objects(stream)
    assert line["error.stack_trace"].startswith("…yyy")
    assert line["error.stack_trace"].endswith("y\nthe last line\n")


def test_libraries_come_the_same_way_from_warning_upwards() -> None:
    """Their debug lines may hold what goes over the wire."""
    _, stream = configured(level=LogLevel.DEBUG)
    library = logging.getLogger("some.library")
    library.debug("AUTH PLAIN %s", "geheim")
    library.info("connected")
    library.warning("slow %d", 5)
    try:
        boom("x")
    except ValueError:
        library.exception("failed")
    first, second = objects(stream)
    assert (first["level"], first["event"], first["logger"], first["message"]) == (
        "warning",
        "library.logged",
        "some.library",
        "slow 5",
    )
    assert (second["level"], second["error.type"]) == ("error", "ValueError")


def test_warnings_of_python_are_lines_too() -> None:
    """They would otherwise go to standard error in a form of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, stream = configured()
        warnings.warn("old", UserWarning, stacklevel=1)
    (line,) = objects(stream)
    assert line["logger"] == "py.warnings"
    assert "UserWarning: old" in line["message"]


def test_configuring_again_replaces_and_doesnt_double() -> None:
    """The last call counts, for structlog and for libraries."""
    _, first = configured()
    log, second = configured()
    log.info("thing.happened")
    logging.getLogger("library").error("x")
    assert first.getvalue() == ""
    assert len(objects(second)) == 2


def test_console_lines_are_for_people_and_hold_no_control_characters() -> None:
    """A relay can't move the cursor of whoever looks on, nor forge a line."""
    log, stream = configured(form=LogFormat.CONSOLE)
    log.warning("job.dead", job_id=5, reply="550 \x1b[2J\r\nforged \u202e maya@example.org \udc80")
    text = stream.getvalue()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} warning  job\.dead +job_id=5 reply=550 [^\n]*\n", text)
    assert r"550 \x1b[2J\r\nforged \u202e m…@example.org \udc80" in text
    log.error("slot.failed", exc_info=ValueError("a\x1b[2J"))
    assert stream.getvalue().endswith("\n    ValueError: a\\x1b[2J\n")


# Real descriptors


class Reader:
    """Reads a descriptor to its end in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._chunks: list[bytes] = []
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with os.fdopen(self._descriptor, "rb") as pipe:
            self._chunks.extend(iter(lambda: pipe.read1(65_536), b""))

    def lines(self) -> list[str]:
        """Return all lines; the other end must be closed."""
        self._thread.join()
        return b"".join(self._chunks).decode().splitlines()


def test_a_terminal_gets_the_console_form_and_a_pipe_gets_json() -> None:
    """With `auto`; colours only where nobody said that they are unwanted."""
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        controller, terminal = pty.openpty()
        with os.fdopen(controller, "rb", buffering=0) as seen, os.fdopen(terminal, "w") as stream:
            logs.configure(Log(), stream=stream, environ=environ)
            structlog.get_logger("mailslot.test").info("thing.happened")
            assert logs.flush(10)
            shown = seen.read(1000).decode()
            assert "thing.happened" in shown
            assert ("\x1b[" in shown) is coloured
    reading, writing = os.pipe()
    reader = Reader(reading)
    with os.fdopen(writing, "w") as stream:
        logs.configure(Log(), stream=stream)
        structlog.get_logger("mailslot.test").info("thing.happened")
        assert logs.flush(10)
    (line,) = reader.lines()
    assert json.loads(line)["event"] == "thing.happened"


def test_only_journald_gets_the_priority_in_front() -> None:
    """JOURNAL_STREAM is inherited: it must name this very descriptor."""
    reading, writing = os.pipe()
    reader = Reader(reading)
    status = os.fstat(writing)
    with os.fdopen(writing, "w") as stream:
        for journal in (f"{status.st_dev}:{status.st_ino}", f"{status.st_dev}:{status.st_ino + 1}", ""):
            logs.configure(Log(level=LogLevel.DEBUG), stream=stream, environ={"JOURNAL_STREAM": journal})
            log = structlog.get_logger("mailslot.test")
            for name in ("debug", "info", "warning", "error", "critical"):
                getattr(log, name)("thing.happened")
            assert logs.flush(10)
    lines = reader.lines()
    assert [line[:3] for line in lines[:5]] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    assert all(line.startswith("{") for line in lines[5:])
    assert len(lines) == 15


def test_a_reader_that_is_gone_stops_nobody_and_is_counted() -> None:
    """EPIPE ends in a number."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        logs.configure(Log(), stream=stream)
        for _ in range(10):
            structlog.get_logger("mailslot.test").info("thing.happened")
        assert logs.flush(10)
        assert logs.lost_lines() == 10


def test_a_closed_stream_in_memory_stops_nobody_and_is_counted() -> None:
    """The same for a stream without a descriptor."""
    log, stream = configured()
    stream.close()
    log.info("thing.happened")
    assert logs.lost_lines() == 1


def test_a_reader_that_is_stuck_delays_nobody_and_learns_what_it_missed() -> None:
    """More than pipe and queue can hold: the writer goes on at once, and later one line says how many are lost."""
    reading, writing = os.pipe()
    lines = 3 * outlet.QUEUE_LINES
    with os.fdopen(writing, "w") as stream:
        logs.configure(Log(), stream=stream)
        log = structlog.get_logger("mailslot.test")
        for number in range(lines):
            log.info("thing.happened", number=number, filler="x" * 100)
        lost = logs.lost_lines()
        assert lost > 0
        reader = Reader(reading)
        assert logs.flush(30)
        log.info("thing.happened", number=lines)
        assert logs.flush(30)
        assert logs.lost_lines() == lost
    written = [json.loads(line) for line in reader.lines()]
    losses = [line["lines"] for line in written if line["event"] == "log.lines_lost"]
    numbers = [line["number"] for line in written if line["event"] == "thing.happened"]
    assert sum(losses) == lost
    assert len(numbers) == lines + 1 - lost
    assert numbers == sorted(numbers)


def test_lines_that_come_while_others_are_written_share_one_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thread that woke for each line would take the interpreter from the event loop each time."""
    writes: list[bytes] = []
    asleep, awake = threading.Event(), threading.Event()

    def write(descriptor: int, text: memoryview) -> int:
        writes.append(bytes(text))
        return os.pwrite(descriptor, text, 0)

    def sleep(seconds: float) -> None:
        assert seconds == outlet.PAUSE_S
        asleep.set()
        awake.wait(10)

    with (tmp_path / "log").open("w") as stream:
        logs.configure(Log(), stream=stream)
        monkeypatch.setattr("daemon.outlet.os.write", write)
        monkeypatch.setattr(outlet, "sleep", sleep)
        log = structlog.get_logger("mailslot.test")
        log.info("thing.happened", number=0)
        assert asleep.wait(10)
        for number in range(1, 100):
            log.info("thing.happened", number=number)
        awake.set()
        assert logs.flush(10)
        monkeypatch.undo()
    assert [len(text.splitlines()) for text in writes] == [1, 99]
    assert [json.loads(line)["number"] for text in writes for line in text.splitlines()] == list(range(100))


def test_an_outlet_that_was_replaced_still_writes_what_it_took(tmp_path: Path) -> None:
    """Also a full one hears that it is closed, and its thread ends."""
    with (tmp_path / "log").open("w") as stream:
        logs.configure(Log(), stream=stream)
        (former,) = logs._outlets  # noqa: SLF001  nobody else needs to reach it
        for number in range(300):
            structlog.get_logger("mailslot.test").info("thing.happened", number=number)
        logs.configure(Log(), stream=io.StringIO())
        thread = next(thread for thread in threading.enumerate() if getattr(thread, "_target", None) == former._run)  # type: ignore[attr-defined]  # noqa: SLF001
        thread.join(10)
        assert not thread.is_alive()
    assert len((tmp_path / "log").read_text().splitlines()) == 300


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing() -> None:
    """A terminal's or a pipe's mode is shared with whoever holds it as well."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as stream:
        logs.configure(Log(), stream=stream)
        log = structlog.get_logger("mailslot.test")
        for number in range(2_000):
            log.info("thing.happened", number=number, filler="x" * 200)
        reader = Reader(reading)
        assert logs.flush(30)
        assert logs.lost_lines() == 0
    assert len(reader.lines()) == 2_000


SCRIPT = """
import sys, structlog
from daemon import logs
from daemon.core.settings import Log
logs.configure(Log(), stream=sys.stdout)
for number in range(500):
    structlog.get_logger("mailslot.test").info("thing.happened", number=number)
sys.exit(7)
"""


def run_script(stdout: int) -> subprocess.CompletedProcess[str]:
    """Run a process that logs 500 lines and ends at once with code 7."""
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environ, check=False
    )


def test_the_last_lines_of_a_process_are_written_before_it_ends() -> None:
    """They are the ones that say why it ended."""
    finished = run_script(subprocess.PIPE)
    assert finished.returncode == 7
    assert [json.loads(line)["number"] for line in finished.stdout.splitlines()] == list(range(500))


def test_a_process_whose_reader_is_gone_ends_with_its_own_exit_code() -> None:
    """Also Python's own flush at exit finds nothing to complain about."""
    reading, writing = os.pipe()
    os.close(reading)
    finished = run_script(writing)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (7, "")
