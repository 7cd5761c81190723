"""`mailslot dev`: the whole path, from the saved invitation to the mail in the inbox, by real processes."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from daemon.dev.child import environment
from tests.support.process import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
STORY = ["database", "inbox", "saved", "ready", "claimed", "arrived", "sent", "recorded", "stopped", "ended"]


class Demo:
    """One `mailslot dev` in a folder, and its lines."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "daemon", "dev", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        self.folder = folder
        self.lines: list[str] = []

    def until(self, word: str) -> str:
        """Read on to the line that tells this word, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line[10:].startswith(f"{word} "):
                return line
        raise AssertionError(f"no {word} in\n" + "\n".join(self.lines))

    def interrupt(self) -> None:
        """Press Ctrl-C: a terminal signals the whole group, not the demonstration alone."""
        os.killpg(self.process.pid, signal.SIGINT)

    def rest(self) -> int:
        """Read to the end, and return the exit code."""
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait()

    def words(self) -> list[str]:
        """Return what was told, word by word."""
        return [line[10:].split()[0] for line in self.lines if line[2:3] == ":"]

    def paste(self, part: str, **changes: str) -> None:
        """Run the printed line that contains `part` in a shell, as a person would, with some words changed."""
        [line] = [line for line in self.lines if part in line]
        for word, other in changes.items():
            line = line.replace(word, other)
        subprocess.run(["/bin/sh", "-c", line], cwd=self.folder, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.interrupt()
        self.rest()
        assert self.process.stdout is not None
        self.process.stdout.close()


def running(folder: Path) -> dict[int, str]:
    """Return the processes whose command line names the folder."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            found[int(entry.parent.name)] = command
    return found


def wait_for_end(pids: dict[int, str]) -> None:
    """Wait until these processes have ended."""
    for pid, command in pids.items():
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([end], [], [], 30)[0], command
        finally:
            os.close(end)


@pytest.fixture
def folder(server_folder: Path) -> Iterator[Path]:
    """Return an empty folder with a space in its name."""
    folder = server_folder / "my trial"
    folder.mkdir(mode=0o711)
    yield folder
    shutil.rmtree(folder)


def test_once_delivers_the_invitation_and_leaves_nothing_running(folder: Path) -> None:
    """Saved, claimed, arrived, sent, recorded: in this order; then everything has ended, and the second time nothing is due."""
    (folder / "daemon").mkdir()
    (folder / "daemon" / "__init__.py").write_text("raise SystemExit('somebody else\\'s package of the same name')\n")
    with Demo(folder, "--once") as demo:
        assert demo.rest() == 0
        assert demo.words() == STORY, demo.lines
    assert running(folder) == {}
    [mail] = (folder / ".mailslot" / "inbox").glob("*.eml")
    assert b"To: Maya <maya@example.org>" in mail.read_bytes()
    with Demo(folder, "--once") as demo:
        assert demo.rest() == 0
        assert demo.words() == ["database", "inbox", "queue", "ready", "stopped", "ended"], demo.lines


def test_printed_lines_work_when_they_are_pasted(folder: Path) -> None:
    """Both ways to send another mail do send one, and Ctrl-C drains and ends everything."""
    with Demo(folder, "--concurrency", "3") as demo:
        demo.until("recorded")
        for printed in ("enqueue --config", "SELECT * FROM"):
            demo.paste(printed)
            demo.until("recorded")
        demo.interrupt()
        assert demo.rest() == 0
        assert demo.words()[-4:] == ["stop", "drain", "stopped", "ended"]
        assert not any("database.lost" in line for line in demo.lines), demo.lines
        assert any("takes 3 jobs at a time" in line for line in demo.lines)
    assert running(folder) == {}
    assert len(list((folder / ".mailslot" / "inbox").glob("*.eml"))) == 3


def test_second_demonstration_in_one_folder_is_refused(folder: Path) -> None:
    """Two databases on the same data would destroy it."""
    with Demo(folder) as demo:
        demo.until("ready")
        with Demo(folder, "--once") as second:
            assert second.rest() != 0
            assert "another mailslot dev runs in" in second.lines[-1]


def test_killed_demonstration_takes_everything_with_it(folder: Path) -> None:
    """After SIGKILL no database, no inbox and no daemon stays behind, and the next start works."""
    with Demo(folder) as demo:
        demo.until("recorded")
        started = running(folder)
        demo.process.kill()
        wait_for_end(started)
    with Demo(folder, "--once") as demo:
        assert demo.rest() == 0


def test_death_of_the_daemon_is_told(folder: Path) -> None:
    """A daemon that is killed ends the demonstration with a sentence and an exit code that isn't 0."""
    with Demo(folder) as demo:
        demo.until("recorded")
        [daemon] = [pid for pid, command in running(folder).items() if "daemon run" in command and "keeper.py" not in command]
        os.kill(daemon, signal.SIGKILL)
        assert demo.rest() != 0
        assert "the daemon was killed by SIGKILL" in demo.lines[-1]
    assert running(folder) == {}


def test_second_signal_cuts_the_drain_short(folder: Path) -> None:
    """A relay that never answers doesn't keep the person waiting: the mail is left in doubt, and the exit code says so."""
    with Demo(folder) as demo:
        demo.until("recorded")
        demo.paste("enqueue --config", you="hang")
        demo.until("silent")
        demo.interrupt()
        demo.until("drain")
        demo.interrupt()
        assert demo.rest() == 75
    assert running(folder) == {}


def test_no_setting_of_the_environment_reaches_the_daemon() -> None:
    """A variable that names the real database would make the demonstration send real mail."""
    ours = {
        "MAILSLOT_DATABASE__DSN": "postgresql:///real",
        "NOTIFY_SOCKET": "/run/x",
        "HOME": "/home/noor",
        "PYTHONPATH": "/more",
    }
    assert environment(ours) == {"HOME": "/home/noor", "PYTHONPATH": f"{ROOT}{os.pathsep}/more"}


def test_command_lines_are_quoted(folder: Path) -> None:
    """A folder with a space in its name is one word in what is printed."""
    with Demo(folder, "--dir", str(folder / "kept here")) as demo:
        demo.until("ready")
        [line] = [line for line in demo.lines if "enqueue --config" in line]
        assert "kept here/config.toml" in shlex.split(line)
