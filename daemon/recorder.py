"""Writes conclusions until they are answered: an outcome is never forgotten because the database was away.

Conclusions that are ready together share one statement, as in `daemon.batch`, but a failed write says nothing: it is repeated
with the same tokens until there is an answer, however long that takes. Only an answer frees the slot. What the database refuses
(a text that it won't store, a CHECK) is tried alone, then without its texts; what it refuses even then is logged with all that is
known, and the row goes the way of a lost worker: marked, it ends in doubt.

While an outcome can't be recorded, `sick` is true and no slot writes a new dot: each would be one more doubt if we died now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace

from daemon.batch import Gathering, Turn
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.outcome import Record
from daemon.core.retry import reconnect_s
from daemon.ports import Ports
from daemon.store import Ending, Store, Written

UNANSWERED_S = 2.0
"""A record that takes longer than this counts as failing (PROTOCOL: no new dot while outcomes can't be recorded)."""
BUSY_PAUSE_S = 0.05
"""Between two tries at a row that somebody else's open transaction has locked."""

log = structlog.get_logger("mailslot.recorder")

Waiting = tuple[Ending, "asyncio.Future[Written]"]


class Recorder:
    """The queue of conclusions and the loop that writes them."""

    def __init__(self, store: Store, ports: Ports, turn: Turn, *, reconnect_max_s: float) -> None:
        self._store = store
        self._ports = ports
        self._turn = turn
        self._reconnect_max_s = reconnect_max_s
        self._gathering: Gathering[Ending, Written] = Gathering()
        self._failures = 0
        self._asked_mono: float | None = None

    @property
    def sick(self) -> bool:
        """Whether an outcome has failed to be recorded, or waits too long, and none has been recorded since."""
        return self._failures > 0 or (self._asked_mono is not None and self._ports.boottime_s() - self._asked_mono > UNANSWERED_S)

    async def write(self, ending: Ending) -> Written:
        """Return what the row says, once it says it. Never raises for an outage; waits through it."""
        return await self._gathering.add(ending)

    async def run(self) -> None:
        """Write batches, one at a time, for ever."""
        while True:
            await self._gathering.filled()
            async with self._turn.taken():
                again = await self._put(self._gathering.batch())
            self._gathering.put_back(again)
            if again:
                await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        return reconnect_s(self._failures, self._reconnect_max_s, self._ports.number()) if self._failures else BUSY_PAUSE_S

    async def _put(self, batch: list[Waiting]) -> list[Waiting]:
        """Write a batch and return what must be written again."""
        self._asked_mono = self._ports.boottime_s()
        try:
            answers = await self._write([ending for ending, _ in batch])
        except StoreUnavailable as error:
            if self._failures == 0:
                log.warning("outcome.unrecorded", outcomes=len(batch), **{"error.message": str(error)})
            self._failures += 1
            return batch
        finally:
            self._asked_mono = None
        if self._failures:
            log.info("outcome.recorded_again", failures=self._failures)
        self._failures = 0
        again = []
        for (ending, future), written in zip(batch, answers, strict=True):
            if written.state == "busy":
                again.append((ending, future))
            elif not future.done():
                future.set_result(written)
        return again

    async def _write(self, endings: Sequence[Ending]) -> list[Written]:
        records = [ending for ending in endings if isinstance(ending.conclusion, Record)]
        releases = [ending for ending in endings if not isinstance(ending.conclusion, Record)]
        answers: dict[object, Written] = {}
        for write, some in ((self._store.record, records), (self._store.release, releases)):
            if some:
                found = await self._each(write, some)
                answers |= {ending.job.token: written for ending, written in zip(some, found, strict=True)}
        return [answers[ending.job.token] for ending in endings]

    async def _each(self, write: Callable[[Sequence[Ending]], object], endings: list[Ending]) -> list[Written]:
        try:
            return await write(endings)  # type: ignore[misc, no-any-return]
        except StoreRefused as error:
            if len(endings) > 1:
                return [(await self._each(write, [ending]))[0] for ending in endings]
            return [await self._bare(endings[0], error)]

    async def _bare(self, ending: Ending, refusal: StoreRefused) -> Written:
        """Write the one conclusion that the database refused, without its texts."""
        job, conclusion = ending.job, ending.conclusion
        log.error("outcome.refused", job_id=job.id, sqlstate=refusal.sqlstate, **{"error.message": str(refusal)})
        try:
            if isinstance(conclusion, Record):
                bare = replace(conclusion, reason="unstorable", reply=None, relay=None)
                return (await self._store.record([Ending(job, bare)]))[0]
            return (await self._store.release([Ending(job, replace(conclusion, reason="unstorable", reply=None, relay=None))]))[0]
        except StoreRefused as error:
            verdict = conclusion.verdict if isinstance(conclusion, Record) else "free"
            log.error(  # noqa: TRY400  the refusal is the event, not the place in our code
                "outcome.unrecordable", job_id=job.id, verdict=verdict, reason=conclusion.reason, **{"error.message": str(error)}
            )
            return Written("lost", None)
