"""What does systemd know about this process?

Ready, stopping, alive, and one line of text for `systemctl status`. Without systemd (`NOTIFY_SOCKET` unset) all of it does
nothing. Nothing here raises or waits: a message that can't be sent is one that nobody reads.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Speaks to the service manager that the environment names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path if path.startswith("/") else ""
        self.watchdog_interval_s = _watchdog_interval_s(environ)
        """Seconds between two `watchdog()` calls, half of what the manager allows; None when it doesn't watch us."""

    def ready(self, status: str = "") -> None:
        """Say that start-up is over; units that are ordered after this one start now."""
        self._send("READY=1", *_status(status))

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""
        self._send(*_status(text))

    def stopping(self, status: str = "") -> None:
        """Say that the drain has begun."""
        self._send("STOPPING=1", *_status(status))

    def extend_timeout(self, seconds: float) -> None:
        """Ask that the present start or stop may take `seconds` from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(0, int(seconds * 1e6))}")

    def watchdog(self) -> None:
        """Say that this process is alive; only call it when its loops have come round."""
        self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError, ValueError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link,
        ):
            link.settimeout(0)
            link.sendto("\n".join(assignments).encode("utf-8", "replace"), self._address)


def _status(text: str) -> tuple[str, ...]:
    # A line break would let the text set variables of its own.
    return ("STATUS=" + " ".join(text.split()),) if text else ()


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    limit = environ.get("WATCHDOG_USEC", "")
    # The variables are inherited: a child of the watched process isn't watched.
    if not limit.isdecimal() or int(limit) == 0 or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(limit) / 2e6
