"""Where do finished log lines go, when the reader is slow, stuck or gone?

A line is handed to a thread of its own, which writes to the descriptor and may block there as long as the reader likes: a full
pipe, a stopped terminal, a journal that restarts. The event loop never waits for it, or a stuck reader would cost every lease.
The queue between the two is bounded. A line that finds it full, or whose write fails, is lost and counted; once writing works
again, one line says how many. Nothing here raises: this is the one place where errors end in a number.

Handing over costs less than waking: a thread that wakes for each line takes the interpreter from the event loop and gives it
back. So a line that comes after a silence wakes the thread, and after each write it stays asleep for PAUSE_S, whatever comes.

Used by `logs` alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from time import sleep
from typing import Protocol, TextIO

QUEUE_LINES = 16_000
"""Seconds of mails at full speed: a disk that others flush to may stand still for a second. 4 MB as a rule, and 128 MB if each
line were as long as `logs` lets it be."""
BATCH_LINES = 200
PAUSE_S = 0.005
"""How long a line may wait for others to be written with it. Measured in a busy loop: a line costs 1 us of CPU here, and 4 more
when the thread wakes for each or each second one."""


class Outlet(Protocol):
    """Takes finished lines."""

    lost_lines: int
    """How many lines couldn't be written so far."""

    def write(self, line: bytes) -> None:
        """Take one line without its newline; never waits and never raises."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was taken is written; return whether that was so within the time."""

    def close(self) -> None:
        """Take no more; what was taken is still written."""


def outlet_for(stream: TextIO, explain_loss: Callable[[int], bytes]) -> Outlet:
    """Return the outlet that fits a stream: a thread for a real descriptor, plain writing for a stream in memory.

    `explain_loss` makes the line that says how many lines were lost.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return _InMemory(stream)
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    return _Threaded(descriptor, explain_loss)


class _InMemory:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost_lines = 0

    def write(self, line: bytes) -> None:
        try:
            self._stream.write(line.decode() + "\n")
        except (OSError, ValueError):
            self.lost_lines += 1

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  # nothing here takes time
        return True

    def close(self) -> None:
        pass


class _Threaded:
    def __init__(self, descriptor: int, explain_loss: Callable[[int], bytes]) -> None:
        self._descriptor = descriptor
        self._explain_loss = explain_loss
        # Its `put` is one step of C without a lock of Python's, so a finaliser may log in the middle of it. Two threads that
        # write at the same moment may each take the last place.
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._explained = 0
        self.lost_lines = 0
        threading.Thread(target=self._run, name="log-outlet", daemon=True).start()

    def write(self, line: bytes) -> None:
        if self._queue.qsize() < QUEUE_LINES:
            self._queue.put(line)
        else:
            self._lose(1)

    def flush(self, timeout_s: float) -> bool:
        written = threading.Event()
        self._queue.put(written)
        return written.wait(timeout_s)

    def close(self) -> None:
        self._queue.put(None)

    def _lose(self, lines: int) -> None:
        with self._lock:
            self.lost_lines += lines

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH_LINES:
                    batch.append(self._queue.get_nowait())
            self._write_lines([line for line in batch if isinstance(line, bytes)])
            for waiting in batch:
                if isinstance(waiting, threading.Event):
                    waiting.set()
            if None in batch:
                return
            if len(batch) < BATCH_LINES:
                sleep(PAUSE_S)

    def _write_lines(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if not self._write_bytes(b"\n".join([*lines, b""])):
            self._lose(len(lines))
        elif self._explained < self.lost_lines:
            lost = self.lost_lines
            if self._write_bytes(self._explain_loss(lost - self._explained) + b"\n"):
                self._explained = lost

    def _write_bytes(self, text: bytes) -> bool:
        left = memoryview(text)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Somebody who shares the descriptor made it non-blocking; waiting is this thread's business.
                waiter = select.poll()
                waiter.register(self._descriptor, select.POLLOUT)
                waiter.poll()
            except OSError:
                return False
        return True
