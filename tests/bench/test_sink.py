"""The sink counts what it is sent, however the bytes are cut."""

from __future__ import annotations

import asyncio

import pytest

from tests.bench.sink import EHLO, GREETING, TAKEN, Counted, Session

DIALOGUE = (
    b"EHLO x\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n"
    b"Subject: x\r\n\r\nMAIL FROM:<no@example.org>\r\n..\r\nno end: .\r\n.\r\n"
    b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n.\r\nQUIT\r\n"
)


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        self.data += bytes(data)

    def close(self) -> None:
        """Remember that."""
        self.closed = True


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_mails_are_counted_however_they_are_cut(size: int) -> None:
    """Two mails, one of them empty; a dot inside a line, a stuffed one and a command in the text end nothing."""
    counted, transport = Counted(0, stamps=True), Written()
    session = Session(counted)
    session.connection_made(transport)
    for at in range(0, len(DIALOGUE), size):
        session.data_received(DIALOGUE[at : at + size])
    assert counted.mails == len(counted.mail_at) == len(counted.dot_at) == 2
    assert transport.closed
    assert transport.data.startswith(GREETING + EHLO)
    assert transport.data.count(TAKEN) == 2
    assert transport.data.count(b"354") == 2


async def test_a_slow_relay_reads_on_when_it_has_answered() -> None:
    """What follows the dot is answered after it, in order."""
    counted, transport = Counted(0.001, stamps=False), Written()
    session = Session(counted)
    session.connection_made(transport)
    session.data_received(b"DATA\r\nx\r\n.\r\nNOOP\r\n")
    assert not transport.data.endswith(TAKEN)
    while not transport.data.endswith(TAKEN + b"250 2.0.0 Ok\r\n"):  # noqa: ASYNC110  a timer of the loop, and nothing to wait for
        await asyncio.sleep(0)
    assert counted.mails == 1
