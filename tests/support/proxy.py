"""A link that a test can hold, cut, slow down and take away: between the daemon and its database, or its relay.

    async with Proxy.to_database(database.dsn) as link: ... link.dsn
    link.hold(); link.release()          both directions, or one: nothing arrives, nothing fails (a black hole)
    link.cut()                           every connection ends now; new ones are welcome
    await link.go_away(); await link.come_back()
    trap = link.trap("mark"); await trap.sprung(); trap.release()

A trap waits for one statement of `daemon/sql` on a link to a database: before it reaches the server (UP), or when the server has
executed it and its answer is about to arrive (DOWN). What was caught is let go by `release`, or lost by `cut`. A request that is
held arrives at its release also if whoever sent it has left: so a statement can be made as late as a test wants.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

from daemon import resources

CHUNK_BYTES = 65_536
WAIT_S = 20.0
READY_FOR_QUERY = b"Z\x00\x00\x00\x05"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Direction(StrEnum):
    """Which way bytes go: UP from the daemon, DOWN to it."""

    UP = "up"
    DOWN = "down"


UP, DOWN = Direction.UP, Direction.DOWN


class Frames:
    """What a client of PostgreSQL says, message by message, and which statement each execution means."""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._texts: dict[bytes, str] = {}

    def feed(self, data: bytes) -> list[tuple[bytes, str | None]]:
        """Return the whole messages that have arrived by now, each with the text of the statement that it begins to execute."""
        self._rest += data
        found = []
        while (message := self._next()) is not None:
            found.append((message, self._meaning(message) if self._started else None))
            self._started = True
        return found

    def _next(self) -> bytes | None:
        head = 1 if self._started else 0
        if len(self._rest) < head + 4:
            return None
        length = head + int.from_bytes(self._rest[head : head + 4], "big")
        if len(self._rest) < length:
            return None
        message, self._rest = self._rest[:length], self._rest[length:]
        return message

    def _meaning(self, message: bytes) -> str | None:
        kind, content = message[:1], message[5:]
        if kind == b"P":
            name, text, _ = content.split(b"\0", 2)
            self._texts[name] = text.decode()
        elif kind == b"B":
            _, name, _ = content.split(b"\0", 2)
            return self._texts.get(name)
        elif kind == b"Q":
            return content.rstrip(b"\0").decode()
        return None


class Trap:
    """Waits for the next execution of one statement, and holds it or its answer."""

    def __init__(self, statement: str, direction: Direction) -> None:
        self.text = resources.text(f"sql/{statement}.sql")
        self.direction = direction
        self.set = True
        self._name = statement
        self._sprung = asyncio.Event()
        self._gate = asyncio.Event()
        self._lost = False
        self._link: Link | None = None

    async def sprung(self) -> None:
        """Wait until it holds something."""
        try:
            async with asyncio.timeout(WAIT_S):
                await self._sprung.wait()
        except TimeoutError:
            raise AssertionError(f"no {self._name} came by for {WAIT_S:g} s") from None

    def release(self) -> None:
        """Let what is held, and what comes after it, arrive."""
        self._gate.set()

    def cut(self) -> None:
        """Lose what is held, and the connection with it."""
        self._lost = True
        self._gate.set()
        assert self._link is not None, f"{self._name} wasn't caught"
        self._link.cut()

    async def over(self) -> None:
        """Wait until the connection on which it caught something has ended on both sides: the server has done all it will."""
        assert self._link is not None, f"{self._name} wasn't caught"
        async with asyncio.timeout(WAIT_S):
            await self._link.ended.wait()

    def catch(self, link: Link) -> None:
        """Be the trap of this link from now on."""
        self.set = False
        self._link = link

    async def keep(self) -> bool:
        """Hold what was caught; returns whether it may arrive."""
        self._sprung.set()
        await self._gate.wait()
        return not self._lost


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._client = client
        self._server = server
        self._frames = Frames() if proxy.understands else None
        self._waiting_for_answer: Trap | None = None

    async def run(self) -> None:
        """Pass bytes on until either side ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pump(UP, self._client[0], self._server[1]))
            tasks.create_task(self._pump(DOWN, self._server[0], self._client[1]))

    def cut(self) -> None:
        """End both sides at once; what is on its way is lost."""
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                for piece in await self._through_traps(direction, data):
                    await self._proxy.gate(direction)
                    writer.write(piece)
                    with contextlib.suppress(ConnectionError):  # what follows may still be wanted by nobody but the test
                        await writer.drain()
        await self._proxy.gate(direction)
        writer.close()

    async def _through_traps(self, direction: Direction, data: bytes) -> list[bytes]:
        if self._frames is None:
            return [data]
        if direction is DOWN:
            trap = self._waiting_for_answer
            if trap is not None and READY_FOR_QUERY in data:
                self._waiting_for_answer = None
                return [data] if await trap.keep() else []
            return [data]
        passed = []
        for message, text in self._frames.feed(data):
            trap = self._proxy.trap_for(text)
            if trap is not None:
                trap.catch(self)
                if trap.direction is DOWN:
                    self._waiting_for_answer = trap
                elif not await trap.keep():
                    break
            passed.append(message)
        return passed


