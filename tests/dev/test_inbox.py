"""The inbox, spoken to over real SMTP."""

from __future__ import annotations

import json
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import ROOT


class Inbox:
    """One inbox process and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "daemon.dev.inbox", "--dir", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.port: int = self.line()["port"]

    def line(self) -> dict[str, Any]:
        """Wait for its next line."""
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def send(self, *recipients: str) -> dict[str, tuple[int, bytes]]:
        """Send one message over a connection of its own, and return the refused recipients."""
        message = EmailMessage()
        message["From"] = "sender@example.org"
        message["To"] = "Maya <maya@example.org>"
        message["Subject"] = "Einladung für Maya"
        message.set_content(".a line that begins with a dot\n")
        with smtplib.SMTP("127.0.0.1", self.port, timeout=2) as client:
            return client.send_message(message, to_addrs=recipients)

    def kept(self) -> list[Path]:
        """Return what lies in the folder."""
        return list(self.folder.iterdir())

    def close(self) -> None:
        """End it by the end of its standard input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    """Run an inbox."""
    inbox = Inbox(tmp_path / "in box")
    yield inbox
    inbox.close()


def test_mail_is_kept_whole_and_told(inbox: Inbox) -> None:
    """A message that was answered 250 lies in the folder, unchanged, and one line says from whom, to whom, and where."""
    assert inbox.send("maya@example.org", "noor@example.org") == {}
    [path] = inbox.kept()
    assert path.suffix == ".eml"
    assert b"\r\n.a line that begins with a dot\r\n" in path.read_bytes()
    said = inbox.line()
    assert said["path"] == str(path)
    assert said["from"] == "sender@example.org"
    assert said["to"] == ["maya@example.org", "noor@example.org"]
    assert said["subject"] == "Einladung für Maya"


def test_greylisted_recipient_is_taken_the_second_time(inbox: Inbox) -> None:
    """`451-greylist` is refused once with 451 and then accepted."""
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        inbox.send("451-greylist@example.org")
    assert refused.value.recipients["451-greylist@example.org"][0] == 451
    assert inbox.kept() == []
    assert inbox.send("451-greylist@example.org") == {}
    assert len(inbox.kept()) == 1


def test_550_is_refused_and_its_neighbour_is_served(inbox: Inbox) -> None:
    """`550` is always refused; another recipient of the same message still gets it."""
    refused = inbox.send("550@example.org", "maya@example.org")
    assert refused["550@example.org"][0] == 550
    assert inbox.line()["to"] == ["maya@example.org"]


def test_drop_closes_before_anything_is_kept(inbox: Inbox) -> None:
    """`drop` loses the connection at its name."""
    with pytest.raises(smtplib.SMTPServerDisconnected):
        inbox.send("drop@example.org")
    assert inbox.kept() == []


def test_accept_then_drop_keeps_the_mail_and_gives_no_answer(inbox: Inbox) -> None:
    """`accept-then-drop` is the relay that took the mail and died: the sender can't know."""
    with pytest.raises(smtplib.SMTPServerDisconnected):
        inbox.send("accept-then-drop@example.org")
    assert len(inbox.kept()) == 1


def test_hang_gives_no_answer_and_keeps_nothing(inbox: Inbox) -> None:
    """`hang` leaves the dot unanswered, and the inbox goes on with others."""
    with pytest.raises((TimeoutError, smtplib.SMTPServerDisconnected)):
        inbox.send("hang@example.org")
    assert inbox.kept() == []
    assert inbox.send("maya@example.org") == {}


def test_inbox_ends_when_its_input_ends(inbox: Inbox) -> None:
    """The end of standard input, which a parent's death brings about, ends the inbox."""
    assert inbox.process.stdin is not None
    inbox.process.stdin.close()
    assert inbox.process.wait(10) == 0


def test_inbox_ends_at_sigterm(inbox: Inbox) -> None:
    """SIGTERM ends the inbox without an error."""
    inbox.process.send_signal(signal.SIGTERM)
    assert inbox.process.wait(10) == 0
