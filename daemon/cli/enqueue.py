"""`mailslot enqueue`: saves one job from flags, or many from lines of JSON.

All lines are saved in one transaction, a thousand to a statement, by the functions that applications call. While a batch is on
its way the next one is read and judged, so that the database and this process work at the same time. From the first bad batch on
nothing more is sent to the database, but the rest is still read, so that one look at the errors is enough; then all of it is
rolled back. The commit is on disk before anything is said about success, whatever the server's default.

Measured with plain mails of 900 bytes: 14 microseconds of this process for a line and 16 to 20 of PostgreSQL, side by side; it
was 87 and 60, one after the other. A mail of a simple shape isn't composed to see whether it can be (`check`), a batch is one
INSERT and not a call a job, and columns of defaults aren't sent. Tried and of no use: batches of 250 and 4,000, uvloop, no
garbage collection. Not tried: COPY, for which a producer would need INSERT on the table; processes to judge in, as PostgreSQL
needs the other core.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NoReturn, TypeAlias

from tqdm import tqdm

from daemon.cli.exits import BadDataError, Exit, UsageError
from daemon.cli.mailflags import line_from, require_alone
from daemon.cli.newjob import Columns, Flaw, NewJob, checked, columns_of, read
from daemon.cli.options import settings_of
from daemon.cli.render import as_json, printable
from daemon.cli.session import Row, Session, opened
from daemon.core.errors import StoreRefused
from daemon.core.message.check import Check
from daemon.core.settings import Settings
from daemon.templates import load

Progress: TypeAlias = "tqdm[NoReturn]"
Judge: TypeAlias = Callable[[NewJob], Columns | Flaw]
BATCH = 1000
BATCH_BYTES = 8_388_608
"""A batch ends at either: with a few large payloads a thousand would be too much for one statement."""
TURN = 25
"""Lines to judge until the event loop has its turn: a batch is larger than the socket's buffer, and would wait half-sent."""
OF_THE_VALUE = frozenset({"22", "23", "54"})
"""SQLSTATE classes that speak of the values sent: data, integrity, limits. Everything else is about the whole command."""


@dataclass(slots=True)
class Tally:
    """What became of the lines."""

    lines: int = 0
    new: int = 0
    known: int = 0
    bad: int = 0

    def require_all_good(self) -> None:
        """Raise BadDataError if a line is bad; inside the transaction this rolls it back."""
        if self.bad:
            raise BadDataError(f"{self.bad} of {self.lines} lines are bad; nothing was saved")


def run(arguments: Namespace) -> int:
    """Save what the arguments describe; raises BadDataError if any of it can't be, and then nothing was saved."""
    settings = settings_of(arguments)
    if arguments.lines is None:
        return _one(settings, arguments)
    require_alone(arguments)
    with _source(arguments.lines) as source, _progress(source) as progress:
        tally = asyncio.run(save_lines(settings, source, progress))
    if arguments.output == "text":
        print(f"{tally.lines} jobs: {tally.new} saved, {tally.known} known already")
    else:
        print(as_json({"lines": tally.lines, "new": tally.new, "known": tally.known}))
    return Exit.DONE


def _one(settings: Settings, arguments: Namespace) -> int:
    saved = asyncio.run(save_line(settings, line_from(arguments)))
    if arguments.output == "json":
        print(as_json(saved))
    elif saved["is_new"]:
        print(f"job {saved['id']} saved")
    else:
        print(f"job {saved['id']} is known already by this key ({saved['outcome'] or 'unfinished'})")
    return Exit.DONE


async def save_line(settings: Settings, line: bytes) -> Row:
    """Save one job and return its (id, is_new, outcome)."""
    job = read(line)
    if isinstance(job, Flaw):
        raise BadDataError(f"{printable(job)}; nothing was saved")
    async with _saving(settings) as (session, check):
        columns = check(job)
        if isinstance(columns, Flaw):
            raise BadDataError(f"{printable(columns)}; nothing was saved")
        return (await session.rows("job_enqueue", *columns))[0]


