"""What does mailslot do? `mailslot dev` shows it: a database, an inbox, the real daemon, and one invitation on its way.

Everything lies in one folder, `.mailslot` unless it is told otherwise, and is kept for the next time. The daemon is the one that
an operator runs, as a process of its own with a configuration file of its own; this program only starts, tells and ends.

End, in this order: the daemon drains, then the inbox, then the database. Ctrl-C asks for it; a second Ctrl-C cuts the drain
short. If this program is killed, all three end by themselves.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import shlex
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from daemon import config
from daemon.cli.db import migrate
from daemon.core.errors import MailslotError
from daemon.core.settings import Settings
from daemon.database import connect, translated
from daemon.dev import narrator
from daemon.dev.child import Child
from daemon.dev.postgres import Server

SIGNALLED = 128
DAEMON_AT_END = "TERM:5"  # the database goes at the same moment, so there is little to wait for
INVITATION = {
    "to": [{"name": "Maya", "email": "maya@example.org"}],
    "subject": "Maya, you are invited",
    "text": "Dear Maya,\n\nwe would love to see you at our summer party on Saturday at six.\n\nNoor and Ben\n",
    "html": "<p>Dear Maya,</p><p>we would love to see you at our <b>summer party</b> on Saturday at six.</p><p>Noor and Ben</p>",
}
SAVE_INVITATION = "SELECT id FROM mailslot.enqueue($1::text::jsonb, idempotency_key => 'invitation:42')"
WAS_USED = "SELECT is_called FROM mailslot.jobs_id_seq"

CONFIGURATION = """\
# Written by `mailslot dev` at each start; give it to other commands by --config.
[database]
dsn = {dsn}

[mail]
from = "Noor and Ben <party@example.org>"

[[relay]]
name = "inbox"
host = "127.0.0.1"
port = {port}
tls = "none"
# Short, so that nobody waits long for the inbox's difficult recipients.
command_timeout_s = 20.0
dot_timeout_s = 20.0
pause_s = 10.0

[retry]
first_s = 5.0
greylist_s = 5.0

[log]
level = "debug"
format = "json"
"""

HOW_TO_GO_ON = """
Send another mail:
  {enqueue} --to you@example.org --subject Hello --text 'Hello there'
or from any program, in its own transaction:
  {psql} -c "SELECT * FROM mailslot.enqueue(jsonb_build_object('to', 'you@example.org', 'subject', 'Hello', 'text', 'From SQL'))"
