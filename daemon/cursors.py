"""Where the next claim looks: which levels, in which order, and from where in each.

A level is one (queue, priority): one exact range of the index. Where a snapshot is pinned nothing can be vacuumed, and every job
that was ever finished is still an entry of that range. So no claim begins at the front if it can help it: a level is looked at
from behind the last job that was claimed there, or, once nothing was left in it, from the moment at which it was found empty.

What is due may lie behind such a cursor. Each cause has its way to be found, and its bound:

    cause                                                        found
    this worker gave a job back, or a claim without an answer    at once: the cursor goes back to just that place
    a commit came after a claim had passed its place (the        by a near look, `NEAR_S` back: at the next wake-up or poll;
      start of its transaction)                                    what took longer to commit, by a full look
    a lease expired; another worker gave a job back; a row was   by a full look: every `rescan_interval_s`
      locked by somebody when it was passed; a queue goes on
    a relay may be used again; a sweep                           by a full look, asked for at once
    a person retried it                                          like a commit: its place is the moment of that

Looks back are dear where dead entries pile up: a second for 500,000 of them, once they don't fit into memory. So each kind is
bounded by time: what one look cost is earned back `SHARE` times before the next one of its kind, so that all looks of a kind
take at most a fiftieth of the time; after `LATEST_S` one is due whatever it costs. A small queue never notices that. Until a
full look may be had again a low look takes its place: from the first unfinished job of each level, which the sweeper has found
(`sql/front.sql`). Dead entries lie before that, so it is cheap; whatever was unfinished then lies behind it. So only a job that
was put before it later (a transaction of more than `FRONT_AGE_S`, an available_at long past) waits for a full look, in that
state and no other. Measured with a producer that wakes the worker all the time and 100,000 dead entries: a claim of 100 took 7
ms (median, on a busy machine), against 166 ms when each wake-up and each claim that found too little looked at everything
again.

Many levels (thousands of queues) are asked for in chunks: a claim names the next `LEVELS_A_CLAIM` that may have something, most
urgent first, and twice as many each time it finds too little. What was found empty is left out until the next look back. So with
1,000 queues a claim names 64 levels instead of 4,000. With 64 or fewer each claim names them all, and a priority is strict to the
claim; above that an urgent job may be passed by until the next look back: at once, or a little later where looks are dear.
Within a priority the queue that was served goes to the end of the row.

Tried and left: counting claims instead of time (rare looks on a busy worker, constant ones on an idle one); asking the database
for the start of its oldest transaction (only monitors may see those of others); a second index for jobs that went back (late
commits aren't marked by anybody).

No I/O and no clock: the boot-clock second comes in. What it keeps is bounded by the levels, whatever waits in them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from math import inf

from daemon.core.job import Job
from daemon.store import LAST, PRIORITIES, Level

LEVELS_A_CLAIM = 64
DOUBLINGS = 10
"""How often that is doubled, at most: 65,536 levels."""
NEAR_S = 2.0
"""How long a transaction may take from its start to its commit for its jobs to be found by a near look."""
OVERLAP_S = 0.2
"""How far a claim looks back in a level that was found empty: most transactions are no longer, and messages take their time."""
SHARE = 50.0
"""At 20 the looks of all kinds together took a tenth of the time at 500,000 dead entries, at 50 a twentieth."""
LATEST_S = 30.0

Key = tuple[str, int]


class Toll:
    """How soon a dear look may be repeated: not before its cost was earned back `SHARE` times."""

    def __init__(self) -> None:
        self.free_mono = -inf
        self._cost_s = 0.0

    def add(self, cost_s: float) -> None:
        """Note what a part of the look cost."""
        self._cost_s += cost_s

    def close(self, now_mono: float) -> None:
        """Note that the look is over."""
        self.free_mono = now_mono + min(SHARE * self._cost_s, LATEST_S)
        self._cost_s = 0.0


class Cursors:
    """The places of all levels, the order of turns, and the looks back that are wanted."""

    def __init__(self, queues: Sequence[str], *, rescan_interval_s: float, now_mono: float) -> None:
        self._rescan_interval_s = rescan_interval_s
        self._queues = tuple(queues)
        self._names_all = len(queues) * len(PRIORITIES) <= LEVELS_A_CLAIM
        self._rows = {priority: dict.fromkeys(queues) for priority in PRIORITIES}
        """Priority -> the queues in which there may be something, in the order of their turns."""
        self._places: dict[Key, Level | float] = {}
        """Behind which job a level is looked at next, or the second at which it was found empty. Without one: from the front."""
        self._late: dict[Key, float] = {}
        """Levels that are owed a near look, and since when nobody has looked there for late commits."""
        self._returned: dict[Key, Level] = {}
        """Places to go back to before the next claim: the answer of one that is under way would move them on."""
        self._fronts: dict[Key, Level] = {}
        self._near, self._low, self._full = Toll(), Toll(), Toll()
        self._wants_near, self._wants_low, self._wants_full = False, False, True
        self._near_mono = self._full_mono = now_mono
        self._under_way: Toll | None = None
        self._short_claims = 0
        self._leaves_more = False
        self.has_seen_all = False
        """Whether the last claim ended a full look by which nothing more was found."""

    def look_near(self) -> None:
        """Want a near look: something may have been committed."""
        self._wants_near = True

    def look_at_all(self, *, now: bool = False) -> None:
        """Want a full look: something may be due again, nobody knows where. With `now` whatever it costs."""
        self._wants_near = self._wants_low = self._wants_full = True
        if now:
            self._under_way, self._full.free_mono = None, -inf

    def begin_at(self, fronts: Sequence[Level]) -> None:
        """Hear before which place nothing unfinished lies in each level."""
        self._fronts = {(level.queue, level.priority): level for level in fronts}

    def front(self, queue: str, priority: int) -> Level:
        """Return the place before which nothing unfinished lies, as far as anybody has told."""
        return self._fronts.get((queue, priority)) or Level(queue, priority)

    def came_back(self, job: Job) -> None:
        """Go back to a job that is ready again at its old place."""
        self._go_back(Level(job.queue, job.priority, job.available_at, job.id - 1))

    def gave_back(self, levels: Sequence[Level], asked_mono: float) -> None:
        """Go back to where a claim began, sent at `asked_mono`, whose jobs are ready again."""
        for level in levels:
            key = (level.queue, level.priority)
            if level.after_at != LAST:
                self._go_back(level)
            if level.back_s is not None:
                self._late[key] = min(self._late.get(key, inf), asked_mono - level.back_s + NEAR_S)

    def wait_s(self, now_mono: float) -> float:
        """Return the seconds until there is somewhere to look after a claim that found too little; infinity if nowhere."""
        if self._leaves_more or self._returned:
            return 0.0
        return max(0.0, min((toll.free_mono for toll in self._wanted()), default=inf) - now_mono)

    def next(self, now_mono: float, queues: Container[str]) -> tuple[Level, ...]:
        """Return the levels that a claim of these queues names now, in order; none where nothing can be."""
        self._begin(now_mono)
        limit = len(self._rows) * len(self._queues) if self._names_all else LEVELS_A_CLAIM << self._short_claims
        levels: list[Level] = []
        self._leaves_more = False
        for priority, row in self._rows.items():
            for queue in row:
                if len(levels) == limit:
                    self._leaves_more = True
                    return tuple(levels)
                if queue in queues:
                    levels.append(self._level((queue, priority), now_mono))
        return tuple(levels)

    def answered(self, levels: Sequence[Level], jobs: Sequence[Job], *, wanted: int, asked_mono: float, now_mono: float) -> None:
        """Hear which jobs, in order, a claim of these levels found; it was sent at `asked_mono`, for so many."""
        is_short = len(jobs) < wanted
        last = None if is_short else (jobs[-1].queue, jobs[-1].priority)
        for level in levels:
            key = (level.queue, level.priority)
            self._late.pop(key, None)
            if key == last:
                self._places[key] = Level(*key, jobs[-1].available_at, jobs[-1].id)
                break
            self._places[key] = asked_mono
            if not self._names_all:
                self._rows[level.priority].pop(level.queue, None)
        for queue, priority in dict.fromkeys([(job.queue, job.priority) for job in jobs]):
            row = self._rows[priority]
            if queue in row:
                row[queue] = row.pop(queue)
        self._leaves_more = is_short and self._leaves_more
        self._short_claims = min(self._short_claims + 1, DOUBLINGS) if self._leaves_more else 0
        if self._under_way is not None:
            self._under_way.add(now_mono - asked_mono)
            if not self._leaves_more:
                self.has_seen_all = is_short and self._under_way is self._full
                self._under_way.close(now_mono)
                self._under_way = None

    def _begin(self, now_mono: float) -> None:
        """Go back to what was returned, and begin a look back if one is wanted and may be had."""
        self.has_seen_all = False
        for level in self._returned.values():
            self._retreat(level)
        self._returned.clear()
        if now_mono - self._full_mono >= self._rescan_interval_s:
            self._wants_low = self._wants_full = True
        may_be_had = (toll for toll in self._wanted() if now_mono >= toll.free_mono)
        look = next(may_be_had, None) if self._under_way is None else None
        if look is None:
            return
        self._prepare(look)
        self._under_way, self._near_mono, self._wants_near = look, now_mono, False
        if look is not self._near:
            self._wants_low, self._wants_full, self._full_mono = False, self._wants_full and look is self._low, now_mono
        if not self._names_all:
            for row in self._rows.values():
                row.update(dict.fromkeys(self._queues))

    def _prepare(self, look: Toll) -> None:
        """Move the cursors back."""
        if look is self._full:
            self._places.clear()
            self._late.clear()
        elif look is self._low:
            for level in self._fronts.values():
                self._retreat(level)
        else:
            for key in self._places:
                self._late.setdefault(key, self._near_mono)

    def _wanted(self) -> list[Toll]:
        """Return the looks back that are wanted, the furthest first."""
        looks = (
            (self._full, self._wants_full),
            (self._low, self._wants_low and bool(self._fronts)),
            (self._near, self._wants_near),
        )
        return [toll for toll, is_wanted in looks if is_wanted]

    def _retreat(self, level: Level) -> None:
        """Begin no later than there the next time."""
        key = (level.queue, level.priority)
        place = self._places.get(key)
        if isinstance(place, float) or (place is not None and _order(level) < _order(place)):
            self._places[key] = level
        self._rows[level.priority].setdefault(level.queue)

    def _go_back(self, level: Level) -> None:
        key = (level.queue, level.priority)
        if key not in self._returned or _order(level) < _order(self._returned[key]):
            self._returned[key] = level

    def _level(self, key: Key, now_mono: float) -> Level:
        place = self._places.get(key)
        if place is None:
            return Level(*key)
        late_mono = self._late.get(key)
        back_s = None if late_mono is None else now_mono - late_mono + NEAR_S
        if isinstance(place, Level):
            return place if back_s is None else Level(*key, place.after_at, place.after_id, back_s)
        empty_s = now_mono - place + OVERLAP_S
        return Level(*key, LAST, 0, empty_s if back_s is None else max(empty_s, back_s))


def _order(level: Level) -> tuple[datetime, int]:
    return level.after_at, level.after_id
