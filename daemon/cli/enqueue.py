"""`mailslot enqueue`: saves one job from flags, or many from lines of JSON.

All lines are saved in one transaction, a thousand to a round trip, by the function that applications call. From the first bad
line on nothing more is sent to the database, but the rest is still read, so that one look at the errors is enough; then all of
it is rolled back. The commit is on disk before anything is said about success, whatever the server's default.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, NoReturn, TypeAlias

from tqdm import tqdm

from daemon.cli.exits import BadDataError, Exit, UsageError
from daemon.cli.mailflags import line_from, require_alone
from daemon.cli.newjob import Columns, Flaw, NewJob, checked, read
from daemon.cli.options import settings_of
from daemon.cli.render import as_json, printable
from daemon.cli.session import Row, Session, opened
from daemon.core.errors import StoreRefused
from daemon.core.message import compose
from daemon.core.settings import Settings
from daemon.templates import load

Progress: TypeAlias = "tqdm[NoReturn]"
Check: TypeAlias = Callable[[NewJob], Columns | Flaw]
BATCH = 1000
BATCH_BYTES = 8_388_608
"""A batch ends at either: with a few large payloads a thousand would be too much for one statement."""
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
    async with _saving(settings) as (session, begun):
        columns = _check(settings, begun)(job)
        if isinstance(columns, Flaw):
            raise BadDataError(f"{printable(columns)}; nothing was saved")
        return (await session.rows("job_enqueue", *_arrays([columns])))[0]


async def save_lines(settings: Settings, lines: Iterable[bytes], progress: Progress) -> Tally:
    """Save all lines or, if one of them is bad, none; each bad one is said on standard error."""
    tally = Tally()
    async with _saving(settings) as (session, begun):
        check = _check(settings, begun)
        for batch in _batches(lines):
            good = list(_good(batch, tally, check, progress))
            if not tally.bad:
                await _save(session, good, tally, progress)
            progress.update(sum(len(line) for _, line in batch))
        tally.require_all_good()
    return tally


@asynccontextmanager
async def _saving(settings: Settings) -> AsyncIterator[tuple[Session, Row]]:
    async with opened(settings.database) as session, session.transaction("enqueue"):
        yield session, (await session.rows("job_begin"))[0]


def _check(settings: Settings, begun: Row) -> Check:
    templates = load(settings.templates.dir)
    return partial(checked, now=begun["now"], mail=settings.mail, compose=partial(compose, templates=templates))


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


def _good(batch: Iterable[tuple[int, bytes]], tally: Tally, check: Check, progress: Progress) -> Iterator[tuple[int, Columns]]:
    for number, line in batch:
        if not line.strip():
            continue
        tally.lines += 1
        job = read(line)
        columns = job if isinstance(job, Flaw) else check(job)
        if isinstance(columns, Flaw):
            _complain(number, columns, tally, progress)
        else:
            yield number, columns


async def _save(session: Session, jobs: list[tuple[int, Columns]], tally: Tally, progress: Progress) -> None:
    """Save a batch; where the database refuses a value, halve until the lines at fault stand alone."""
    if not jobs:
        return
    try:
        async with session.transaction("enqueue"):
            rows = await session.rows("job_enqueue", *_arrays([columns for _, columns in jobs]))
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
        news = sum(row["is_new"] for row in rows)
        tally.new += news
        tally.known += len(rows) - news


def _arrays(jobs: Iterable[Columns]) -> list[list[object]]:
    return [list(column) for column in zip(*jobs, strict=True)]


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
