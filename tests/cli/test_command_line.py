"""What the shell sees: exit codes, sentences instead of tracebacks, help."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import _SubParsersAction
from collections.abc import Iterator
from importlib import import_module

import pytest

from daemon import __version__
from daemon.cli.exits import Exit, meaning_of
from daemon.cli.parser import Parser, parser
from daemon.core.errors import MailslotError, SchemaMismatch, StoreRefused, StoreUnavailable
from tests.cli.conftest import Mailslot
from tests.support.database import Database
from tests.support.process import ROOT


def commands(root: Parser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yield every command that does something, with the words that lead to it."""
    groups = [
        action
        for action in root._actions  # noqa: SLF001 - argparse has no public way
        if isinstance(action, _SubParsersAction)
    ]
    if not groups:
        yield path, root
    for group in groups:
        for name, below in group.choices.items():
            yield from commands(below, (*path, name))


ALL = dict(commands(parser()))
GOOD = ROOT / "config.toml"
IDS = [" ".join(path) for path in ALL]


@pytest.mark.parametrize("path", ALL, ids=IDS)
def test_every_command_names_a_function_that_exists(path: tuple[str, ...]) -> None:
    """The functions are named by text, so a renamed one would be noticed by the operator first."""
    module, _, name = ALL[path].get_default("target").partition(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize("path", [(), ("db",), ("jobs",), *ALL], ids=["mailslot", "db", "jobs", *IDS])
async def test_every_command_explains_itself(run: Mailslot, path: tuple[str, ...]) -> None:
    """--help is exit 0 and says more than the usage line."""
    ran = await run(*path, "--help")
    assert ran.code == 0
    assert ran.out.startswith(" ".join(("usage: mailslot", *path)))
    assert len(ran.out.splitlines()) > 4


def test_help_loads_neither_the_daemon_nor_a_driver() -> None:
    """`mailslot --help` is fast because it loads nothing that it doesn't need."""
    heavy = ("asyncpg", "asyncio", "aiosmtplib", "structlog", "tqdm", "daemon.app", "daemon.database")
    program = f"import sys; from daemon.__main__ import main; main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


async def test_version_is_the_packages(run: Mailslot) -> None:
    """--version prints one line."""
    ran = await run("--version")
    assert (ran.code, ran.out) == (0, f"mailslot {__version__}\n")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "frobnicate",
        "jobs",
        "jobs show",
        "jobs show x",
        "jobs show 0",
        "jobs show 99999999999999999999",
        "jobs list --state broken",
        "jobs list --lim 3",
        "jobs resolve 1",
        "jobs resolve 1 --sent --not-sent",
        "jobs retry 1 --expires soon",
        "run --concurrency 0",
        "run --json",
        "enqueue --at tomorrow",
        "enqueue --at 2026-12-24T18:00:00",
        "enqueue --at +99999999999d",
        "enqueue --priority 4",
        "enqueue --text a --text-file b",
        "enqueue --text-file /nonexistent",
        "enqueue --attach /nonexistent",
        "enqueue --header List-Id",
        "enqueue --header A:1 --header A:2",
        "enqueue --kind report",
        "enqueue --payload {",
        "enqueue --payload {} --to a@example.org",
        "enqueue --json - --subject x",
        "enqueue --json - --key x",
        "enqueue --json /nonexistent",
    ],
)
async def test_usage_errors_are_64_and_one_sentence(run: Mailslot, line: str) -> None:
    """A wrong command line never reaches the database, and standard output stays empty."""
    ran = await run(*line.split())
    assert ran.code == Exit.USAGE
    assert ran.out == ""
    assert ran.err.startswith("mailslot")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("away"), 69),
        (SchemaMismatch("old"), 78),
        (StoreRefused("permission denied for table jobs", "42501"), 77),
        (StoreRefused("no such user", "28P01"), 77),
        (StoreRefused("no such database", "3D000"), 78),
        (StoreRefused("no such function", "42883"), 78),
        (StoreRefused("odd value", "22023"), 1),
        (MailslotError("something else"), 1),
    ],
)
def test_an_errors_exit_code_says_who_can_help(error: MailslotError, code: int) -> None:
    """Try again later, an administrator, or whoever wrote the configuration."""
    assert meaning_of(error) == code


async def test_an_absent_database_is_69(run: Mailslot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers: the command says so and may be repeated."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", "postgresql://nobody@127.0.0.1:9/none")
    ran = await run("jobs", "list")
    assert (ran.code, ran.out) == (69, "")
    assert ran.err.startswith("mailslot: connect")
    assert "Traceback" not in ran.err


async def test_a_database_without_the_schema_is_78_and_says_what_to_do(mailslot: Mailslot, database: Database) -> None:
    """Every command that meets an empty database names the one that fills it."""
    await database.execute("DROP SCHEMA mailslot CASCADE")
    for line in ("jobs list", "jobs cancel 1", "db check", "db settings", "enqueue --to a@example.org --text x"):
        ran = await mailslot(*line.split())
        assert ran.code == 78, line
        assert "mailslot db migrate" in ran.err, line


async def test_a_user_without_the_role_is_77(mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor can't cancel, and is told so in the server's words."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_monitor")
    ran = await mailslot("jobs", "cancel", "1")
    assert ran.code == 77
    assert "permission denied" in ran.err


def test_a_closed_pipe_is_quiet(database: Database) -> None:
    """`mailslot db schema | head -1` prints no complaint."""
    environment = {**os.environ, "MAILSLOT_DATABASE__DSN": database.dsn}
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon", "db", "schema"], cwd=ROOT, env=environment, stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    _, err = process.communicate()
    assert (process.returncode, err) == (Exit.PIPE_CLOSED, b"")


async def test_check_config_says_ok(run: Mailslot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good configuration is one word, and nothing is connected to."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", "postgresql://nobody@127.0.0.1:9/none")
    ran = await run("run", "--check-config", "--config", str(GOOD))
    assert (ran.code, ran.out) == (0, "ok\n")
    ran = await run("run", "--check-config", "--config", str(GOOD), "--json")
    assert (ran.code, ran.json) == (0, {"ok": True, "problems": []})


async def test_check_config_reports_every_problem_with_its_key(run: Mailslot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three mistakes are three lines, and --json says the same."""
    monkeypatch.setenv("MAILSLOT_WORKER__CONCURRENCY", "-1")
    monkeypatch.setenv("MAILSLOT_LEASE__DURATION_S", "never")
    monkeypatch.setenv("MAILSLOT_RETRY__FIRST_S", "-3")
    keys = {"worker.concurrency", "lease.duration_s", "retry.first_s"}
    ran = await run("run", "--check-config")
    assert (ran.code, ran.out) == (78, "")
    assert all(key in ran.err for key in keys)
    ran = await run("run", "--check-config", "--json")
    assert ran.code == 78
    assert not ran.json["ok"]
    assert keys <= {problem["key"] for problem in ran.json["problems"]}


async def test_flags_override_the_environment(run: Mailslot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins, so that a wrong variable under it does no harm."""
    monkeypatch.setenv("MAILSLOT_WORKER__CONCURRENCY", "-1")
    ran = await run("run", "--check-config", "--json", "--concurrency", "4")
    assert "worker.concurrency" not in ran.out
