"""What a service manager hears, on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Return the socket that a service manager listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


MESSAGES: list[tuple[Callable[[Notifier], None], str]] = [
    (lambda notifier: notifier.ready("3 slots"), "READY=1\nSTATUS=3 slots"),
    (lambda notifier: notifier.ready(), "READY=1"),
    (lambda notifier: notifier.status("2/10 on their way"), "STATUS=2/10 on their way"),
    (lambda notifier: notifier.status("one\nREADY=1\r\n two"), "STATUS=one READY=1 two"),
    (lambda notifier: notifier.stopping("draining"), "STOPPING=1\nSTATUS=draining"),
    (lambda notifier: notifier.extend_timeout(90), "EXTEND_TIMEOUT_USEC=90000000"),
    (lambda notifier: notifier.extend_timeout(-1), "EXTEND_TIMEOUT_USEC=0"),
    (lambda notifier: notifier.watchdog(), "WATCHDOG=1"),
]


@pytest.mark.parametrize(("say", "heard"), MESSAGES, ids=[heard for _, heard in MESSAGES])
def test_the_manager_hears_what_is_said(manager: socket.socket, say: Callable[[Notifier], None], heard: str) -> None:
    """One datagram each; a line break in a text sets no variable."""
    say(Notifier({"NOTIFY_SOCKET": manager.getsockname()}))
    assert manager.recv(1000).decode() == heard


def test_an_abstract_socket_is_spoken_to() -> None:
    """Its name begins with @ in the variable and with a NUL in the kernel."""
    name = f"mailslot-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(10)
        Notifier({"NOTIFY_SOCKET": "@" + name}).watchdog()
        assert listening.recv(1000) == b"WATCHDOG=1"


@pytest.mark.parametrize("path", ["", "/no/such/socket", "relative", "@mailslot-nobody", "/" + "x" * 200, "/nul\0"])
def test_nobody_who_listens_is_no_error(path: str) -> None:
    """Without systemd, with a manager that is gone, with a path that no socket can have."""
    notifier = Notifier({"NOTIFY_SOCKET": path} if path else {})
    for say, _ in MESSAGES:
        say(notifier)


def test_a_manager_that_doesnt_read_delays_nobody(manager: socket.socket) -> None:
    """Its queue is full after some datagrams; the rest is dropped."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(5_000):
        notifier.watchdog()
    assert manager.recv(1000) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_bites(environ: dict[str, str], interval_s: float | None) -> None:
    """And only by the process that it watches."""
    assert Notifier(environ).watchdog_interval_s == interval_s
