"""Where does mail go while somebody tries things out? Into a folder, and nowhere else.

    python -m daemon.dev.inbox --port N --dir FOLDER

An SMTP server on the loopback address that keeps each message as an `.eml` file, whole or not at all, before it answers 250.
Says on standard output, as JSON lines, where it listens (`inbox.ready`), and then what arrives (`mail.kept`). It ends at SIGTERM,
at SIGINT, and when its standard input ends, so that it doesn't outlive whoever started it.

Recipients with these local parts play a difficult relay:

    451-greylist      refuses an address the first time: 451; takes it from the second time on
    550               refuses always: 550
    hang              keeps nothing and never answers the final dot
    drop              closes the connection when the recipient is named
    accept-then-drop  keeps the message and closes the connection instead of answering
"""

from __future__ import annotations

import argparse
import asyncio
import email
import email.policy
import itertools
import json
import os
import signal
import sys
import threading
import warnings
from datetime import UTC, datetime
from pathlib import Path

with warnings.catch_warnings():
    # aiosmtpd asks asyncio for something that newer Pythons advise against; that is not for our users to read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiosmtpd.smtp import SMTP, Envelope, Session

HOST = "127.0.0.1"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
STDIN = 0


class Handler:
    """Decides what each recipient gets, and keeps the mail."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._greylisted: set[str] = set()
        self._numbers = itertools.count(1)

    async def handle_RCPT(  # noqa: N802  aiosmtpd's name
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Take the recipient or refuse it."""
        playing = _local_part(address)
        if playing == "550":
            return "550 5.1.1 no such mailbox"
        if playing == "451-greylist" and address not in self._greylisted:
            self._greylisted.add(address)
            return "451 4.7.1 greylisted, try again later"
        if playing == "drop":
            _hang_up(server)
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 recipient ok"

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  aiosmtpd's name
        """Keep the message and say so."""
        playing = {_local_part(address) for address in envelope.rcpt_tos}
        if "hang" in playing:
            _say({"event": "mail.unanswered", "to": envelope.rcpt_tos})
            await asyncio.Event().wait()
        name = self._keep(envelope)
        if "accept-then-drop" in playing:
            _hang_up(server)
        return f"250 2.0.0 kept as {name}"

    def _keep(self, envelope: Envelope) -> str:
        content = envelope.content if isinstance(envelope.content, bytes) else (envelope.content or "").encode()
        path = self._folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.getpid()}-{next(self._numbers)}.eml"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(content)
        unfinished.rename(path)
        headers = email.message_from_bytes(content, policy=email.policy.default)
        _say(
            {
                "event": "mail.kept",
                "from": envelope.mail_from,
                "to": envelope.rcpt_tos,
                "subject": str(headers.get("subject", "")),
                "message_id": str(headers.get("message-id", "")),
                "bytes": len(content),
                "path": str(path),
            }
        )
        return path.name


def _local_part(address: str) -> str:
    return address.rpartition("@")[0]


def _hang_up(server: SMTP) -> None:
    if server.transport is not None:
        server.transport.close()


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Read the standard input to its end in a thread: it may be a pipe, a file or a terminal."""

    def read() -> None:
        while os.read(STDIN, 4096):
            pass
        loop.call_soon_threadsafe(stopping.set)

    threading.Thread(target=read, daemon=True).start()


async def serve(port: int, folder: Path) -> None:
    """Take mail until told to stop. Port 0 chooses a free one."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    handler = Handler(folder)
    server = await loop.create_server(
        lambda: SMTP(handler, hostname="inbox.localhost", data_size_limit=MAX_MESSAGE_BYTES, enable_SMTPUTF8=True, loop=loop),
        HOST,
        port,
    )
    _say({"event": "inbox.ready", "port": server.sockets[0].getsockname()[1]})
    _stop_with_parent(loop, stopping)
    await stopping.wait()
    server.close()


def main() -> int:
    """Run the inbox from the command line."""
    parser = argparse.ArgumentParser(prog="python -m daemon.dev.inbox", description="Catch mail in a folder.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default, chooses a free one")
    parser.add_argument("--dir", type=Path, required=True, help="folder for the .eml files")
    arguments = parser.parse_args()
    folder: Path = arguments.dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(arguments.port, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
