"""The way out: one thing whose only job is to leave in good order.

    first signal    claim no more; hand back at once what hasn't begun its transaction; keep heartbeating
    drain limit     then abort and hand back what is still before the dot
    reply grace     wait on for answers to dots that are out
    record          what is unanswered then is in doubt: 5 s to write that down
    second signal   both limits become 0

What may have been sent is never handed back. The result says whether anything was left unfinished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from daemon.claimer import Claimer
from daemon.core.settings import Worker
from daemon.core.smtp import Stage
from daemon.notify import Notifier
from daemon.slots import DRAINING, Held

RECORD_S = 5.0
"""What a forced stop still takes to write down what it knows (P7)."""
TIMEOUT_SLACK_S = 10.0
EARLY = frozenset({Stage.BUILD, Stage.CONNECT, Stage.GREETING, Stage.EHLO, Stage.TLS, Stage.AUTH})
"""Stages that hold nothing of the job yet: a drain doesn't wait for them."""

log = structlog.get_logger("mailslot.drain")

Slots = set["asyncio.Task[None]"]


class Drain:
    """Waits for a signal, then for the slots."""

    def __init__(self, worker: Worker, held: Held, claimer: Claimer, notifier: Notifier) -> None:
        self._worker = worker
        self._held = held
        self._claimer = claimer
        self._notifier = notifier
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = loop.create_future()
        self._forced: asyncio.Future[None] = loop.create_future()

    @property
    def begun(self) -> asyncio.Future[None]:
        """Done once somebody asked for the drain."""
        return self._begun

    def request(self) -> None:
        """Begin to drain; asked again, hurry."""
        if not self._begun.done():
            self._begun.set_result(None)
        elif not self._forced.done():
            log.warning("drain.forced", held=len(self._held))
            self._forced.set_result(None)

    async def run(self, slots: Slots, claiming: asyncio.Task[None]) -> bool:
        """Return once the slots and the claimer have ended: by themselves (`--once`), or by a drain.

        False: something is left unfinished, be it a dot without an answer or a row that couldn't be written. The claimer is
        waited for, since it gives back a claim that is on its way; one that can't be given back had begun nothing.
        """
        pending = await self._wait(slots | {claiming}, None, self._begun.done)
        if not pending:
            return True
        log.info("drain.begun", held=len(self._held))
        self._notifier.stopping(f"draining, {len(self._held)} in flight")
        total_s = self._worker.drain_timeout_s + self._worker.reply_grace_s + RECORD_S
        self._notifier.extend_timeout(total_s + TIMEOUT_SLACK_S)
        self._claimer.stop()
        for lease in self._held:
            if lease.stage in EARLY:
                lease.give_up(DRAINING)
        pending = await self._wait(pending, self._worker.drain_timeout_s, lambda: self._forced.done() or not self._held)
        for lease in self._held:
            lease.give_up(DRAINING)
        pending = await self._wait(pending, self._worker.reply_grace_s, lambda: self._forced.done() or self._none_past_dot())
        hung_up = self._hang_up()
        pending = await self._wait(pending, RECORD_S, lambda: False)
        log.info("drain.ended", unanswered=hung_up, unrecorded=len(self._held))
        for slot in pending:
            slot.cancel()
        return hung_up == 0 and not pending - {claiming}

    def _none_past_dot(self) -> bool:
        return not any(lease.past_dot for lease in self._held)

    def _hang_up(self) -> int:
        """End the wait for answers; each of these messages is in doubt now. Returns how many."""
        waiting = [(lease, lease.hang_up) for lease in self._held if lease.hang_up is not None]
        for lease, hang_up in waiting:
            lease.hung_up = True
            hang_up()
        return len(waiting)

    async def _wait(self, slots: Slots, limit_s: float | None, enough: Callable[[], bool]) -> Slots:
        """Wait until all slots have ended, the limit has passed, or `enough` says so; returns the slots that go on."""
        loop = asyncio.get_running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        signals: set[asyncio.Future[Any]] = {self._begun, self._forced}
        while slots and not enough() and (until is None or loop.time() < until):
            left_s = None if until is None else max(0.0, until - loop.time())
            watched = slots | {signal for signal in signals if not signal.done()}
            done, _ = await asyncio.wait(watched, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            slots = slots - done
        return slots