A difficult relay: send to 550@example.org, 451-greylist@.., drop@.., hang@.. or accept-then-drop@..
The mails that arrive lie in {inbox}; nothing leaves this machine.
"""


def main(arguments: Namespace) -> int:
    """Run the demonstration with `once`, `dir` and `concurrency`, and return the exit code.

    Raises:
        MailslotError: something that it needs isn't there, or another one runs in the same folder.
    """
    if importlib.util.find_spec("aiosmtpd") is None:
        raise MailslotError("mailslot dev needs more than the daemon does: pip install 'mailslot[dev]'")
    folder: Path = arguments.dir.absolute()
    with _alone_in(folder):
        _tell("database", f"PostgreSQL starts, its data in {_shown(folder / 'postgres')}")
        with Server.start(folder / "postgres") as server:
            demo = _Demo(folder, server, once=arguments.once, concurrency=arguments.concurrency)
            code = asyncio.run(demo.run())
    demo.conclude(code)
    return code


class _Demo:
    """The parts between the start of the database and its end."""

    def __init__(self, folder: Path, server: Server, *, once: bool, concurrency: int | None) -> None:
        self._inbox_folder = folder / "inbox"
        self._config = folder / "config.toml"
        self._server = server
        self._once = once
        self._flags = ["--config", str(self._config)]
        self._flags += ["--once"] if once else []
        self._flags += ["--concurrency", str(concurrency)] if concurrency is not None else []
        self._asked = 0
        self._daemon_ended = False
        self._inbox_failed = False

    async def run(self) -> int:
        """Start inbox and daemon, tell what they do until the daemon ends, and return the exit code."""
        inbox = await Child.start("daemon.dev.inbox", "--dir", self._inbox_folder)
        try:
            mails = inbox.lines()
            port = await _port_of(mails)
            _tell("inbox", f"it listens on 127.0.0.1:{port} and keeps its mail in {_shown(self._inbox_folder)}")
            settings = self._configure(port)
            await migrate(settings)
            await self._save_invitation(settings)
            if not self._once:
                self._say_how_to_go_on()
            daemon = await Child.start("daemon", "run", *self._flags, at_end=DAEMON_AT_END)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._stop, daemon)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell_mails(mails, daemon))
                async for line in daemon.lines():
                    for word, sentence in narrator.told(line):
                        _tell(word, sentence)
                code = await daemon.end()
                self._daemon_ended = True
                await inbox.end()
        finally:
            await inbox.end()
        return code

    def conclude(self, code: int) -> None:
        """Say how it ended.

        Raises:
            MailslotError: it ended, and nobody had asked for that.
        """
        if self._inbox_failed:
            raise MailslotError("the inbox has ended before the daemon; its own words are above")
        if code > SIGNALLED:
            raise MailslotError(
                f"the daemon was killed by {signal.Signals(code - SIGNALLED).name}; run this again, and it goes on"
            )
        if code != 0:
            _tell("ended", f"the daemon ended with exit code {code}; its own words are above")
        elif self._asked:
            _tell("ended", "everything that was begun is finished; nothing is left running")
        elif self._once:
            _tell("ended", f"nothing is due; nothing is left running. The mail is in {_shown(self._inbox_folder)}")
        else:
            raise MailslotError("the daemon has ended, and nobody here asked it to")

    def _configure(self, port: int) -> Settings:
        self._config.write_text(CONFIGURATION.format(dsn=json.dumps(self._server.dsn), port=port))
        return config.load(self._config, {}, {}, sends=True)

    async def _save_invitation(self, settings: Settings) -> None:
        """Save Maya's invitation as an application would, unless the queue has been used before."""
        connection = await connect(settings.database, application_name="mailslot-dev")
        try:
            with translated("enqueue"):
                if await connection.fetchval(WAS_USED):
                    _tell("queue", "it has been used before, so no invitation is saved")
                    return
                job_id = await connection.fetchval(SAVE_INVITATION, json.dumps(INVITATION))
        finally:
            await connection.close()
        _tell("saved", f"job {job_id}: Maya's invitation")

    def _say_how_to_go_on(self) -> None:
        psql = "psql" if shutil.which("psql") else shlex.quote(_shown(self._server.programs / "psql"))
        print(
            HOW_TO_GO_ON.format(
                enqueue=f"{_own_command()} enqueue --config {shlex.quote(_shown(self._config))}",
                psql=f"{psql} -h {self._server.socket_dir} -p {self._server.port} -U postgres postgres",
                inbox=_shown(self._inbox_folder),
            ),
            flush=True,
        )

    def _stop(self, daemon: Child) -> None:
        self._asked += 1
        daemon.order("TERM")
        if self._asked == 1:
            _tell("stop", "the daemon drains; Ctrl-C again cuts that short")

    async def _tell_mails(self, mails: AsyncIterator[dict[str, Any]], daemon: Child) -> None:
        async for mail in mails:
            _tell(*narrator.heard(mail, _shown))
        if not self._daemon_ended:
            self._inbox_failed = True
            daemon.order("TERM")


async def _port_of(mails: AsyncIterator[dict[str, Any]]) -> int:
    """Return where the inbox listens, which it says first."""
    async for line in mails:
        return int(line["port"])
    raise MailslotError("the inbox didn't start; its own words are above")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder: two databases on the same data would destroy it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise MailslotError(f"{folder} can't be used ({error.strerror}); choose another one by --dir") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MailslotError(
                f"another mailslot dev runs in {folder}; end it first, or choose another folder by --dir"
            ) from None
        yield


def _tell(word: str, sentence: str) -> None:
    print(f"{datetime.now().astimezone():%H:%M:%S}  {word:<9} {sentence}", flush=True)


def _shown(path: str | Path) -> str:
    """Return the path as the person would write it, from where they are."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else str(path)


def _own_command() -> str:
    """Return how this program was started, for lines that work when they are pasted."""
    command = Path(sys.executable).with_name("mailslot")
    if shutil.which("mailslot") == str(command):
        return "mailslot"
    return shlex.quote(_shown(command)) if command.exists() else f"{shlex.quote(_shown(Path(sys.executable)))} -m daemon"
