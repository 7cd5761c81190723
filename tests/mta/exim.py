"""A real mail server for tests: Exim from Debian, of our own configuration, as an ordinary user, on this host only.

`exim.conf` says what it does with a mail; the main options stand here, since tests change them. Its whole state is in one folder:
spool, logs, certificate, passwords, and a Maildir into which every recipient's copy is delivered. Exim runs in a process group of
its own, so that it can be killed together with the processes that serve its connections.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
import grp
import os
import pwd
import re
import shutil
import signal
import smtplib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from types import MappingProxyType
from typing import Final

from daemon.dev.account import Account
from tests.support.certificates import Authority

HINT: Final = "apt-get install --no-install-recommends exim4-daemon-light"
HOST: Final = "localhost"
USERNAME, PASSWORD = "mailslot", "correct horse"
SIZE_LIMIT: Final = 200_000
"""What EHLO announces, in bytes."""
HARD_LIMIT: Final = 100_000
"""What is refused after the dot, though EHLO announced more."""
GREYLIST_S: Final = 2
"""What its greylist asks for."""
DOT: Final = "the dot has come"
"""What it logs before it thinks about a message."""
WAIT_S: Final = 30.0
_LOOK_S: Final = 0.03
_NO_CHANGES: Mapping[str, str] = MappingProxyType({})


def program() -> str | None:
    """Return where Exim is installed, None if it isn't."""
    return shutil.which("exim4", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass(frozen=True)
class Delivered:
    """One file of the Maildir: the copy of one recipient."""

    content: bytes

    @property
    def message(self) -> EmailMessage:
        """The message as the standard library reads it."""
        return email.message_from_bytes(self.content, policy=email.policy.default)

    @property
    def recipient(self) -> str:
        """Who it was for, by the envelope."""
        return str(self.message["Envelope-to"])

    @property
    def job_uid(self) -> str:
        """Whose mail it is."""
        return str(self.message["X-Job-ID"])

    @property
    def queue_id(self) -> str:
        """Which of Exim's messages it comes from: two only if Exim accepted it twice, whatever a crash made of its delivery."""
        found = re.search(r"\bid (\S+)", str(self.message["Received"]))
        assert found is not None
        return found[1]


class Exim:
    """One server in one folder; it may be stopped, killed, changed and started again."""

    def __init__(self, folder: Path, account: Account, changes: Mapping[str, str] = _NO_CHANGES) -> None:
        self.port, self.tls_port = _free_ports()
        self._folder = folder
        self._account = account
        self.authority = Authority.made(_made(folder / "authority"))
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("spool", "log"):
            account.own(_made(folder / name))
        self.show_certificate(self.authority, HOST)
        self.accept_password(PASSWORD)
        self.configure(changes)

    @classmethod
    @contextmanager
    def running(cls, folder: Path, changes: Mapping[str, str] = _NO_CHANGES) -> Iterator[Exim]:
        """Run a server in a folder that doesn't exist yet; root runs it as somebody else."""
        account = Account.choose(folder)
        account.own(_made(folder))
        exim = cls(folder, account, changes)
        exim.start()
        try:
            yield exim
        finally:
            exim.kill()

    @property
    def ca_file(self) -> str:
        """The certificate of the authority that a client should trust."""
        return self.authority.ca_file

    @property
    def log(self) -> list[str]:
        """Return what it has logged so far."""
        path = self._folder / "log/mainlog"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def logged(self, words: str) -> list[str]:
        """Return the lines of the log that contain these words."""
        return [line for line in self.log if words in line]

    async def has_logged(self, words: str, count: int = 1) -> list[str]:
        """Wait for so many lines of the log that contain these words, and return all of them."""
        until_mono = time.monotonic() + WAIT_S
        while len(lines := self.logged(words)) < count:
            assert time.monotonic() < until_mono, f"no {words!r}\n{self.story()}"
            await asyncio.sleep(_LOOK_S)
        return lines

    @property
    def delivered(self) -> list[Delivered]:
        """Return what the Maildir holds now."""
        return [Delivered(path.read_bytes()) for path in sorted((self._folder / "Maildir/new").glob("*"))]

    async def settled(self) -> list[Delivered]:
        """Wait until everything that was accepted has been delivered, and return what the Maildir holds then.

        A message is accepted once its -H file is there; a -D file alone is what a crash left of one that wasn't.
        """
        until_mono = time.monotonic() + WAIT_S
        while any((self._folder / "spool/input").glob("*-H")):
            assert time.monotonic() < until_mono, f"not delivered\n{self.story()}"
            await asyncio.sleep(_LOOK_S)
        return self.delivered

    def accept_password(self, password: str) -> None:
        """Let the user log in with this password from now on."""
        self._write("passwords", f"{USERNAME}: {password}\n")

    def show_certificate(self, authority: Authority, host: str) -> None:
        """Be this host, by the word of this authority, from the next start on."""
        for name, source in zip(("certificate", "key"), authority.issue(host), strict=True):
            self._write(name, source.read_text())

    def configure(self, changes: Mapping[str, str] = _NO_CHANGES) -> None:
        """Write the configuration, with some options and macros changed, for the next start."""
        options = [f"{name} = {value}" for name, value in {**self._options(), **changes}.items()]
        self._write("exim.conf", "\n".join([*options, (Path(__file__).parent / "exim.conf").read_text()]))

    def start(self) -> None:
        """Start it, and wait until it greets."""
        executable = program()
        assert executable is not None, f"exim4 isn't installed: {HINT}"
        with (self._folder / "log/output").open("wb") as output:
            self._process = subprocess.Popen(
                (executable, "-C", self._folder / "exim.conf", "-bdf", "-q1s"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                user=self._account.user,
                group=self._account.group,
                extra_groups=None if self._account.user is None else [],
                start_new_session=True,
            )
        until_mono = time.monotonic() + WAIT_S
        while not self._greets():
            assert self._process.poll() is None and time.monotonic() < until_mono, self.story()  # noqa: PT018  one question
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """Kill it and every process that serves a connection of it or delivers a mail."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def story(self) -> str:
        """Return what it said last, for a test that fails."""
        return "\n".join([(self._folder / "log/output").read_text(errors="replace"), *self.log[-40:]])

    def _greets(self) -> bool:
        try:
            with smtplib.SMTP("127.0.0.1", self.port, timeout=WAIT_S):
                return True
        except (OSError, smtplib.SMTPException):
            return False

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        self._account.own(path)

    def _options(self) -> dict[str, str]:
        owner = (self._folder / "spool").stat()
        return {
            "BASE": str(self._folder),
            "GREYLIST_S": str(GREYLIST_S),
            "HARD_BYTES": str(HARD_LIMIT),
            "DOT_DELAY": "0s",
            "primary_hostname": "mx.example.test",
            "exim_path": str(program()),
            "exim_user": pwd.getpwuid(owner.st_uid).pw_name,
            "exim_group": grp.getgrgid(owner.st_gid).gr_name,
            "spool_directory": "BASE/spool",
            "log_file_path": "BASE/log/%slog",
            "log_selector": "+smtp_connection +smtp_syntax_error +smtp_protocol_error +smtp_incomplete_transaction",
            "pid_file_path": "BASE/exim.pid",
            "local_interfaces": "127.0.0.1",
            "daemon_smtp_ports": f"{self.port} : {self.tls_port}",
            "tls_on_connect_ports": str(self.tls_port),
            "keep_environment": "",
            "never_users": "",
            "deliver_drop_privilege": "true",
            "tls_advertise_hosts": "*",
            "tls_certificate": "BASE/certificate",
            "tls_privatekey": "BASE/key",
            "auth_advertise_hosts": "${if def:tls_in_cipher {*}{}}",
            "message_size_limit": str(SIZE_LIMIT),
            "smtp_accept_queue_per_connection": "0",
            "acl_smtp_rcpt": "rcpt",
            "acl_smtp_data": "data",
        }


def _made(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def _free_ports() -> tuple[int, int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as one, closing(socket.create_server(("127.0.0.1", 0))) as two:
        return one.getsockname()[1], two.getsockname()[1]
