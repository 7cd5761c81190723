"""An SMTP server that does what a script says: the other side of every test that sends mail.

Inside a test:

    async with ScriptedRelay({"rcpt": {"*": ["450 4.2.0 later", "250 ok"]}}) as relay: ... relay.port, relay.messages
    relay.hold("dot"); await relay.reached("dot"); relay.release("dot")

As a process of its own: `python -m tests.support.relay --script file.json --log file.jsonl --port 0`; the port is the first
line on stdout, every event is a line of the log, `hold STAGE` and `release STAGE` on stdin do what they say.

A script says, for each command, a step: a reply, or a list of steps (one each time, the last one again and again), or {"reply":
text | null, "delay_s": 1, "then": "close" | "rst" | "hang" | "stall", "server_stores_message": true, "split": true}. `null` is no
answer; who hangs ignores what comes, who stalls doesn't even read it.
Keys: greeting, ehlo (list of extensions, or a step), starttls, auth, mail, rcpt (address or * -> step), data, dot, dot_by_rcpt,
rset, quit; during_body {"after_bytes", "then" | "reply"}; refuse; connections [script of the first, the second, ..];
mail_after_messages {"count", "step"}; parallel_mail {"count", "step"} for who comes as one too many; needs_full_name, or
ehlo_policy with the step for names that aren't full; limits [{"stage", "step", and one of "after_messages" (of this connection),
"parallel" (older connections that are open), "after_recipients" (of this transaction)}]; idle {"after_s", "step"} for who says
nothing for so long after a message.

A message that is going to be accepted is in the log before its 250 leaves. What a client may not do is an event called
`violation`. A step that gives no readable reply is an event called `silence`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import sys
from pathlib import Path
from typing import IO, Any, Self

from tests.support.relay_events import Events, Message
from tests.support.relay_session import DEFAULTS, Gone, Script, Session

LINE_LIMIT = 2**26
NARROW_BYTES = 4096
SMALL_SEGMENT = 536


class ScriptedRelay:
    """The server. `tls` is used for STARTTLS, or from the first byte with `implicit_tls`.

    `narrow` keeps the kernel from taking more than some tens of kilobytes for it: who stops reading is soon noticed.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
        narrow: bool = False,
        log: IO[str] | None = None,
    ) -> None:
        self.script: Script = DEFAULTS | (script or {})
        self.port = port
        self.tls = tls
        self.events = Events(log)
        self.messages: list[Message] = []
        self.passwords: list[str] = []
        """What came with AUTH, as it came; kept out of the events."""
        self.connections = 0
        self.open_connections = 0
        self.open_numbers: set[int] = set()
        self._narrow = narrow
        self._implicit_tls = implicit_tls
        self._counts: dict[str, int] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._over.clear()
        tls = self.tls if self._implicit_tls else None
        self._server = await asyncio.start_server(self._serve, sock=self._socket(), limit=LINE_LIMIT, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _socket(self) -> socket.socket:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._narrow:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT)
        listening.bind(("127.0.0.1", self.port))
        return listening

    async def stop(self) -> None:
        """Stop listening and drop every connection; `async with` again starts on the same port."""
        assert self._server is not None
        self._server.close()
        self._over.set()
        for gate in self._held.values():
            gate.set()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        for number in range(1, self.connections + 1):
            await self.events.wait(1, "closed", connection=number)

    @property
    def log_ins(self) -> int:
        """How many AUTH commands came."""
        return len(self.events.of("command", stage="auth"))

    @property
    def violations(self) -> list[dict[str, Any]]:
        """What clients did that they may not."""
        return self.events.of("violation")

    def copies(self, message_id: str) -> int:
        """Count the accepted messages with this Message-ID."""
        return sum(message.message_id == message_id for message in self.messages)

    def hold(self, stage: str) -> None:
        """Let nobody past this stage until `release`: the command is there, the reply waits. `stored` is after the dot's work."""
        self._held[str(stage)] = asyncio.Event()

    def release(self, stage: str) -> None:
        """Let all go on who are held at this stage, and those to come."""
        self._held.pop(str(stage), asyncio.Event()).set()

    async def reached(self, stage: str, count: int = 1) -> None:
        """Wait until a command of this stage has come so often (`body`: content has begun to come)."""
        await self.events.wait(count, "command", stage=str(stage))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        self._writers.add(writer)
        number = self.connections
        self.open_numbers.add(number)
        overrides = self.script.get("connections", [])
        own = overrides[min(number, len(overrides)) - 1] if overrides else {}
        self.events.add("connection", connection=number)
        try:
            await Session(self, number, own, reader, writer).run()
        except (Gone, ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
            pass
        finally:
            self.open_connections -= 1
            self.open_numbers.discard(number)
            self._writers.discard(writer)
            self.events.add("closed", connection=number)
            writer.close()

    def step(self, key: str, step: Any, counts: dict[str, int]) -> Any:  # noqa: ANN401 - a script's value
        """Choose from a list of steps by how often the key was asked for."""
        if not isinstance(step, list):
            return step
        turn = counts.get(key, 0)
        counts[key] = turn + 1
        return step[min(turn, len(step) - 1)]

    async def gate(self, stage: str) -> None:
        """Wait while the stage is held."""
        if stage in self._held:
            await self._held[stage].wait()
        if self._over.is_set():
            raise Gone

    async def hang(self) -> None:
        """Say nothing until the relay stops."""
        await self._over.wait()
        raise Gone

    @property
    def counts(self) -> dict[str, int]:
        """How often each list of the script was asked, over all connections."""
        return self._counts


async def _obey(relay: ScriptedRelay) -> None:
    """Do what stdin says until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        verb, stage = line.decode().split()
        {"hold": relay.hold, "release": relay.release}[verb](stage)


async def _main(options: argparse.Namespace, script: Script, log: IO[str]) -> None:
    tls = None
    if options.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate, options.key)
    async with ScriptedRelay(script, port=options.port, tls=tls, implicit_tls=options.implicit_tls, log=log) as relay:
        for stage in options.hold:
            relay.hold(stage)
        print(relay.port, flush=True)  # noqa: T201 - the port is what this program prints
        await _obey(relay)


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description="An SMTP server that does what a script says.")
    parser.add_argument("--script", help="JSON file; without it everything is accepted")
    parser.add_argument("--log", default="/dev/null", help="file that gets one JSON line for each event")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--hold", action="append", default=[], metavar="STAGE")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--implicit-tls", action="store_true")
    options = parser.parse_args()
    script = json.loads(Path(options.script).read_text()) if options.script else {}
    with Path(options.log).open("a") as log:
        asyncio.run(_main(options, script, log))


if __name__ == "__main__":
    main()