async def save_lines(settings: Settings, lines: Iterable[bytes], progress: Progress) -> Tally:
    """Save all lines or, if one of them is bad, none; each bad one is said on standard error, in the order of the lines."""
    tally = Tally()
    try:
        async with _saving(settings) as (session, check), asyncio.TaskGroup() as tasks:
            on_its_way: asyncio.Task[None] | None = None
            for batch in _batches(lines):
                judged = await _judged(batch, check)
                if on_its_way is not None:
                    await on_its_way
                good = _sorted_out(judged, tally, progress)
                on_its_way = None if tally.bad else tasks.create_task(_save(session, good, tally, progress))
                progress.update(sum(len(line) for _, line in batch))
            if on_its_way is not None:
                await on_its_way
            tally.require_all_good()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
    return tally


@asynccontextmanager
async def _saving(settings: Settings) -> AsyncIterator[tuple[Session, Judge]]:
    """Hold the transaction, and what judges a job by its clock."""
    async with opened(settings.database) as session, session.transaction("enqueue"):
        now = (await session.rows("job_begin"))[0]["now"]
        check = Check(settings.mail, load(settings.templates.dir), now)
        yield session, partial(checked, now=now, max_payload_bytes=settings.mail.max_payload_bytes, fault=check.fault)


def _batches(lines: Iterable[bytes]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    room = BATCH_BYTES
    for number, line in enumerate(lines, 1):
        batch.append((number, line))
        room -= len(line)
        if len(batch) == BATCH or room <= 0:
            yield batch
            batch, room = [], BATCH_BYTES
    if batch:
        yield batch


async def _judged(batch: Sequence[tuple[int, bytes]], judge: Judge) -> list[tuple[int, Columns | Flaw]]:
    """Judge every line of a batch that isn't empty, and let the batch before it be sent meanwhile."""
    judged: list[tuple[int, Columns | Flaw]] = []
    for start in range(0, len(batch), TURN):
        await asyncio.sleep(0)
        for number, line in batch[start : start + TURN]:
            if line.strip():
                job = read(line)
                judged.append((number, job if isinstance(job, Flaw) else judge(job)))
    return judged


def _sorted_out(judged: Sequence[tuple[int, Columns | Flaw]], tally: Tally, progress: Progress) -> list[tuple[int, Columns]]:
    """Count the lines, say which are bad, and return the others."""
    good: list[tuple[int, Columns]] = []
    for number, columns in judged:
        if isinstance(columns, Flaw):
            _complain(number, columns, tally, progress)
        else:
            good.append((number, columns))
    tally.lines += len(judged)
    return good


async def _save(session: Session, jobs: Sequence[tuple[int, Columns]], tally: Tally, progress: Progress) -> None:
    """Save a batch; where the database refuses a value, halve until the lines at fault stand alone."""
    if not jobs:
        return
    try:
        async with session.transaction("enqueue"):
            (saved,) = await session.rows("job_enqueue_many", *columns_of([columns for _, columns in jobs]))
    except StoreRefused as error:
        if error.sqlstate[:2] not in OF_THE_VALUE:
            raise
        if len(jobs) == 1:
            _complain(jobs[0][0], Flaw("", str(error)), tally, progress)
            return
        half = len(jobs) // 2
        await _save(session, jobs[:half], tally, progress)
        await _save(session, jobs[half:], tally, progress)
    else:
        tally.new += saved["new"]
        tally.known += len(jobs) - saved["new"]


def _complain(number: int, flaw: Flaw, tally: Tally, progress: Progress) -> None:
    tally.bad += 1
    progress.write(f"line {number}: {printable(flaw)}", file=sys.stderr)


@contextmanager
def _source(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            source = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}") from error
        yield source


def _progress(source: BinaryIO) -> Progress:
    """Return a bar of bytes on standard error if that is a terminal, and one that shows nothing if not."""
    tqdm.monitor_interval = 0
    try:
        status = os.fstat(source.fileno())
    except OSError:
        status = None
    total = status.st_size if status is not None and S_ISREG(status.st_mode) else None
    return tqdm(total=total, unit="B", unit_scale=True, disable=None, file=sys.stderr)
