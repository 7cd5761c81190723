"""The set of templates that holds, and how another takes its place: here, and in a daemon that gets SIGHUP."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog

from daemon.core.message import Rendered, Templates
from daemon.templates import Library
from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.process import Daemon
from tests.support.relay import ScriptedRelay
from tests.test_dkim import KEY, is_verified, pem

SUBJECT = {"a.subject.txt": "Hi\n"}


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    """Return a relay that accepts everything."""
    async with ScriptedRelay() as relay:
        yield relay


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by name."""
    for name, text in files.items():
        (folder / name).write_text(text)


def text_of(templates: Templates, data: Mapping[str, object]) -> str | None:
    """Fill in the template `a`, and return its text."""
    rendered = templates["a"].render(data, 1000)
    assert isinstance(rendered, Rendered), str(rendered)
    return rendered.text


class Heard(structlog.testing.LogCapture):
    """Keeps what is logged, and tells that something was."""

    def __init__(self) -> None:
        super().__init__()
        self.something = asyncio.Event()

    def __call__(self, logger: Any, name: str, event: Any) -> NoReturn:  # noqa: ANN401  structlog's signature
        """Keep a line."""
        self.something.set()
        super().__call__(logger, name, event)


async def reloaded(library: Library, folder: Path, files: Mapping[str, str]) -> list[Any]:
    """Change files, ask for a reload, and return what was logged about it."""
    write(folder, files)
    heard = Heard()
    processors = structlog.get_config()["processors"]
    before = processors[:]
    processors[:] = [heard]
    try:
        library.reload()
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(library.run())
            await heard.something.wait()
            running.cancel()
    finally:
        processors[:] = before
    return heard.entries


async def test_a_reload_takes_the_new_files(tmp_path: Path) -> None:
    """Those that were changed and those that were added; a set that is in use stays what it was."""
    write(tmp_path, {**SUBJECT, "a.txt": "old"})
    library = Library(str(tmp_path))
    before = library.current
    logged = await reloaded(library, tmp_path, {"a.txt": "new", "b.subject.txt": "b", "b.txt": "b"})
    assert [(line["event"], line["templates"]) for line in logged] == [("templates.reloaded", 2)]
    assert (text_of(before, {}), text_of(library.current, {})) == ("old", "new")


async def test_a_reload_of_a_folder_with_a_fault_changes_nothing(tmp_path: Path) -> None:
    """All or nothing: also the file that is right isn't taken, and the fault is named."""
    write(tmp_path, {**SUBJECT, "a.txt": "old"})
    library = Library(str(tmp_path))
    logged = await reloaded(library, tmp_path, {"a.txt": "new", "b.txt": "{% if %}"})
    assert [(line["event"], line["log_level"]) for line in logged] == [("templates.reload_failed", "error")]
    assert [problem.partition(", line")[0] for problem in logged[0]["problems"]] == [
        "templates.dir: b.subject.txt is missing: every template makes its subject; a part's name begins with _",
        "templates.dir: b.txt",
    ]
    assert text_of(library.current, {}) == "old"


