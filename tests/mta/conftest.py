"""Fixtures of the tests with a real mail server, and what happens to these tests where there is none.

Without Exim they aren't run, and the last lines of the run say so. Where MAILSLOT_REQUIRE names exim, as `.ci/run` does, they are
run all the same, and fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.mta.exim import HINT, Exim, program
from tests.mta.post import Post
from tests.support.database import Database

HERE = Path(__file__).parent
NOT_RUN = pytest.StashKey[int]()

StartPost = Callable[..., Post]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests of this folder out where their server is missing and may be."""
    if program() is not None or "exim" in os.environ.get("MAILSLOT_REQUIRE", "").split(","):
        return
    not_run = [item for item in items if item.path.is_relative_to(HERE)]
    items[:] = [item for item in items if not item.path.is_relative_to(HERE)]
    config.stash[NOT_RUN] = len(not_run)
    config.hook.pytest_deselected(items=not_run)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what wasn't run, and how it can be."""
    if not_run := config.stash.get(NOT_RUN, 0):
        terminalreporter.write_line(f"tests/mta: exim4 isn't installed; {not_run} tests not run; {HINT}", red=True, bold=True)


@pytest.fixture
def start_post(database: Database, server_folder: Path, start_daemon: StartDaemon) -> Iterator[StartPost]:
    """Return a function that starts an Exim, given the main options to change; in the end, what always holds is checked."""
    posts: list[Post] = []
    with ExitStack() as stack:

        def start(**changes: str) -> Post:
            folder = Path(tempfile.mkdtemp(prefix="exim-", dir=server_folder))
            folder.chmod(0o711)
            posts.append(Post(database, stack.enter_context(Exim.running(folder / "exim", changes)), start_daemon))
            return posts[-1]

        yield start
        for post in posts:
            post.check()


@pytest.fixture
def post(start_post: StartPost) -> Post:
    """Return the stage with an Exim of the usual options."""
    return start_post()
