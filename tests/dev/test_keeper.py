"""The keeper: it ends with its command, and its command with the parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.dev import keeper


def keep(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start a keeper."""
    return subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_exit_code_is_the_commands(script: str, code: int) -> None:
    """The keeper ends by itself when the command does, and says how it ended."""
    with keep("--at-end", "TERM:5", "--", "/bin/sh", "-c", script) as process:
        assert process.wait(10) == code


def test_signals_are_passed_on() -> None:
    """A signal's name on the lifeline reaches the command."""
    script = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done"
    with keep("--at-end", "TERM:5", "--", "/bin/sh", "-c", script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("USR1\n")
        process.stdin.flush()
        assert process.wait(10) == 7


@pytest.mark.parametrize("ending", ["input", "signal"])
def test_command_is_ended_step_by_step_when_the_parent_is_gone(tmp_path: Path, ending: str) -> None:
    """A command that ignores the first signal gets the next one; the named folder is removed afterwards."""
    folder = tmp_path / "socket"
    folder.mkdir()
    script = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    with keep("--at-end", "TERM:0.1,QUIT:5", "--remove", folder, "--", "/bin/sh", "-c", script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if ending == "input":
            process.stdin.close()
        else:
            process.terminate()
        assert process.wait(10) == 128 + signal.SIGQUIT
    assert not folder.exists()