@pytest.mark.parametrize("fault", ["{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "{{ f(a=1, a=2) }}", "{{ " + "9" * 5000 + " }}"])
async def test_a_template_that_cannot_be_compiled_changes_nothing(tmp_path: Path, fault: str) -> None:
    """Whoever notices it first: Jinja2, Python's compiler, or the stack."""
    write(tmp_path, {**SUBJECT, "a.txt": "old"})
    library = Library(str(tmp_path))
    (line,) = await reloaded(library, tmp_path, {"a.txt": fault})
    assert line["event"] == "templates.reload_failed"
    assert line["problems"][0].startswith("templates.dir: a.txt: can't be compiled: ")
    assert text_of(library.current, {}) == "old"


async def test_a_link_to_itself_changes_nothing(tmp_path: Path) -> None:
    """In the folder, and in its place; a reload must not end the worker."""
    folder = tmp_path / "templates"
    folder.mkdir()
    write(folder, {**SUBJECT, "a.txt": "old"})
    library = Library(str(folder))
    (folder / "b.txt").symlink_to("b.txt")
    (line,) = await reloaded(library, folder, {})
    assert line["event"] == "templates.reload_failed"
    assert line["problems"][0].startswith("templates.dir: b.txt: ")
    folder.rename(tmp_path / "away")
    folder.symlink_to("templates")
    (line,) = await reloaded(library, folder, {})
    assert line["problems"][0].startswith(f"templates.dir: can't be read from {folder}: ")
    assert text_of(library.current, {}) == "old"


async def test_a_daemon_reads_its_templates_again_on_sighup(
    database: Database, relay: ScriptedRelay, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The next mail is made of the new files; a fault in them keeps the old ones, and work goes on through both."""
    folder = tmp_path / "templates"
    folder.mkdir()
    write(folder, {**SUBJECT, "a.txt": "one {{ n }}"})
    daemon = await start_daemon(database, relay.port, templates={"dir": "templates"})
    await daemon.wait_ready()
    assert await delivered(database, relay, daemon, {"n": 1}) == "one 1"
    write(folder, {"a.txt": "two {{ n }}"})
    daemon.signal(signal.SIGHUP)
    assert (await daemon.event("templates.reloaded"))["templates"] == 1
    assert await delivered(database, relay, daemon, {"n": 2}) == "two 2"
    write(folder, {"a.txt": "three {{ n "})
    daemon.signal(signal.SIGHUP)
    failed = await daemon.event("templates.reload_failed")
    assert failed["problems"][0].startswith("templates.dir: a.txt, line 1: ")
    assert await delivered(database, relay, daemon, {"n": 3}) == "two 3"
    assert await daemon.stop() == 0


async def test_a_hangup_ends_no_daemon_without_templates(
    database: Database, relay: ScriptedRelay, start_daemon: StartDaemon
) -> None:
    """The signal's own meaning is the end of a process."""
    daemon = await start_daemon(database, relay.port)
    await daemon.wait_ready()
    daemon.signal(signal.SIGHUP)
    assert (await daemon.event("templates.reloaded"))["templates"] == 0
    assert await daemon.stop() == 0


async def test_a_job_that_its_template_cannot_be_filled_in_for_is_dead(
    database: Database, relay: ScriptedRelay, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """With the variable's name for who reads the dead letter; nothing is sent, and a large payload is no exception."""
    write(tmp_path, {**SUBJECT, "a.txt": "{{ user.link }}{{ filling|length }}"})
    daemon = await start_daemon(database, relay.port, templates={"dir": str(tmp_path)})
    await daemon.wait_ready()
    for filling in ("", "x" * 50_000):
        job_id = await enqueue(database, {"user": {}, "filling": filling})
        line = await daemon.event("job.dead", job_id=job_id)
        assert line["reason"] == "template_variable_missing"
        reply = await database.fetchval("SELECT reply FROM mailslot.jobs WHERE id = $1", job_id)
        assert reply.startswith("template_variable_missing: data.user.link: a.txt needs it")
    assert relay.messages == []


async def test_a_daemon_with_broken_templates_does_not_start(
    database: Database, relay: ScriptedRelay, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """A mistake of configuration like any other."""
    write(tmp_path, {"a.txt": "{%"})
    daemon = await start_daemon(database, relay.port, templates={"dir": str(tmp_path)})
    assert await daemon.stopped() == 78
    assert "templates.dir: a.subject.txt is missing" in daemon.errors


async def test_a_signed_mail_is_verified_behind_the_relay(
    database: Database, relay: ScriptedRelay, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """What the relay stored, dots and all, under the address that bounces come to; a From of another domain is dead."""
    (tmp_path / "key.pem").write_text(pem(KEY))
    daemon = await start_daemon(
        database,
        relay.port,
        dkim={"domain": "example.org", "selector": "mail", "private_key_file": "key.pem"},
        mail={"envelope_from": "bounce@example.org", "verp": True},
    )
    await daemon.wait_ready()
    payload = {"to": "maya@example.net", "subject": "Grüße", "text": ".\n..\nCome.\n", "html": "<p>.</p>"}
    job_id = await database.fetchval("SELECT id FROM mailslot.enqueue(payload => $1)", json.dumps(payload))
    await daemon.event("job.sent", job_id=job_id)
    (message,) = relay.messages
    uid = await database.fetchval("SELECT uid FROM mailslot.jobs WHERE id = $1", job_id)
    assert message.sender == f"bounce+{uid.hex}@example.org"
    assert is_verified(message.content)
    assert not is_verified(message.content.replace(b"Come", b"Stay"))
    away = payload | {"from": "maya@example.net"}
    job_id = await database.fetchval("SELECT id FROM mailslot.enqueue(payload => $1)", json.dumps(away))
    assert (await daemon.event("job.dead", job_id=job_id))["reason"] == "dkim_alignment"


async def enqueue(database: Database, data: object) -> int:
    """Save a job that names the template `a`, and return its id."""
    payload = {"to": "maya@example.org", "template": "a", "data": data}
    return int(await database.fetchval("SELECT id FROM mailslot.enqueue(payload => $1)", json.dumps(payload)))


async def delivered(database: Database, relay: ScriptedRelay, daemon: Daemon, data: object) -> str:
    """Save a job, wait until it is sent, and return the text that the relay got."""
    await daemon.event("job.sent", job_id=await enqueue(database, data))
    return relay.messages[-1].content.partition(b"\r\n\r\n")[2].decode().strip()
