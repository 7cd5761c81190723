"""Runs many cases at the same time, on one server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from daemon.dev.postgres import Server
from tests.conformance.casefile import CannotExpressError, Case
from tests.conformance.judge import Judgement, expectation, judged
from tests.conformance.play import play
from tests.conformance.world import Keys
from tests.support.database import Databases, dsn_with, name_in

AT_ONCE = 3 * (os.cpu_count() or 1)
"""Cases wait far more than they compute."""


@contextlib.asynccontextmanager
async def own_databases() -> AsyncIterator[Databases]:
    """Hold a server for databases: a new one, or that of TEST_DATABASE_URL."""
    async with contextlib.AsyncExitStack() as stack:
        if url := os.environ.get("TEST_DATABASE_URL"):
            made = Databases(dsn_with(url), name_in(url))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailslot-conformance-")))
            folder.chmod(0o711)  # noqa: ASYNC240  at once; the server has an account of its own
            server = stack.enter_context(Server.start(folder / "server", settings={"max_connections": "200"}))
            made = Databases(server.dsn_of, "postgres")
        await stack.enter_async_context(made.prepared())
        yield made


async def judge_all(
    cases: Sequence[Case], databases: Databases, *, at_once: int = AT_ONCE, heard: Callable[[Judgement], None] | None = None
) -> list[Judgement]:
    """Play the cases, `at_once` at a time, and return their judgements in the order of the cases.

    `heard` is called with each judgement, in that order, as soon as all before it are there.
    """
    places = asyncio.Semaphore(at_once)
    judgements: list[Judgement | None] = [None] * len(cases)
    told = 0

    async def one(index: int, keys: Keys) -> None:
        nonlocal told
        async with places:
            begun_mono = time.monotonic()
            judgement = judgements[index] = await _judge(cases[index], databases, keys)
            judgement.took_s = round(time.monotonic() - begun_mono, 1)
        while told < len(cases) and (ready := judgements[told]) is not None:
            told += 1
            if heard is not None:
                heard(ready)

    with tempfile.TemporaryDirectory(prefix="mailslot-keys-") as folder:
        keys = Keys(Path(folder))
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(cases)):
                tasks.create_task(one(index, keys))
    return [judgement for judgement in judgements if judgement is not None]


async def _judge(case: Case, databases: Databases, keys: Keys) -> Judgement:
    try:
        return judged(case, await play(case, databases, keys))
    except CannotExpressError as error:
        return Judgement(case, expectation(case), {}, [f"can't express: key {error}"])
    except ExceptionGroup as group:
        return Judgement(case, expectation(case), {}, [f"the run broke: {error!r}" for error in group.exceptions])
