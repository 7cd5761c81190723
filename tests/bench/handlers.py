"""Functions that a measured daemon runs; they are imported by it, not by the bench."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from daemon.handlers import HandedJob, marks_itself

STAMPS = "stamps.txt"
"""In the daemon's working folder: one line a job, its number and the wall clock's seconds at which its function began."""


@marks_itself
async def stamp(job: HandedJob) -> None:
    """Write down when it began; there is no step that it couldn't take back, and so no mark."""
    os.write(_file(), f"{job.payload['number']} {time.time():.6f}\n".encode())


@cache
def _file() -> int:
    return os.open(Path(STAMPS), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
