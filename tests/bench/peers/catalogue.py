"""Which other queues are measured, and with which settings: for each the best that was found, so that nobody can call it unfair.

Everybody gets uvloop, a loopback name for EHLO that needs no resolver, no log lines, tables that were vacuumed and analysed after
the jobs went in, one process. Every peer's guarantees stay on. Tried, with what it brought on two cores that others used too
(jobs/s, a handler that does nothing):

pgqueuer: without `max_concurrent_tasks` 15,000 in place of 12,700, so the best setting has none; batches of 500 did better than
    250 or 1,000 by a few percent; a pool of 4 connections in place of one made it slower, 8,400 to 5,800 at 50 tasks. With mails,
    batches of a fifth of the tasks; half, the most that it allows, changed nothing beyond the noise.
procrastinate: a worker fetches one job at a time, one after the other, so it never has more than a handful running, whatever
    its concurrency. Four workers in one process fetch side by side: 800 to 930 in place of 640; eight or ten brought no more.
    Deleting finished jobs in place of keeping them: 640 in place of 380.
chancy: two of its default plugins, metrics and workflows, look at each finished job; without them 8,700 in place of 4,200.
    Leadership, recovery and pruning stay. Outcomes are written each 0.1 s in place of each second, or the last second would count
    against it; each 0.02 s brought no more. Polling again as soon as a job is done (`eager_polling`) is a must: without it there
    is one batch a second. Its queue `default`, which every worker opens, gets no processes of its own.
oban: orjson for payloads, as its own command line sets it; 500 slots and 20 ms between fetches brought 3,200, as much as 200 and
    5 ms. It slows down with the jobs done since the last vacuum (2,100 over 10,000), so it gets 5,000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Way:
    """How a peer is set up for one scene."""

    settings: Mapping[str, Any]
    """For `work` of the peer's script."""
    words: str
    """The same for people, as far as it differs from scene to scene."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One of the bench's scenes, as far as peers take part in it."""

    name: str
    concurrency: int | None
    """How many jobs may run at once; None where that is part of the best setting."""
    modes: Mapping[str, str]
    """What a handler does, by the word of the script, with words for people."""
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue."""

    name: str
    """Its distribution; its script is peer_NAME.py, its packages are those of requirements/NAME.txt."""
    way: Callable[[Scene], Way]
    """Its settings for a scene."""
    unfinished: str
    """A query that is true while a job isn't recorded as done."""
    done: str
    """A query that counts the jobs recorded as done; where they are deleted, those that are left are subtracted."""
    mails: int
    """How many mails a repeat has: a few seconds' worth."""
    nothings: int
    """How many jobs a repeat has whose handler does nothing; so many also when the bench is quick."""
    python: tuple[int, int] = OLDEST_PYTHON

    @property
    def requirements(self) -> Path:
        """The file that names each package of its environment with an exact version."""
        return FOLDER / "requirements" / f"{self.name}.txt"

    @property
    def title(self) -> str:
        """Its name and version."""
        return title_of(self.name, self.requirements.read_text(encoding="utf-8"))


MAILING = {"fresh": "a connection for each mail", "reused": "reused connections"}
NOTHING = {"noop": ""}
SCENES = (
    Scene("smtp-10", 10, MAILING),
    Scene("smtp-50", 50, MAILING),
    Scene("smtp-50ms-200", 200, MAILING, delay_ms=50.0),
    Scene("noop-50", 50, NOTHING),
    Scene("noop-best", None, NOTHING),
)
PICKUP = Scene("pickup", 10, NOTHING)


def title_of(name: str, requirements: str) -> str:
    """Return a distribution's name and the version that its requirements ask for."""
    pins = dict(line.split("==") for line in requirements.splitlines() if "==" in line and not line.startswith("#"))
    return f"{name} {pins[name]}"


def pgqueuer(scene: Scene) -> Way:
    """Set up pgqueuer. A batch may be at most half of its tasks."""
    if scene.concurrency is None:
        return Way({"batch": 500, "limit": 0, "connections": 0}, "batches of 500, no limit of tasks")
    batch = scene.concurrency // (5 if scene.modes is MAILING and scene.concurrency > 10 else 2)
    settings = {"batch": batch, "limit": scene.concurrency, "connections": 0}
    return Way(settings, f"batches of {batch}, {scene.concurrency} tasks")


def procrastinate(scene: Scene) -> Way:
    """Set up procrastinate: several workers in the process, since each fetches one job at a time."""
    slots = scene.concurrency or 20
    workers = 4 if slots >= 20 else 2
    each = -(-slots // workers)
    settings = {"workers": workers, "slots": each, "connections": 10, "delete": True}
    return Way(settings, f"{workers} workers of {each}, finished jobs deleted")


def chancy(scene: Scene) -> Way:
    """Set up chancy."""
    slots = scene.concurrency or 2_000
    settings = {"slots": slots, "flush_s": 0.1, "eager": True, "all_plugins": False}
    return Way(settings, f"{slots} slots, eager, outcomes each 0.1 s, no metrics")


def oban(scene: Scene) -> Way:
    """Set up Oban."""
    slots, debounce_s = (scene.concurrency, 0.005) if scene.concurrency else (500, 0.02)
    settings = {"slots": slots, "connections": 10, "debounce_s": debounce_s}
    return Way(settings, f"{slots} slots, fetches {debounce_s * 1000:g} ms apart")


PEERS = (
    Peer(
        "pgqueuer",
        pgqueuer,
        unfinished="SELECT EXISTS (SELECT FROM pgqueuer)",
        done="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        mails=3_000,
        nothings=20_000,
    ),
    Peer(
        "procrastinate",
        procrastinate,
        unfinished="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        done="SELECT (SELECT last_value FROM procrastinate_jobs_id_seq) - (SELECT count(*) FROM procrastinate_jobs)",
        mails=1_500,
        nothings=2_000,
    ),
    Peer(
        "chancy",
        chancy,
        unfinished="SELECT EXISTS (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))",
        done="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
        mails=3_000,
        nothings=10_000,
    ),
    Peer(
        "oban",
        oban,
        unfinished="SELECT EXISTS (SELECT FROM oban_jobs WHERE state <> 'completed')",
        done="SELECT count(*) FROM oban_jobs WHERE state = 'completed'",
        mails=3_000,
        nothings=5_000,
        python=(3, 12),
    ),
)
