"""How many jobs may be claimed now, and whose mail has to wait: for a relay that is away, or for its rate.

A relay with a limit has a bucket of tokens in the database, which all workers share (`sql/take.sql`, `core.rate`). The tokens are
taken before the claim, as many as jobs are wanted, so that nobody waits for one with a lease in hand. A claim asks for no more
jobs than it has tokens at each open relay: whichever relays its jobs go to, there is one for each. What wasn't needed is put back
at once, or a worker without work would starve the others. Tokens that get lost (a worker dies, an answer doesn't come) are
missing until the bucket has filled again; there are never too many.

A worker that found nothing the last time asks for one token, then for ever more: so the idle hardly touch what the busy need.
That least number of tokens holds for all of a claim, so also for jobs of other kinds in it: the next claim comes soon.

A token isn't good for long. Who was held up for longer (a large mail, a place at the relay that was slow to come free) takes
another one when its connection is there (`renew`), under the same lease; the first is lost. If none is left it waits for the
next one, where that comes soon: given back it would be just as late the next time. One at a time does so for each relay, or
slots that wait would stand in the way of other queues; the others are given back for as long as it takes to have a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from daemon.core.job import Job
from daemon.core.rate import NoToken, Permit
from daemon.smtp.relays import Relays
from daemon.store import Closed, Taken, Wish

MAIL = "email"
PATIENCE_S = 5.0
"""How long a token may take to come for which a message waits with its connection in hand; no relay lets one be idle for long."""
LATE_S = 1.0
"""How long a job rests whose token had expired by the time the database had answered."""


@dataclass(slots=True)
class Allowance:
    """What one claim may do."""

    count: int
    """Jobs that may be claimed."""
    closed: Closed
    queues: Collection[str]
    """Those in which there may be anything to claim."""
    wait_s: float | None = None
    """Seconds until there are tokens where there are none now; None: nobody waits for tokens."""
    waits: bool = False
    """Whether a closed queue has a relay that may come back; one that no relay serves here has nothing to wait for."""
    permits: dict[str, list[Permit]] = field(default_factory=dict)
    """Relay -> what is left of its tokens; relays without a limit aren't there."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """Queue -> the relay that its mail goes to now."""
    taken: dict[str, int] = field(default_factory=dict)
    """Relay -> how many tokens there were."""
    asked_mono: float = 0.0
    """The boot-clock second before they were taken."""

    def permit(self, job: Job) -> Permit | None:
        """Return the token for a job that was claimed, None if it needs none.

        That of a mail whose payload has yet to be fetched has expired, for it would by the time at which the message is ready.
        """
        relay = job.relay_wanted or self.ways.get(job.queue, "")
        if job.kind != MAIL or not self.permits.get(relay):
            return None
        return Permit(relay, -inf) if job.payload is None else self.permits[relay].pop()


@dataclass(frozen=True, slots=True)
class View:
    """What the relays mean for the queues, as long as the same ones are usable and have tokens."""

    usable: frozenset[str]
    ready: frozenset[str]
    closed: Closed
    queues: Mapping[str, None]
    waits: bool
    ways: Mapping[str, str]


class Allowances:
    """Asks the relays and the buckets before each claim.

    Each claim asks, so with 1,000 queues nothing may be worked out anew for each of them: that took longer than the claim.
    """

    def __init__(
        self,
        relays: Relays,
        queues: Sequence[str],
        take: Callable[[Sequence[Wish]], Awaitable[Sequence[Taken]]],
        boottime_s: Callable[[], float],
        *,
        mail_only: bool,
    ) -> None:
        self._relays = relays
        self._queues = tuple(queues)
        self._serving = frozenset[str]().union(*(relays.serving(queue) for queue in queues))
        self._take = take
        self._boottime_s = boottime_s
        self._mail_only = mail_only
        self._view: View | None = None
        self._hope = 1
        self._awaited: set[str] = set()

    async def allow(self, wanted: int) -> Allowance:
        """Take tokens for at most so many jobs, and return what may be claimed.

        Raises StoreUnavailable or StoreRefused where there is a limit and the database doesn't answer.
        """
        asked_mono = self._boottime_s()
        permits, wait_s = await self._permits(min(wanted, self._hope), asked_mono)
        usable = self._relays.usable_names
        view = self._look(usable, frozenset(name for name in usable if permits.get(name, True)))
        return Allowance(
            count=min([wanted, *(len(tokens) for tokens in permits.values() if tokens)]) if view.queues else 0,
            closed=view.closed,
            queues=view.queues,
            wait_s=wait_s,
            waits=view.waits,
            permits=permits,
            taken={name: len(tokens) for name, tokens in permits.items()},
            asked_mono=asked_mono,
            ways=view.ways,
        )

    def _look(self, usable: frozenset[str], ready: frozenset[str]) -> View:
        """Return what these relays mean for the queues."""
        if self._view is None or (self._view.usable, self._view.ready) != (usable, ready):
            ways = {queue: self._relays.way(queue) for queue in self._queues}
            waiting = tuple(queue for queue, way in ways.items() if way not in ready)
            self._view = View(
                usable,
                ready,
                closed=Closed(waiting, tuple(name for name in self._relays.names if name not in ready)),
                queues=dict.fromkeys(
                    q for q in self._queues if not self._mail_only or not self._relays.serving(q).isdisjoint(ready)
                ),
                waits=any(self._relays.serving(queue) for queue in waiting),
                ways={queue: way for queue, way in ways.items() if way is not None},
            )
        return self._view

    async def settle(self, allowance: Allowance, claimed: int) -> None:
        """Put back the tokens that a claim of so many jobs didn't need.

        Less what has flowed into the bucket since they were taken: had they stayed there, a full bucket would have had no room
        for that, and whoever took it meanwhile would be given it twice.
        """
        self._hope = max(1, 2 * claimed)
        held_s = self._boottime_s() - allowance.asked_mono
        left = {
            name: min(len(tokens), allowance.taken[name] - self._relays.rates[name].per_s * held_s)
            for name, tokens in allowance.permits.items()
        }
        wishes = [Wish(name, self._relays.rates[name], -tokens) for name, tokens in left.items() if tokens > 0]
        if wishes:
            await self._take(wishes)

    async def renew(self, relay: str) -> Permit | NoToken:
        """Take one token for a message that is ready to begin, if need be after a short wait; cancelling may lose the token.

        Raises StoreUnavailable or StoreRefused.
        """
        rate = self._relays.rates[relay]
        while True:
            asked_mono = self._boottime_s()
            (found,) = await self._take([Wish(relay, rate, 1)])
            permit = Permit(relay, asked_mono + rate.good_s)
            if found.taken:
                return permit if self._boottime_s() <= permit.until_mono else NoToken(relay, max(found.wait_s, LATE_S))
            if relay in self._awaited or found.wait_s > PATIENCE_S:
                return NoToken(relay, found.wait_s)
            self._awaited.add(relay)
            try:
                await asyncio.sleep(found.wait_s)
            finally:
                self._awaited.remove(relay)

    async def _permits(self, tokens: int, asked_mono: float) -> tuple[dict[str, list[Permit]], float | None]:
        usable = self._relays.usable_names & self._serving
        wishes = [Wish(name, rate, tokens) for name, rate in self._relays.rates.items() if name in usable]
        if not wishes:
            return {}, None
        good_s = {wish.relay: wish.rate.good_s for wish in wishes}
        found = await self._take(wishes)
        permits = {each.relay: [Permit(each.relay, asked_mono + good_s[each.relay])] * each.taken for each in found}
        return permits, min((each.wait_s for each in found if not each.taken), default=None)
