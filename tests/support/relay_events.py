"""What a scripted relay saw and took on, and the way to wait for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True)
class Message:
    """What the relay took on."""

    message_id: str
    sender: str
    recipients: tuple[str, ...]
    content: bytes
    connection: int


class Events:
    """What happened, in order; whoever waits for something is woken by each."""

    def __init__(self, log: IO[str] | None) -> None:
        self.all: list[dict[str, Any]] = []
        self._log = log
        self._news = asyncio.Event()

    def add(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Note an event; it is in the file when this returns."""
        entry = {"event": event, **fields}
        self.all.append(entry)
        if self._log is not None:
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()
        self._news.set()

    def of(self, event: str, **fields: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
        """Return the events of one name with these fields."""
        return [e for e in self.all if e["event"] == event and all(e.get(key) == value for key, value in fields.items())]

    async def wait(self, count: int, event: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Wait until there are so many of them."""
        while len(self.of(event, **fields)) < count:
            self._news.clear()
            await self._news.wait()


def message_id_of(content: bytes) -> str:
    """Return the Message-ID of a message as it came, empty if it has none."""
    head = content.split(b"\r\n\r\n", 1)[0].replace(b"\r\n ", b" ")
    found = [line.split(b":", 1)[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"message-id:")]
    return found[0].decode("ascii", "replace") if found else ""
