"""Where do finished log lines go, when the reader is slow, stuck or gone?

A line is handed to a thread of its own, which writes to the descriptor and may block there as long as the reader likes: a full
pipe, a stopped terminal, a journal that restarts. The event loop never waits for it, or a stuck reader would cost every lease.
The queue between the two is bounded. A line that finds it full, or whose write fails, is lost and counted; once writing works
again, one line says how many. Nothing here raises: this is the one place where errors end in a number.

Used by `logs` alone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable
from typing import Protocol, TextIO

QUEUE_LINES = 4_000
BATCH_LINES = 200


class Outlet(Protocol):
    """Takes finished lines."""

    lost_lines: int
    """How many lines couldn't be written so far."""

    def write(self, line: str) -> None:
        """Take one line without its newline; never waits and never raises."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was taken is written; return whether that was so within the time."""

    def close(self) -> None:
        """Take no more; what was taken is still written."""


def outlet_for(stream: TextIO, explain_loss: Callable[[int], str]) -> Outlet:
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

    def write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
        except (OSError, ValueError):
            self.lost_lines += 1

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  # nothing here takes time
        return True

    def close(self) -> None:
        pass


class _Threaded:
    def __init__(self, descriptor: int, explain_loss: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self._explain_loss = explain_loss
        self._queue: queue.Queue[str | threading.Event | None] = queue.Queue(QUEUE_LINES)
        self._lock = threading.Lock()
        self._explained = 0
        self.lost_lines = 0
        threading.Thread(target=self._run, name="log-outlet", daemon=True).start()

    def write(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lose(1)

    def flush(self, timeout_s: float) -> bool:
        written = threading.Event()
        try:
            self._queue.put(written, timeout=timeout_s)
        except queue.Full:
            return False
        return written.wait(timeout_s)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def _lose(self, lines: int) -> None:
        with self._lock:
            self.lost_lines += lines

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH_LINES:
                    batch.append(self._queue.get_nowait())
            self._write_lines([line for line in batch if isinstance(line, str)])
            for waiting in batch:
                if isinstance(waiting, threading.Event):
                    waiting.set()
            if None in batch:
                return

    def _write_lines(self, lines: list[str]) -> None:
        if not lines:
            return
        if not self._write_bytes("".join(f"{line}\n" for line in lines)):
            self._lose(len(lines))
        elif self._explained < self.lost_lines:
            lost = self.lost_lines
            if self._write_bytes(self._explain_loss(lost - self._explained) + "\n"):
                self._explained = lost

    def _write_bytes(self, text: str) -> bool:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
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
