"""What the kernel says about processes: the time that they and their children have used, and their memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.bench.figures import ProcessTimes, busy_ticks, peak_kilobytes, process_times, tree_ticks

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NANO = 1e-9


def cpu_s(roots: Iterable[int]) -> float:
    """Return the seconds of CPU that these processes and all below them have used, the ended ones included; to 10 ms."""
    return tree_ticks(_all(), roots) / TICKS_PER_S


def machine_cpu_s() -> float:
    """Return the seconds of CPU that everything on the machine has used together."""
    return busy_ticks(Path("/proc/stat").read_text()) / TICKS_PER_S


def others_cpu_s() -> float:
    """Return the seconds of CPU that everybody has used who isn't this process or below it."""
    return machine_cpu_s() - cpu_s([os.getpid()])


def fine_cpu_s(pid: int) -> float:
    """Return the seconds of CPU of one process's living threads, to a microsecond: for what uses very little."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
    return spent * NANO


def peak_rss_mb(pid: int) -> float:
    """Return the most memory that the process ever had resident, in MB; 0 when it is gone."""
    try:
        return peak_kilobytes(Path(f"/proc/{pid}/status").read_text()) / 1024
    except OSError:
        return 0.0


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _all() -> Iterator[ProcessTimes]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield process_times((entry / "stat").read_text())
            except OSError:
                continue  # it has ended meanwhile
