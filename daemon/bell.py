"""What wakes an idle worker: a bell that it arms itself, and that the next producer who commits rings.

PostgreSQL commits transactions that notify one after the other, each until it is on disk. If every producer notified, a disk
that takes 5 ms would allow 200 of them a second, however many there are. So a producer notifies only if somebody has armed the
bell since it was last rung (schema.sql): once for each time that a worker goes idle, never while all are busy. Each arming has
a number that its ring says, and a worker arms again only what it has heard rung: else many idle workers, woken by one ring,
would arm for one producer after the other while the first still commits, and these would wait for each other as before.

One race is left, and is bounded. A producer asks for the bell just before others see its commit. If a worker arms in between,
and looks before they do, nobody rings for that job. So whoever arms looks at once, and again `LOOKS_S` later, which is longer
than a commit takes. Who was rung and finds that somebody else has armed the bell hears whatever comes after; what came before
may lie in a queue that only he serves, so he looks once more too. A notification that got lost (its transaction failed in its
commit, having rung) costs a poll, and the bell is armed again after `AGAIN_S` at the latest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

LOOKS_S = (0.02, 0.2)
"""When whoever armed the bell looks again: after a commit on any sound disk, and after one that waits for a distant standby."""
AGAIN_S = 5.0
"""A ring is awaited for so long; then one statement, against a poll for every job if it got lost."""

DIGITS = 12
"""A number longer than that isn't the bell's: anybody may notify anything."""


class Bell:
    """What this worker knows about the bell: the number that it heard last, and when to look again for what nobody rang for.

    `arm` is given that number, None if some may have been missed; it arms the bell if nobody has since, and returns whether it
    did. With `listens` false nothing is ever armed, and polling finds all.
    """

    def __init__(self, arm: Callable[[int | None], Awaitable[bool]], boottime_s: Callable[[], float], *, listens: bool) -> None:
        self._arm = arm
        self._boottime_s = boottime_s
        self._listens = listens
        self._heard: int | None = None
        self._again_mono = -inf
        self._looks_mono: list[float] = []

    def rung(self, note: str = "") -> None:
        """Hear a notification: the bell's number; without one, a ring may have been missed."""
        self._heard = int(note) if note.isdecimal() and len(note) <= DIGITS else None
        self._again_mono = -inf

    async def arm(self) -> bool:
        """See to it that the bell is armed, after a look that left slots waiting; returns whether to look once more at once.

        Asks the database only after a ring, or if there was none for long. Raises StoreUnavailable or StoreRefused; cancelling is
        safe.
        """
        now_mono = self._boottime_s()
        if not self._listens or now_mono < self._again_mono:
            return False
        heard, self._heard = self._heard, None
        self._again_mono = now_mono + AGAIN_S  # before asking, for a ring that comes meanwhile has to be asked about again
        try:
            armed = await self._arm(heard)
        except BaseException:
            self.rung()
            raise
        if armed or heard is not None:
            self._looks_mono = [self._boottime_s() + later_s for later_s in (LOOKS_S if armed else LOOKS_S[:1])]
        return armed

    def wait_s(self) -> float:
        """Return the seconds until the next look that the arming asks for; infinity if it asks for none."""
        return max(0.0, self._looks_mono[0] - self._boottime_s()) if self._looks_mono else inf

    def looks(self) -> bool:
        """Return whether such a look is due, which counts as made then."""
        due, now_mono = self._looks_mono, self._boottime_s()
        self._looks_mono = [look_mono for look_mono in due if look_mono > now_mono]
        return len(self._looks_mono) < len(due)
