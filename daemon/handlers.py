"""What runs a job of which kind: mail is built in, an operator's own functions stand beside it.

    [handlers]
    "report.build" = "reports.jobs:build"

    async def build(job: daemon.handlers.HandedJob) -> None: ...

Such a function runs under the same lease, heartbeat, deadline, budgets and drain as a mail. Returning means done (outcome
sent); raising `Later` or `Rejected` says what else, and any other exception counts as an attempt and is tried again. Before the
step that it can't take back it may `await job.mark()`, the same fence as before a final dot; such a function is declared with
`@marks_itself`. Without that the job is marked before the function starts, so that a worker that dies meanwhile leaves a doubt
and not a silent second run. After the mark nothing interrupts the function but the reply budget.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from daemon.core.errors import ConfigError
from daemon.core.outcome import (
    EVERYBODY,
    Answer,
    Conclusion,
    Exchange,
    remaining,
    settle,
    standing,
)
from daemon.core.retry import backoff_s
from daemon.core.settings import Problem
from daemon.core.smtp import Stage
from daemon.core.verdicts import Decision, Scope, Verdict
from daemon.fence import Interruptible, Means, ask_mark, forbidden, handed_back, instead_of_go, payload_of
from daemon.slots import Lease
from daemon.store import MarkRequest

Function = Callable[["HandedJob"], Awaitable[None]]
Attempt = Callable[[Lease], Awaitable[Conclusion]]
Declared = TypeVar("Declared", bound=Function)


class Later(Exception):  # noqa: N818  a verdict that a function gives by raising it, not an error
    """The function says: not now. Uses up an attempt."""

    def __init__(self, reason: str, *, delay_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s


class Rejected(Exception):  # noqa: N818  the same
    """The function says: never. The job is dead with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MarkRefused(BaseException):
    """Leaves a function whose `mark` wasn't answered with go; not for functions to catch."""


def marks_itself(function: Declared) -> Declared:
    """Declare that the function awaits `job.mark()` before the step that it can't take back."""
    function.marks_itself = True  # type: ignore[attr-defined]
    return function


class HandedJob:
    """What a function sees of its job."""

    def __init__(
        self,
        lease: Lease,
        payload: Any,  # noqa: ANN401  any JSON
        fence: Callable[[Lease], Awaitable[Conclusion | None]],
    ) -> None:
        job = lease.job
        self.id, self.uid, self.kind, self.queue = job.id, job.uid, job.kind, job.queue
        self.attempt, self.doubts, self.traceparent = job.attempt, job.doubts, job.traceparent
        self.payload = payload
        self.refused: Conclusion | None = None
        """What the job ends with because its mark was refused, even if the function went on."""
        self.lease = lease
        self._fence = fence

    async def mark(self) -> None:
        """Make sure, durably and under the fence, that nobody else begins the step that comes now.

        Leaves the function by an exception when the job isn't the caller's any more, was cancelled or has expired.
        """
        self.refused = await self._fence(self.lease)
        if self.refused is not None:
            raise MarkRefused(self.refused.reason)


async def noop(_job: HandedJob) -> None:
    """Do nothing, successfully: what a benchmark of the queue alone runs."""


class FunctionAttempt:
    """The attempt of a kind that an operator's function runs."""

    def __init__(self, means: Means, function: Function) -> None:
        self._means = means
        self._function = function
        self._marks_itself = bool(getattr(function, "marks_itself", False))

    async def __call__(self, lease: Lease) -> Conclusion:
        """Run the function once under the lease."""
        block = self._means.interrupts.under(lease)
        try:
            with block:
                payload = await payload_of(lease.job, self._means)
                if not isinstance(payload, str):
                    return payload
                lease.stage = Stage.BODY
                return await self._handled(block, HandedJob(lease, msgspec.json.decode(payload), self._fence))
        except TimeoutError:
            if not block.interrupted:
                raise
            return self._interrupted(lease)
        except Later as later:
            return self._settled(lease, Verdict.LATER, later.reason, later.delay_s)
        except Rejected as rejected:
            return self._settled(lease, Verdict.REJECTED, rejected.reason)
        finally:
            lease.hang_up = None

    async def _handled(self, block: Interruptible, handed: HandedJob) -> Conclusion:
        """Run the function. What would end the slot or the process, but comes from the function, is an error like any other."""
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            if not self._marks_itself:
                await handed.mark()
            await self._function(handed)
        except (MarkRefused, BaseExceptionGroup, asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            ours = block.interrupted or (task is not None and task.cancelling() > cancels)
            if ours and isinstance(error, asyncio.CancelledError):
                raise
            if handed.refused is None:
                raise RuntimeError(f"the function ended with {type(error).__name__}") from error
        finally:
            # Python 3.11's TaskGroup leaves a cancel behind in its parent when a child fails; the next job isn't to find it.
            while task is not None and not block.interrupted and task.cancelling() > cancels:
                task.uncancel()
        return handed.refused or self._settled(handed.lease, Verdict.SENT, "done")

    async def _fence(self, lease: Lease) -> Conclusion | None:
        """Mark the job and check what the dot's check checks; returns the conclusion if the function must not go on."""
        means, entries = self._means, standing(lease.job, (EVERYBODY,))
        decision = await ask_mark(lease, means, MarkRequest(lease.job, None, (EVERYBODY,)))
        instead = instead_of_go(lease, entries, decision)
        if instead is not None:
            return instead
        reason = forbidden(lease, means.ports.boottime_s, sick=means.recorder_sick())
        if reason is not None:
            return handed_back(reason)
        lease.begin(means.ports.boottime_s() + means.settings.worker.function_timeout_s)
        lease.hang_up = partial(lease.begin, means.ports.boottime_s())
        return None

    def _interrupted(self, lease: Lease) -> Conclusion:
        if lease.past_dot:
            return self._settled(lease, Verdict.DOUBT, "timeout")
        return handed_back(lease.given_up)

    def _settled(self, lease: Lease, verdict: Verdict, reason: str, wait_s: float | None = None) -> Conclusion:
        settings, job = self._means.settings, lease.job
        entries = standing(job, (EVERYBODY,))
        answer = Answer(Decision(verdict, Scope.MESSAGE, reason, wait_s, "function"))
        return settle(
            job,
            entries,
            Exchange(lease.stage, None, answer, dict.fromkeys(remaining(entries), answer)),
            max_doubts=settings.lease.max_doubts,
            backoff_s=backoff_s(job.attempt, settings.retry, self._means.ports.number()),
        )


UNIMPORTABLE = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError),
    *(SyntaxError, SystemExit, TypeError, ValueError),
)
"""What somebody else's module may raise when it is imported: all of it is the operator's to put right, and no bug of ours."""


def load(handlers: Mapping[str, str]) -> dict[str, Function]:
    """Import the functions that the configuration names, `package.module:function` by kind.

    Raises ConfigError with every name that can't be imported or isn't async (what a plain function did would be done again by
    each attempt).
    """
    found: dict[str, Function] = {}
    problems = []
    for kind, path in handlers.items():
        module, _, name = path.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except UNIMPORTABLE as error:
            problems.append(Problem(f'handlers."{kind}"', f"can't import {path}: {type(error).__name__}: {error}"))
            continue
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            found[kind] = function
        else:
            problems.append(Problem(f'handlers."{kind}"', f"{path} isn't an async function: write `async def`"))
    if problems:
        raise ConfigError(problems)
    return found
