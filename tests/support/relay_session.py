"""One connection to a scripted relay: reads commands, plays the steps that the script has for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.relay_events import Message, message_id_of

if TYPE_CHECKING:
    from tests.support.relay import ScriptedRelay

Script = dict[str, Any]

DEFAULTS: Script = {
    "greeting": "220 relay.test ESMTP",
    "ehlo": ["SIZE 10485760", "8BITMIME", "ENHANCEDSTATUSCODES"],
    "starttls": "220 2.0.0 go",
    "auth": "235 2.7.0 welcome",
    "mail": "250 2.1.0 ok",
    "rcpt": {"*": "250 2.1.5 ok"},
    "data": "354 go ahead",
    "dot": "250 2.0.0 ok: queued",
    "rset": "250 2.0.0 ok",
    "quit": "221 2.0.0 bye",
}
STAGES = {"STARTTLS": "tls"}


class Gone(Exception):  # noqa: N818 - the connection is over, as scripted or by the client
    """Ends the handling of one connection."""


@dataclass
class Transaction:
    """What MAIL and RCPT have said so far."""

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    named: list[str] = field(default_factory=list)


class Session:
    """One connection."""

    def __init__(
        self, relay: ScriptedRelay, number: int, own: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._relay = relay
        self._number = number
        self._own = own
        self._reader = reader
        self._writer = writer
        self._counts: dict[str, int] = {}
        self._transaction = Transaction()
        self._accepted = 0
        self._stage = "connect"

    async def run(self) -> None:
        """Serve until the client leaves or the script ends it."""
        if self._own.get("refuse", self._relay.script.get("refuse")):
            self._drop(reset=True)
        await self._relay.gate("greeting")
        self._note("greeting")
        await self._play(self._chosen("greeting"))
        while True:
            line = await self._line()
            await self._command(line.decode("utf-8", "replace").rstrip("\r\n"))

    async def _line(self) -> bytes:
        """Read the next command; who has sent a message and is idle for too long after it gets what the script has for that."""
        idle = self._own.get("idle", self._relay.script.get("idle"))
        if idle and self._accepted:
            try:
                async with asyncio.timeout(idle["after_s"]):
                    return await self._reader.readuntil(b"\n")
            except TimeoutError:
                await self._play(idle["step"])
        return await self._reader.readuntil(b"\n")

    async def _command(self, line: str) -> None:
        verb = line.split(" ", maxsplit=1)[0].upper()
        stage = STAGES.get(verb, "ehlo" if verb == "HELO" else verb.lower())
        self._note(stage, line=line if verb != "AUTH" else "AUTH", words=line.split(" ")[:2] if verb == "AUTH" else [])
        await self._relay.gate(stage)
        handle = getattr(self, f"_on_{verb.lower()}", None)
        if handle is None:
            await self._say("502 5.5.1 no such command")
        else:
            await handle(line)

    async def _on_ehlo(self, line: str) -> None:
        policy = self._relay.script.get("ehlo_policy", "504 5.5.2 need a full name")
        if (self._relay.script.get("needs_full_name") or "ehlo_policy" in self._relay.script) and not {".", "["} & set(line):
            await self._play(policy)
            return
        key = "ehlo_after_tls" if "ehlo_after_tls" in self._relay.script and self._encrypted else "ehlo"
        step = self._own.get(key, self._relay.script[key])
        if isinstance(step, list) and not any(isinstance(item, dict) or item[:3].isdigit() for item in step):
            lines = ["relay.test", *step]
            await self._say("\r\n".join(f"250{' ' if i == len(lines) - 1 else '-'}{text}" for i, text in enumerate(lines)))
        else:
            await self._play(self._chosen(key))

    @property
    def _encrypted(self) -> bool:
        return self._writer.get_extra_info("sslcontext") is not None

    async def _on_helo(self, _line: str) -> None:
        await self._play(self._chosen("helo", "250 relay.test"))

    async def _on_starttls(self, _line: str) -> None:
        step = self._chosen("starttls")
        await self._play(step)
        text = _in_full(step).get("reply") or ""
        if text.startswith("220"):
            assert self._relay.tls is not None
            transport = self._writer.transport
            try:
                await self._writer.start_tls(self._relay.tls)
            except AttributeError as error:
                # Python 3.11 loses the transport when the client leaves right after the handshake, and stumbles over that later.
                vars(self._writer)["_transport"] = transport
                raise Gone from error

    async def _on_auth(self, line: str) -> None:
        words = line.split(" ")
        self._relay.passwords.append(words[-1])
        if words[1].upper() == "LOGIN":
            await self._say("334 VXNlcm5hbWU6" if len(words) == 2 else "334 UGFzc3dvcmQ6")
            await self._reader.readuntil(b"\n")
        await self._play(self._chosen("auth"))

    async def _on_mail(self, line: str) -> None:
        if self._transaction.sender is not None:
            self._violation("MAIL inside a transaction")
        step = self._chosen("mail")
        for key, count in (("mail_after_messages", self._accepted), ("parallel_mail", self._relay.open_connections - 1)):
            limit = self._relay.script.get(key)
            if limit and count >= limit["count"]:
                step = limit["step"]
        if await self._play(step):
            self._transaction = Transaction(_address(line))

    async def _on_rcpt(self, line: str) -> None:
        address = _address(line)
        self._transaction.named.append(address)
        if self._transaction.sender is None:
            await self._say("503 5.5.1 MAIL first")
            return
        steps: dict[str, Any] = self._own.get("rcpt") or self._relay.script["rcpt"]
        key = address if address in steps else "*"
        counts = self._counts if "rcpt" in self._own else self._relay.counts
        step = self._limited("rcpt") or self._relay.step(f"rcpt {address}", steps.get(key, "250 2.1.5 ok"), counts)
        if await self._play(step):
            self._transaction.recipients.append(address)

    async def _on_data(self, _line: str) -> None:
        if not self._transaction.recipients and self._relay.script["data"] == DEFAULTS["data"] and "data" not in self._own:
            await self._say("503 5.5.1 nobody to send to")
            return
        if await self._play(self._chosen("data"), positive="3"):
            await self._body()

    async def _on_rset(self, _line: str) -> None:
        self._transaction = Transaction()
        await self._play(self._chosen("rset"))

    async def _on_quit(self, _line: str) -> None:
        await self._play(self._chosen("quit"))
        raise Gone

    async def _on_noop(self, _line: str) -> None:
        self._violation("NOOP")
        await self._say("250 2.0.0 ok")

    async def _body(self) -> None:
        lines: list[bytes] = []
        size = 0
        event = self._chosen("during_body")
        while True:
            if event and size >= event["after_bytes"]:
                self._stage = "body"
                await self._play({"reply": None} | event)
                event = None
            line = await self._reader.readuntil(b"\n")
            if not size:
                self._note("body")
                await self._relay.gate("body")
            if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
                self._violation("CR or LF alone")
            if line == b".\r\n":
                break
            size += len(line)
            lines.append(line[1:] if line.startswith(b".") else line)
        await self._dot(b"".join(lines))

    async def _dot(self, content: bytes) -> None:
        transaction, self._transaction = self._transaction, Transaction()
        self._note("dot")
        if not transaction.recipients:
            self._violation("a message for nobody")
        await self._relay.gate("dot")
        by_recipient = self._relay.script.get("dot_by_rcpt", {})
        special = next((address for address in transaction.recipients if address in by_recipient), None)
        if special is None:
            step = self._chosen("dot")
        else:
            step = self._relay.step(f"dot {special}", by_recipient[special], self._relay.counts)
        reply = step if isinstance(step, str) else (step or {}).get("reply") or ""
        stores = (
            reply.startswith("2") if isinstance(step, str | None) else step.get("server_stores_message", reply.startswith("2"))
        )
        if stores:
            self._accepted += 1
            self._store(transaction, content)
            await self._relay.gate("stored")
        await self._play(step)

    def _store(self, transaction: Transaction, content: bytes) -> None:
        message = Message(message_id_of(content), transaction.sender or "", tuple(transaction.recipients), content, self._number)
        self._relay.messages.append(message)
        self._relay.events.add(
            "stored",
            connection=self._number,
            message_id=message.message_id,
            sender=message.sender,
            recipients=message.recipients,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def _limited(self, stage: str) -> Any:  # noqa: ANN401 - a script's value
        """Return the step of the first limit of this stage that is reached, None if none is."""
        for limit in self._relay.script.get("limits", ()):
            older = sum(number < self._number for number in self._relay.open_numbers)
            used = {"after_messages": self._accepted, "parallel": older, "after_recipients": len(self._transaction.recipients)}
            if limit["stage"] == stage and any(used[key] >= limit[key] for key in used.keys() & limit.keys()):
                return limit["step"]
        return None

    def _chosen(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - a script's value
        if (limited := self._limited(key)) is not None:
            return limited
        if key in self._own:
            return self._relay.step(key, self._own[key], self._counts)
        return self._relay.step(key, self._relay.script.get(key, default), self._relay.counts)

    async def _play(self, step: Any, positive: str = "2") -> bool:  # noqa: ANN401 - a script's value
        """Do what a step says; True if its reply was positive."""
        step = _in_full(step)
        if step.get("delay_s"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step["delay_s"]):
                    await self._relay.hang()
        reply = step.get("reply")
        if reply is None or not reply[:3].isdigit():
            self._relay.events.add("silence", connection=self._number, stage=self._stage)
        if reply is not None:
            await self._say(reply, split=step.get("split", False))
        match step.get("then"):
            case "close" | "rst" as end:
                self._drop(reset=end == "rst")
            case "hang":
                while await self._reader.read(2**16):
                    pass
                raise Gone
            case "stall":
                self._writer.transport.pause_reading()  # type: ignore[attr-defined]
                await self._relay.hang()
            case _:
                pass
        return reply is not None and reply.startswith(positive)

    async def _say(self, reply: str, *, split: bool = False) -> None:
        data = reply.encode("utf-8", "surrogateescape") + b"\r\n"
        for piece in [data[i : i + 1] for i in range(len(data))] if split else [data]:
            self._writer.write(piece)
            await self._writer.drain()
            if split:
                await asyncio.sleep(0)

    def _drop(self, *, reset: bool) -> None:
        if reset:
            connection = self._writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        raise Gone

    def _note(self, stage: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        self._stage = stage
        self._relay.events.add("command", connection=self._number, stage=stage, **fields)

    def _violation(self, what: str) -> None:
        self._relay.events.add("violation", connection=self._number, what=what)


def _in_full(step: Any) -> dict[str, Any]:  # noqa: ANN401 - a script's value
    return step if isinstance(step, dict) else {"reply": step}


def _address(line: str) -> str:
    return line[line.index("<") + 1 : line.rindex(">")]
