"""One relay as the worker sees it: its connections, its access, and the try that is due when it has none.

Answers: a connection to this relay, now, or why not? While nobody holds a connection to it, one goes first and the others wait
for what becomes of that, or for a connection that comes back; where there is a log-in, connections are always opened one after
the other. So a wrong password costs one log-in each pause, also when it was changed under full load, and a relay that drops
everybody one connect, however many jobs there are. A relay without access is left alone until the one try of `run` succeeds.

A relay that takes no further connection beside those it has isn't away: it gets fewer from now on.

Logs each change of access once, and nothing for a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import structlog

from daemon.core import settings
from daemon.core.smtp import CLOSING, Fault, Reply, Report, Stage
from daemon.core.verdicts import Decision, Table, Verdict, decide
from daemon.smtp.breaker import Access, Breaker
from daemon.smtp.connection import Connection
from daemon.smtp.opening import open_connection
from daemon.smtp.pool import Pool

OUR_PACE: Final = frozenset({"rate_limited", "too_many_connections"})
"""The relay works and finds us too fast: as long as we can become slower, that closes no access."""
TOO_FAST: Final = OUR_PACE | {"relay_closing"}
"""What makes us slower: 432, 4yz that speak of a rate, and 421, which may be either."""
SESSION_OVER: Final = "session_limit"
_SHORTEST_WAIT_S: Final = 0.001

log = structlog.get_logger("mailslot.relays")


class Line:
    """The way to one relay."""

    def __init__(
        self,
        relay: settings.Relay,
        tls: ssl.SSLContext | None,
        *,
        ehlo_name: Callable[[], Awaitable[str]],
        boottime_s: Callable[[], float],
        chance: Callable[[], float],
        rules: Table,
        on_change: Callable[[], None],
    ) -> None:
        self.relay = relay
        self.pool = Pool(relay, boottime_s)
        self.breaker = Breaker(relay, boottime_s, chance)
        self.last = Report(relay.name, Stage.CONNECT, Fault.UNREACHABLE)
        """Why there was no connection the last time."""
        self._tls = tls
        self._ehlo_name = ehlo_name
        self._boottime_s = boottime_s
        self._rules = rules
        self._on_change = on_change
        self._openings = 0
        self._waiting = 0
        self._looks_mono = -inf
        """Until when `run` sleeps; inf: until it is woken, which under load happens once in `idle_s`, not with each check-in."""
        self._news = asyncio.Event()
        self._woken = asyncio.Event()

    def take_now(self) -> Connection | None:
        """Give an idle connection if that needs no waiting, which is the usual case; else None. Ask while there is access."""
        if not self.pool.places.take_now():
            return None
        if (idle := self.pool.idle()) is None:
            self.pool.places.give_back()
        return idle

    async def take(self, *, fresh: bool = False) -> Connection | Report:
        """Wait for a place, then give an idle connection (unless it must be `fresh`) or open one. Cancelling is safe."""
        await self.pool.places.take()
        taken: Connection | Report | None = None
        try:
            taken = await self._in_place(fresh=fresh)
        finally:
            if not isinstance(taken, Connection):
                self.pool.places.give_back()
        return taken

    def check_in(self, connection: Connection) -> None:
        """Take a connection back and let the next one in."""
        self.pool.check_in(connection)
        self.pool.places.give_back()
        if self._waiting:
            self._tell()
        expiry_mono = self.pool.next_expiry_mono
        if expiry_mono is not None and expiry_mono < self._looks_mono:
            self._woken.set()

    def note(self, decision: Decision) -> None:
        """Hear what became of a transaction."""
        if decision.reason in TOO_FAST:
            self._slow_down(decision.reason)
        if decision.verdict is Verdict.SENT:
            self.pool.speed_up()
        slower_helps = decision.reason in OUR_PACE and decision.verdict is Verdict.FREE and self.pool.places.limit > 1
        if decision.reason != SESSION_OVER and not slower_helps and self.breaker.transacted(decision):
            self._closed()

    async def run(self) -> None:
        """Part from idle connections in time, and try the relay when a try is due; for ever."""
        while True:
            self._woken.clear()
            wait_s = self._wait_s()
            self._looks_mono = inf if wait_s is None else self._boottime_s() + wait_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            self.pool.expire()
            if not self.breaker.usable and not self.breaker.retry_in_s:
                await self._try_again()

    def _wait_s(self) -> float | None:
        waits = [] if self.breaker.usable else [self.breaker.retry_in_s]
        if (expiry_mono := self.pool.next_expiry_mono) is not None:
            waits.append(expiry_mono - self._boottime_s())
        return max(_SHORTEST_WAIT_S, min(waits)) if waits else None

    async def _try_again(self) -> None:
        await self.pool.places.take()
        try:
            opened = await self._open()
            if isinstance(opened, Connection):
                self.pool.check_in(opened)
                self.breaker.recovered()
                log.info("relay.resumed", relay=self.relay.name)
                self._on_change()
        finally:
            self.pool.places.give_back()

    async def _in_place(self, *, fresh: bool) -> Connection | Report:
        # Whoever waited for the place or for others' openings may wake up to a relay that takes no work any more.
        while self.breaker.usable:
            if not fresh and (idle := self.pool.idle()) is not None:
                return idle
            if not self._openings or (self.pool.live and not self.relay.username):
                return await self._open()
            self._waiting += 1
            try:
                await self._news.wait()
            finally:
                self._waiting -= 1
        return self.last

    async def _open(self) -> Connection | Report:
        self._openings += 1
        try:
            opened = await open_connection(self.relay, tls=self._tls, ehlo_name=await self._ehlo_name())
            if isinstance(opened, Connection):
                self.pool.add(opened)
            else:
                self._not_opened(opened)
        finally:
            self._openings -= 1
            self._tell()
        return opened

    def _not_opened(self, report: Report) -> None:
        self.last = report
        decision = decide(report, rules=self._rules)
        too_fast = decision.reason in TOO_FAST or (isinstance(report.answer, Reply) and report.answer.code == CLOSING)
        if too_fast and self.pool.live and decision.verdict is not Verdict.PAUSE:  # no pace is slow enough for a pause
            self._slow_down(decision.reason)
        elif self.breaker.not_opened(decision):
            self._closed(report.detail)

    def _slow_down(self, reason: str) -> None:
        if self.pool.slow_down():
            log.warning("relay.slowed", relay=self.relay.name, reason=reason, connections=self.pool.places.limit)

    def _tell(self) -> None:
        """Let those look again who wait for a connection, or for their turn to open one."""
        self._news.set()
        self._news.clear()

    def _closed(self, detail: str = "") -> None:
        """Announce that the access has changed for the worse; what is idle may be as bad as what failed."""
        breaker = self.breaker
        self.pool.clear()
        self._woken.set()
        said = {"error.message": detail} if detail else {}
        event, write = ("relay.paused", log.error) if breaker.access is Access.PAUSED else ("relay.lost", log.warning)
        write(event, relay=self.relay.name, reason=breaker.reason, retry_in_s=round(breaker.retry_in_s, 1), **said)
        self._on_change()
