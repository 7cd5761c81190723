"""How does somebody without PostgreSQL get one, for a try or for the tests?

A server of our own, reached through a socket in a private folder under /tmp and not over the network. Its data is kept
between runs; the server itself is gone when the process that started it is gone, also after SIGKILL (`daemon.dev.keeper`).
It runs in a session of its own, so that Ctrl-C in the terminal doesn't reach it before the daemon has drained.

As root it runs as another account (`daemon.dev.account`). When that account can't enter the folder of the data, the data
lies under /var/tmp/mailslot-ACCOUNT, and a symbolic link in the wanted place says where.

Commits are durable (fsync), since the daemon refuses a server that isn't.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self
from urllib.parse import quote

from daemon.core.errors import MailslotError
from daemon.dev import binaries, keeper
from daemon.dev.account import ENVIRONMENT, Account

Mode = Literal["fast", "immediate"]

PORT = 5432  # part of the socket's name only; each server has a folder of its own
SIGNALS: Mapping[Mode, bytes] = MappingProxyType({"fast": b"INT\n", "immediate": b"QUIT\n"})
START_TIMEOUT_S = 60.0  # recovery after a crash takes its time
STOP_TIMEOUT_S = 15.0
PREDECESSOR_TIMEOUT_S = 15.0  # what the keeper of a killed parent takes at the most
LOOK_INTERVAL_S = 0.02
VERSION_WITH_BUILTIN_LOCALE = 17


class Server:
    """One running PostgreSQL; leaving the `with` block stops it."""

    def __init__(self, account: Account, programs: Path, data: Path, log: Path, settings: Mapping[str, str]) -> None:
        self._account = account
        self._data = data
        self._log = log
        self._settings = dict(settings)
        self._keeper: subprocess.Popen[bytes] | None = None
        self.programs = programs
        self.socket_dir = Path(tempfile.mkdtemp(prefix="mailslot-", dir="/tmp"))  # a socket's path has at most 107 bytes
        self.port = PORT
        account.own(self.socket_dir)

    @classmethod
    def start(cls, data_dir: Path, *, settings: Mapping[str, str] = MappingProxyType({})) -> Self:
        """Start a server on the data in `data_dir`, which is made when it isn't there, and return when it takes connections.

        Args:
            data_dir: where the data lies, or, as a symbolic link, is found. The log is written beside it.
            settings: more of PostgreSQL's settings, by name.

        Raises:
            MailslotError: with a sentence that says what to do.
        """
        wanted = data_dir.absolute()
        if wanted.exists() and not os.access(wanted, os.R_OK | os.X_OK):
            raise MailslotError(
                f"{wanted} belongs to another account. Run this as that account or as root, or choose another folder."
            )
        wanted.parent.mkdir(parents=True, exist_ok=True)
        account = Account.choose(wanted)
        programs = binaries.find(account)
        data = _reachable(wanted, account)
        log = wanted.with_name(f"{wanted.name}.log")
        log.unlink(missing_ok=True)
        if not (data / "PG_VERSION").exists():
            _initialize(account, programs, data)
        server = cls(account, programs, data, log, settings)
        try:
            server.up()
        except BaseException:
            server.stop("immediate")
            raise
        return server

    @property
    def dsn(self) -> str:
        """Return the address of the database `postgres`, for its superuser."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str) -> str:
        """Return the address of a database of this server, for the superuser."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.socket_dir), safe='')}&port={self.port}"

    def up(self) -> None:
        """Start the server again, where it was, and return when it takes connections."""
        _wait_for_predecessor(self._data)
        before = _postmaster(self._data)
        command: list[str | Path] = [
            sys.executable,
            "-I",
            keeper.__file__,
            "--at-end",
            "INT:10,QUIT:5",
            "--remove",
            self.socket_dir,
        ]
        if self._account.user is not None:
            command += ["--user", str(self._account.user), "--group", str(self._account.group)]
        command += ["--", self.programs / "postgres", "-D", self._data, "-k", self.socket_dir, "-p", str(self.port)]
        for name, value in {"listen_addresses": "", **self._settings}.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603  our own command line
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._wait_until_ready(self._keeper, before)

    def down(self, mode: Mode = "fast") -> None:
        """Stop the server but keep its place, for `up`; `immediate` is a crash on purpose. Nothing happens when it is down."""
        if self._keeper is None or self._keeper.stdin is None:
            return
        with self._keeper.stdin as lifeline:
            try:
                lifeline.write(SIGNALS[mode])
                self._keeper.wait(STOP_TIMEOUT_S)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass  # it has ended by itself, or the end of the lifeline makes it end
        self._keeper.wait()
        self._keeper = None

    def restart(self, mode: Mode = "fast") -> None:
        """Stop the server and start it again in the same place."""
        self.down(mode)
        self.up()

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server for good; its data is kept."""
        self.down(mode)
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _wait_until_ready(self, kept: subprocess.Popen[bytes], before: list[str]) -> None:
        deadline_mono = time.monotonic() + START_TIMEOUT_S
        while (lines := _postmaster(self._data)) == before or lines[-1:] != ["ready"]:
            if kept.poll() is not None or time.monotonic() > deadline_mono:
                said = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
                raise MailslotError(f"PostgreSQL didn't start on the data in {self._data}. It says:\n{said}")
            time.sleep(LOOK_INTERVAL_S)


def _reachable(wanted: Path, account: Account) -> Path:
    """Return where the data really lies: the wanted place, or where its link points; make the link if it is needed."""
    if wanted.is_symlink() and not wanted.exists():
        wanted.unlink()  # its data is gone
    if account.user is None or wanted.exists() or account.can_enter(wanted.parent):
        return wanted.resolve()
    place = Path(tempfile.mkdtemp(prefix="data-", dir=binaries.shared_folder(account)))
    wanted.symlink_to(place)
    return place


def _initialize(account: Account, programs: Path, data: Path) -> None:
    """Make an empty database cluster; it gets its name when it is whole."""
    unfinished = data.with_name(f"{data.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    account.own(unfinished)
    locale = ["--locale=C.UTF-8"]
    if binaries.major_version(account, programs) >= VERSION_WITH_BUILTIN_LOCALE:
        locale = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]  # the same on every system
    made = account.run(
        programs / "initdb", "-D", unfinished, "-U", "postgres", "-E", "UTF8", *locale, "--auth=trust", "--no-sync"
    )  # fmt: skip
    if made.returncode != 0:
        raise MailslotError(f"PostgreSQL's data couldn't be made in {data}:\n{made.stdout.strip()}")
    if data.exists():
        data.rmdir()
    unfinished.rename(data)


def _postmaster(data: Path) -> list[str]:
    """Return the lines of the server's pid file: the pid first, its state last; none when there is no server."""
    try:
        return [line.strip() for line in (data / "postmaster.pid").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _wait_for_predecessor(data: Path) -> None:
    """Wait while the server of a parent that was killed is still stopping; PostgreSQL itself refuses what is left then."""
    deadline_mono = time.monotonic() + PREDECESSOR_TIMEOUT_S
    while (lines := _postmaster(data)) and _works_in(lines[0], data) and time.monotonic() < deadline_mono:
        time.sleep(LOOK_INTERVAL_S)


def _works_in(pid: str, data: Path) -> bool:
    """Say whether the process is the data's server; a pid alone may long be somebody else's."""
    try:
        return Path("/proc", pid, "cwd").readlink() == data
    except OSError:
        return False
