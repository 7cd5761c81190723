"""Plays one case: real daemons on a database of their own, scripted relays, and the faults that the case wants.

    play(case, databases, keys) -> Result

The run ends when what the case expects can be judged: all jobs are finished, or (where the case is about putting off) each has
been tried once. Where a case goes on after a wait of minutes, the wait is skipped: the job's row is made due. A daemon that has
ended is followed by another, as by a supervisor. When it is over the daemons are killed, or drained where the case is about that;
so nothing is sent after what was judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from tests.conformance import behaviour, world
from tests.conformance.behaviour import REFUSED, Plan
from tests.conformance.book import Book, Row
from tests.conformance.casefile import CannotExpressError, Case
from tests.conformance.fleet import Fleet
from tests.conformance.jobs import Work, work
from tests.conformance.result import Result
from tests.conformance.scene import LOOK_S, Scene, until
from tests.conformance.world import Keys
from tests.support.database import Databases
from tests.support.process import ROOT, agree, configuration
from tests.support.proxy import Proxy

HORIZON_S = 30.0
UNTOLD_S = 0.3
"""Between two looks into the database while nobody says anything: a sweep says nothing before it is done."""
FOLLOW_UP_S = 5.0
MOST_SKIPS = 12
CONFIGURATION_EXIT = 78

FINAL = frozenset({"sent", "rejected", "invalid", "in_doubt", "dead", "cancelled", "expired"})


async def play(case: Case, databases: Databases, keys: Keys) -> Result:
    """Run a case to its end.

    Raises:
        CannotExpressError: the case says something without a meaning here.
        ExceptionGroup: the run itself broke.
    """
    plan, todo = _understood(case)
    for relay in plan.relays:
        relay.tls = "implicit" if todo.relay.get("tls") == "implicit" else relay.tls
    contexts = [keys.server(relay.certificate) if relay.tls != "none" else None for relay in plan.relays]
    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailslot-case-")))
        database = await stack.enter_async_context(databases.fresh())
        places = [
            await stack.enter_async_context(world.placed(relay, f"relay{number}", tls, tasks))
            for number, (relay, tls) in enumerate(zip(plan.relays, contexts, strict=True), 1)
        ]
        link = await stack.enter_async_context(Proxy.to_database(database.dsn))
        sections = configuration(link.dsn, places[0].relay.port, world.sections(plan, todo, places, keys))
        await agree(database, sections)
        environment = world.environment(todo, places, ROOT)
        scene = Scene(case, plan, todo, places, await database.connect(), link, folder, sections, environment)
        fleet = Fleet(scene)
        stack.push_async_callback(fleet.close)
        return await _Run(scene, fleet, Book(scene, fleet)).played()
    raise AssertionError("a task group ends by its body or by an exception")


def _understood(case: Case) -> tuple[Plan, Work]:
    try:
        plan = behaviour.plan(case)
        return plan, work(case, large=plan.needs_large_body)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise CannotExpressError(f"with a value of this shape ({error!r})") from error


class _Run:
    """The story of one run."""

    def __init__(self, scene: Scene, fleet: Fleet, book: Book) -> None:
        self._scene = scene
        self._case = scene.case
        self._fleet = fleet
        self._book = book
        self._skips = 0
        self._skipped_at = 0

    async def played(self) -> Result:
        if self._scene.plan.idle_s is None:
            await self._book.enqueue_all()
            await self._fleet.start_into(self._scene.plan.happenings)
        else:
            await self._fleet.start_into(self._scene.plan.happenings)
            await self._book.finished(await self._book.enqueue_apart("before@conformance.example"))
            await asyncio.sleep(self._scene.plan.idle_s)
            await self._book.enqueue_all()
        for fault in self._scene.plan.happenings:
            await self._fleet.befall(fault)
        await self._watch()
        connection = await self._fate_of_connection() if "connection" in self._case.expected else None
        await self._fleet.end()
        return Result(
            jobs=await self._book.results(),
            relays=self._scene.relays,
            daemons=[*self._fleet.all],
            stored=self._book.stored(),
            connection=connection,
            paused=bool(self._fleet.lines("relay.paused")),
            lost=bool(self._fleet.lines("relay.lost")),
            refused_to_start=any(daemon.exit_code == CONFIGURATION_EXIT for daemon in self._fleet.all),
        )

    async def _watch(self) -> None:
        """Wait until the case can be judged, or until it is clear that it never will be."""
        until_mono = time.monotonic() + HORIZON_S
        heard, look_mono = -1, 0.0
        while time.monotonic() < until_mono and not self._fleet.has_given_up:
            lines = sum(len(daemon.lines) for daemon in self._fleet.all)
            if lines != heard or time.monotonic() > look_mono:
                heard, look_mono = lines, time.monotonic() + UNTOLD_S
                if await self._is_judgeable():
                    return
            await self._fleet.follow_ended()
            await asyncio.sleep(LOOK_S)

    async def _is_judgeable(self) -> bool:
        rows = await self._book.rows()
        if any(row["is_leased"] for row in rows):
            return False
        if all(row["outcome"] is not None for row in rows):
            return True
        conclusions = self._book.conclusions(rows)
        all_tried = all(conclusions.values())
        wanted = self._case.wanted[0]
        if self._book.stored() >= self._case.expected.get("server_accepts", 0):
            if wanted not in FINAL:
                shut = bool(self._fleet.lines("relay.paused") or self._fleet.lines("relay.lost"))
                return all_tried or (shut and (any(conclusions.values()) or wanted == "pause_transport"))
            if wanted == "sent" and not self._case.needs_all and all_tried:
                return True
        return await self._skip(rows, sum(len(each) for each in conclusions.values()))

    async def _skip(self, rows: list[Row], concluded: int) -> bool:
        """Make the wait of put-off jobs short; True when that has been done often enough and nothing came of it."""
        if concluded > self._skipped_at and all(row["waits"] for row in rows if row["outcome"] is None):
            self._skips += 1
            self._skipped_at = concluded
            await self._book.make_due()
        return self._skips > MOST_SKIPS

    async def _fate_of_connection(self) -> str | None:
        """See whether the next mail uses the connection of the case's last one."""
        relay = next((relay for relay in self._scene.relays if relay.connections), None)
        if relay is None or not self._fleet.live:
            return None
        commands = relay.events.of("command")
        number = commands[-1]["connection"] if commands else relay.connections
        if self._scene.plan.asks_for_reset:  # only after a refusal is there a reason to say RSET
            await self._book.finished(await self._book.enqueue_apart(REFUSED))
        before = len(relay.events.of("command", stage="mail"))
        await self._book.enqueue_apart("after@conformance.example")

        def closed() -> bool:
            return bool(relay.events.of("closed", connection=number))

        await until(lambda: closed() or len(relay.events.of("command", stage="mail")) > before, FOLLOW_UP_S)
        mails = relay.events.of("command", stage="mail")[before:]
        if closed():
            return "discard"
        return None if not mails else "reuse" if mails[-1]["connection"] == number else "discard"