class Proxy:
    """Listens on a port of its own and passes everything on to one server; `dsn` is the way through it to a database."""

    def __init__(self, dial: Callable[[], Awaitable[Streams]], *, understands: bool = False) -> None:
        self.understands = understands
        self.port = 0
        self.connections = 0
        self._dial = dial
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._traps: list[Trap] = []
        self._dsn = ""
        self.release()

    @classmethod
    def to_database(cls, dsn: str) -> Self:
        """Make a proxy in front of a database, which understands its statements."""
        parts = urlsplit(dsn)
        folder = parse_qs(parts.query).get("host", [""])[0]
        port = int(parse_qs(parts.query).get("port", [str(parts.port or 5432)])[0])

        async def dial() -> Streams:
            if folder:
                return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
            return await asyncio.open_connection(parts.hostname, port)

        proxy = cls(dial, understands=True)
        proxy._dsn = dsn
        return proxy

    @classmethod
    def to_port(cls, port: int) -> Self:
        """Make a proxy in front of a local port."""
        return cls(lambda: asyncio.open_connection("127.0.0.1", port))

    @property
    def dsn(self) -> str:
        """Return the database's address through this proxy."""
        parts = urlsplit(self._dsn)
        user = parts.netloc.rpartition("@")[0] or "postgres"
        return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{self.port}", query="sslmode=disable"))

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        for trap in self._traps:
            trap.release()
        await self.go_away()

    def hold(self, *directions: Direction) -> None:
        """Let nothing arrive any more, in these directions or in both; the connections stay."""
        for direction in directions or Direction:
            self._open[direction].clear()

    def release(self) -> None:
        """Let everything arrive that was held."""
        for gate in self._open.values():
            gate.set()

    def cut(self) -> None:
        """End every connection; what is on its way is lost."""
        for link in list(self._links):
            link.cut()
        for writer in list(self._clients):
            writer.transport.abort()

    async def go_away(self) -> None:
        """End every connection and refuse new ones."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def come_back(self) -> None:
        """Take connections, on the port that it has had from its first time on."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def trap(self, statement: str, direction: Direction = UP) -> Trap:
        """Catch the next execution of `daemon/sql/STATEMENT.sql`: before it (UP), or its answer (DOWN)."""
        trap = Trap(statement, direction)
        self._traps.append(trap)
        return trap

    def trap_for(self, text: str | None) -> Trap | None:
        """Return the trap that waits for this statement."""
        return next((trap for trap in self._traps if trap.set and trap.text == text), None)

    async def gate(self, direction: Direction) -> None:
        """Wait while this direction is held."""
        await self._open[direction].wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._clients.add(writer)
        try:
            await self.gate(UP)
            await self._pass_on((reader, writer))
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, client: Streams) -> None:
        try:
            server = await self._dial()
        except OSError:
            return
        link = Link(self, client, server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.cut()
            link.ended.set()
