"""The real `main()` against a real database, in a thread of its own since it runs its own loop."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.__main__ import main
from tests.support.database import Database
from tests.support.logs import as_before


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the command prints
        """Return the one JSON object on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Return the JSON objects on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


Mailslot = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    with as_before():
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mailslot:
    """Return a function that runs a command line, with bytes on standard input, as if no file or variable configured it."""
    empty = tmp_path / "empty.toml"
    empty.touch()
    monkeypatch.setenv("MAILSLOT_CONFIG", str(empty))
    monkeypatch.setenv("MAILSLOT_MAIL__FROM", "Team <team@example.org>")

    async def run_main(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = await asyncio.to_thread(main, arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_main


@pytest.fixture
def mailslot(run: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch) -> Mailslot:
    """Return a function that runs a command line against the test's database."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", database.dsn)
    return run
