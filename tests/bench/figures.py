"""The arithmetic of measuring, without I/O: percentiles, medians, and what the kernel's and the server's lines say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

Thing = TypeVar("Thing")

CONSTANT = re.compile(r"'(?:[^']|'')*'|\$\d+|(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])|\b(?:true|false|null)\b", re.IGNORECASE)
FIELD = re.compile(r"\bextract\(\w+ ", re.IGNORECASE)
"""The field of an extract counts as a constant too."""
LIST = re.compile(r"\(\?(?:, \?)*(?: /\*, \.\.\. \*/)?\)")
"""From PostgreSQL 18 on a list of constants stands there as one."""
BIND_OR_EXECUTE = re.compile(
    r"^\[(?P<pid>\d+)\] LOG:  duration: (?P<ms>[\d.]+) ms  (?P<step>parse|bind|execute) [^:]*: ?(?P<text>.*)$"
)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that a share (0 to 1) of all values doesn't exceed: the nearest rank, so always one that was measured.

    Raises ValueError when there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]


def median_of(things: Sequence[Thing], key: Callable[[Thing], float]) -> Thing:
    """Return the thing in the middle; of an even number the lower of the two, so that it is one that happened."""
    return sorted(things, key=key)[(len(things) - 1) // 2]


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """One line of /proc/PID/stat, as far as it speaks of time: ticks of the process, and of its children that have ended."""

    pid: int
    parent: int
    own: int
    ended_children: int


def process_times(line: str) -> ProcessTimes:
    """Read a line of /proc/PID/stat (proc(5)); the name in parentheses may hold spaces and parentheses itself."""
    pid, _, rest = line.partition(" (")
    fields = rest.rpartition(") ")[2].split()  # fields[0] is the third, the state
    own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return ProcessTimes(int(pid), int(fields[1]), own, ended)


def tree_ticks(processes: Iterable[ProcessTimes], roots: Iterable[int]) -> int:
    """Return the ticks that these processes and all below them have used, those included that have ended and were waited for."""
    known = {process.pid: process for process in processes}
    children: dict[int, list[int]] = {}
    for process in known.values():
        children.setdefault(process.parent, []).append(process.pid)
    counted: set[int] = set()
    waiting = [root for root in roots if root in known]
    while waiting:
        pid = waiting.pop()
        if pid not in counted:
            counted.add(pid)
            waiting += children.get(pid, [])
    return sum(known[pid].own + known[pid].ended_children for pid in counted)


def busy_ticks(stat: str) -> int:
    """Return the ticks in which the machine's cores weren't idle, from /proc/stat; what a hypervisor took away is among them."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in stat.split("\n", 1)[0].split()[1:9])
    return user + nice + system + irq + softirq + steal


def peak_kilobytes(status: str) -> int:
    """Return the most memory that a process ever had resident, from /proc/PID/status; 0 when it says nothing."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def durations_ms(log: Iterable[str], begins: str) -> list[float]:
    """Return how long each execution of one statement took, by a log with `log_min_duration_statement = 0` and prefix `[%p] `.

    A statement takes two steps, bind (which plans, if there is no plan yet) and execute, each with a line of its own; the
    statement is known by the beginning of its text.
    """
    found: list[float] = []
    binding: dict[str, float] = {}
    for line in log:
        step = BIND_OR_EXECUTE.match(line)
        if step is None or not step["text"].startswith(begins):
            continue
        if step["step"] == "bind":
            binding[step["pid"]] = float(step["ms"])
        elif step["step"] == "execute":
            found.append(binding.pop(step["pid"], 0.0) + float(step["ms"]))
    return found


def signature(query: str) -> str:
    """Return the same for a statement and for what pg_stat_statements keeps of it: without constants and the comment ahead."""
    lines = query.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("--")), 0)
    text = CONSTANT.sub("?", "\n".join(lines[first:]))
    return LIST.sub("(?)", FIELD.sub("extract(? ", " ".join(text.split()))).rstrip("; ")


def share(part: float, whole: float) -> float:
    """Return part / whole, 0 when there is no whole."""
    return part / whole if whole else 0.0
