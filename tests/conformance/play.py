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
import json
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

from tests.conformance import behaviour, limits, world
from tests.conformance.behaviour import REFUSED, Plan
from tests.conformance.casefile import Case
from tests.conformance.happening import DOT, MARK, START, Happening, What
from tests.conformance.jobs import Work, work
from tests.conformance.result import Conclusion, JobResult, Result
from tests.conformance.world import Keys, Place
from tests.support.database import Database, Databases
from tests.support.process import READY, ROOT, Daemon, agree, configuration
from tests.support.proxy import Proxy

HORIZON_S = 30.0
MOMENT_S = 20.0
"""How long the moment of a fault is waited for."""
LOOK_S = 0.02
UNTOLD_S = 0.3
"""Between two looks into the database while nobody says anything: a sweep and a release say it before they are done."""
FOLLOW_UP_S = 5.0
MOST_SKIPS = 12
CONFIGURATION_EXIT = 78

FINAL = frozenset({"sent", "rejected", "invalid", "in_doubt", "dead", "cancelled", "expired"})

ENQUEUE = """SELECT id FROM mailslot.enqueue(payload => $1, expires_at => now() + make_interval(secs => $2){options})"""
ROWS = """
SELECT id, uid, outcome, attempt, crashes, doubts, reason, relay, reply, recipients::text AS recipients, lease_token IS NOT NULL
       AND outcome IS NULL AND lease_owner <> 'another' AS is_leased, available_at > now() + interval '0.05 s' AS waits, available_at - now() AS wait
FROM mailslot.jobs WHERE id = ANY($1) ORDER BY id
"""
MAKE_DUE = "UPDATE mailslot.jobs SET available_at = now() WHERE outcome IS NULL AND lease_token IS NULL AND available_at > now()"
TAKE_OVER = """
UPDATE mailslot.jobs SET lease_token = gen_random_uuid(), lease_owner = 'another', marked_at = NULL,
       leased_at = clock_timestamp(), lease_expires_at = clock_timestamp() + make_interval(secs => $1)
WHERE outcome IS NULL AND lease_token IS NOT NULL
"""


async def play(case: Case, databases: Databases, keys: Keys) -> Result:
    """Run a case to its end.

    Raises:
        CannotExpressError: the case says something without a meaning here.
        ExceptionGroup: the run itself broke.
    """
    plan = behaviour.plan(case)
    todo = work(case, large=plan.needs_large_body)
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
        connection = await database.connect()
        run = _Run(case, plan, todo, places, database, connection, link, folder, keys)
        stack.push_async_callback(run.close)
        return await run.played()
    raise AssertionError("a task group ends by its body or by an exception")


class Worker(Daemon):
    """A daemon of a run."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._transport.get_returncode() if self._transport is not None else None


class _Run:
    """The state of one run."""

    def __init__(
        self,
        case: Case,
        plan: Plan,
        todo: Work,
        places: list[Place],
        database: Database,
        connection: asyncpg.Connection,
        link: Proxy,
        folder: Path,
        keys: Keys,
    ) -> None:
        self._case = case
        self._plan = plan
        self._work = todo
        self._places = places
        self._database = database
        self._connection = connection
        self._link = link
        self._folder = folder
        self._sections = configuration(link.dsn, places[0].relay.port, world.sections(plan, todo, places, keys))
        self._environment = world.environment(places, ROOT)
        self._relays = [place.relay for place in places]
        self._daemons: list[Worker] = []
        self._live: list[Worker] = []
        self._ids: list[int] = []
        self._payloads: list[str] = []
        self._refused: list[str] = []
        self._uids: set[str] = set()
        self._foreign: set[str] = set()
        """Message-IDs' uids of the mails that aren't the case's."""
        self._skips = 0
        self._skipped_at = 0
        self._killed = False

    async def played(self) -> Result:
        await agree(self._database, self._sections)
        if self._plan.idle_s is not None:
            await self._start()
            await self._warm_up()
            await self._enqueue_all()
        else:
            await self._enqueue_all()
            await self._happen_first()
        for fault in self._plan.happenings:
            await self._happen(fault)
        await self._watch()
        connection = await self._fate_of_connection() if "connection" in self._case.expected else None
        await self._end()
        return await self._result(connection)

    async def close(self) -> None:
        """End what still runs."""
        for daemon in self._daemons:
            await daemon.close()

    # Daemons and jobs.

    async def _start(self, *, waits: bool = True) -> None:
        for _ in range(self._plan.workers):
            daemon = await Worker.start(self._folder, self._sections, (), self._environment)
            self._daemons.append(daemon)
            self._live.append(daemon)
        if waits:
            for daemon in self._live:
                await self._until(lambda daemon=daemon: bool(daemon.events(READY)) or daemon.is_over, MOMENT_S)  # type: ignore[misc]

    async def _enqueue(self, payload: str, **options: Any) -> tuple[int, str]:  # noqa: ANN401  enqueue's own
        named = "".join(f", {name} => ${place}" for place, name in enumerate(options, 3))
        identity = await self._connection.fetchval(
            ENQUEUE.format(options=named), payload, self._work.expires_in_s, *options.values()
        )
        return identity, str(await self._connection.fetchval("SELECT uid FROM mailslot.jobs WHERE id = $1", identity))

    async def _enqueue_all(self) -> None:
        for payload in self._work.payloads:
            try:
                identity, uid = await self._enqueue(payload, **self._work.options)
            except asyncpg.DataError:
                self._refused.append(payload)
                continue
            self._payloads.append(payload)
            self._ids.append(identity)
            self._uids.add(uid)

    async def _send_apart(self, to: str) -> int:
        payload = {"from": "team@example.org", "to": [to], "subject": "Apart", "text": "Not the case's own.\n"}
        identity, uid = await self._enqueue(json.dumps(payload))
        self._foreign.add(uid)
        return identity

    async def _warm_up(self) -> None:
        """Let a mail go before, and its connection be idle for as long as the case says."""
        identity = await self._send_apart("before@conformance.example")
        await self._until_finished(identity)
        assert self._plan.idle_s is not None
        await asyncio.sleep(self._plan.idle_s)

    async def _until_finished(self, identity: int) -> None:
        query = "SELECT outcome IS NOT NULL FROM mailslot.jobs WHERE id = $1"
        await self._until_so(lambda: self._connection.fetchval(query, identity), MOMENT_S)

    # Faults.

    async def _happen_first(self) -> None:
        """Start the daemons, with the moments of all faults prepared."""
        for fault in self._plan.happenings:
            if fault.moment == START and fault.what in {What.OUTAGE, What.CUT}:
                await self._link.go_away()
            elif fault.moment not in {START, MARK}:
                for relay in self._relays:
                    relay.hold(fault.moment)
        self._marks = [self._link.trap("mark") for fault in self._plan.happenings if fault.moment == MARK]
        await self._start(waits=not any(fault.moment == START for fault in self._plan.happenings))

    async def _happen(self, fault: Happening) -> None:
        if fault.moment == MARK:
            await self._marks[0].sprung()
        elif fault.moment != START:
            await self._until(lambda: self._has_reached(fault.moment), MOMENT_S)
        match fault.what:
            case What.KILL:
                await self._kill()
            case What.DRAIN:
                await self._drain()
            case What.FREEZE:
                await self._freeze(fault.lasts_s)
            case What.TAKEOVER:
                await self._connection.execute(TAKE_OVER, 1.9 * self._sections["lease"]["duration_s"])
            case What.CUT:
                self._link.cut()
            case What.OUTAGE:
                await self._outage(fault)
        self._let_go(fault)

    def _let_go(self, fault: Happening) -> None:
        for relay in self._relays:
            relay.release(fault.moment)
        for mark in self._marks if fault.moment == MARK else ():
            mark.release()

    def _has_reached(self, moment: str) -> bool:
        return any(relay.events.of("command", stage=moment) for relay in self._relays)

    async def _kill(self) -> None:
        self._killed = True
        for daemon in self._live:
            daemon.kill()
            await daemon.stopped()
        self._live.clear()

    async def _drain(self) -> None:
        for daemon in self._live:
            daemon.signal(signal.SIGTERM)
        for daemon in self._live:
            await self._until(lambda daemon=daemon: bool(daemon.events("drain.begun")) or daemon.is_over, MOMENT_S)  # type: ignore[misc]

    async def _freeze(self, lasts_s: float) -> None:
        for daemon in self._live:
            daemon.signal(signal.SIGSTOP)
        await asyncio.sleep(lasts_s)
        for daemon in self._live:
            daemon.signal(signal.SIGCONT)

    async def _outage(self, fault: Happening) -> None:
        if fault.moment != START:
            await self._link.go_away()
        self._let_go(fault)
        await asyncio.sleep(fault.lasts_s)
        await self._link.come_back()

    # Watching.

    async def _watch(self) -> None:
        """Wait until the case can be judged, or until it is clear that it never will be."""
        until_mono = time.monotonic() + HORIZON_S
        heard, look_mono = -1, 0.0
        while time.monotonic() < until_mono and not self._given_up:
            lines = sum(len(daemon.lines) for daemon in self._daemons)
            if lines != heard or time.monotonic() > look_mono:
                heard, look_mono = lines, time.monotonic() + UNTOLD_S
                if await self._is_judgeable():
                    return
            await self._follow_ended()
            await asyncio.sleep(LOOK_S)

    async def _follow_ended(self) -> None:
        """Start another daemon where one has ended by a fault, as a supervisor does."""
        over = [daemon for daemon in self._live if daemon.is_over]
        self._live = [daemon for daemon in self._live if daemon not in over]
        if not self._live and len(self._daemons) < 4 * self._plan.workers and not self._given_up:
            await self._start()

    @property
    def _given_up(self) -> bool:
        return not self._plan.happenings and any(daemon.is_over for daemon in self._daemons)

    async def _is_judgeable(self) -> bool:
        rows = await self._rows()
        if any(row["is_leased"] for row in rows):
            return False
        if all(row["outcome"] is not None for row in rows):
            return True
        conclusions = self._conclusions(rows)
        all_tried = all(conclusions.values())
        wanted, expected = self._case.wanted[0], self._case.expected
        enough = self._stored() >= expected.get("server_accepts", 0)
        if wanted not in FINAL and enough:
            shut = bool(self._lines("relay.paused") or self._lines("relay.lost"))
            return all_tried or (shut and (any(conclusions.values()) or wanted == "pause_transport"))
        if wanted == "sent" and not self._case.needs_all and all_tried and enough:
            return True
        return await self._skip(rows, sum(len(each) for each in conclusions.values()))

    async def _skip(self, rows: list[dict[str, Any]], concluded: int) -> bool:
        """Make the wait of put-off jobs short; True when that has been done often enough and nothing came of it."""
        waits = all(row["waits"] for row in rows if row["outcome"] is None)
        if waits and concluded > self._skipped_at:
            self._skips += 1
            self._skipped_at = concluded
            await self._connection.execute(MAKE_DUE)
        return self._skips > MOST_SKIPS

    async def _rows(self) -> list[dict[str, Any]]:
        found = await self._connection.fetch(ROWS, self._ids)
        return [{**row, "recipients": json.loads(row["recipients"] or "null")} for row in found]

    def _lines(self, event: str) -> list[dict[str, Any]]:
        return [line for daemon in self._daemons for line in daemon.events(event)]

    def _conclusions(self, rows: list[dict[str, Any]]) -> dict[int, list[Conclusion]]:
        found: dict[int, list[Conclusion]] = {row["id"]: [] for row in rows}
        for row in rows:
            if self._killed and row["crashes"]:
                outcome = "in_doubt" if row["doubts"] else "retry_free"
                found[row["id"]].append(Conclusion(outcome, int(bool(row["doubts"])), {}))
        for daemon in self._daemons:
            for line in daemon.lines:
                conclusion = _conclusion(line)
                if conclusion is not None and line.get("job_id") in found:
                    found[line["job_id"]].append(conclusion)
        return found

    def _stored(self) -> int:
        messages = [message for relay in self._relays for message in relay.messages]
        return sum(not any(uid in message.message_id for uid in self._foreign) for message in messages)

    # The end.

    async def _fate_of_connection(self) -> str | None:
        """See whether the next mail uses the connection of the case's last one."""
        used = [relay for relay in self._relays if relay.connections]
        if not used or not self._live:
            return None
        relay = used[0]
        number = relay.events.of("command")[-1]["connection"] if relay.events.of("command") else relay.connections
        if self._plan.asks_for_reset:
            await self._until_finished(await self._send_apart(REFUSED))
        before = len(relay.events.of("command", stage="mail"))
        await self._send_apart("after@conformance.example")
        await self._until(
            lambda: bool(relay.events.of("closed", connection=number)) or len(relay.events.of("command", stage="mail")) > before,
            FOLLOW_UP_S,
        )
        if relay.events.of("closed", connection=number):
            return "discard"
        mails = relay.events.of("command", stage="mail")[before:]
        return None if not mails else "reuse" if mails[-1]["connection"] == number else "discard"

    async def _end(self) -> None:
        for daemon in self._live:
            if self._plan.drains:
                await daemon.stop()
            else:
                daemon.kill()
                await daemon.stopped()

    async def _result(self, connection: str | None) -> Result:
        rows = await self._rows()
        conclusions = self._conclusions(rows)
        codes = [daemon.exit_code for daemon in self._daemons]
        return Result(
            jobs=[
                *(JobResult(row, payload, conclusions[row["id"]]) for row, payload in zip(rows, self._payloads, strict=True)),
                *(JobResult(None, payload) for payload in self._refused),
            ],
            relays=self._relays,
            daemons=[*self._daemons],
            stored=self._stored(),
            connection=connection,
            paused=bool(self._lines("relay.paused")),
            lost=bool(self._lines("relay.lost")),
            refused_to_start=CONFIGURATION_EXIT in codes,
        )

    async def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        async def so() -> bool:
            return condition()

        await self._until_so(so, within_s)

    async def _until_so(self, condition: Callable[[], Awaitable[bool]], within_s: float) -> None:
        until_mono = time.monotonic() + within_s
        while not await condition() and time.monotonic() < until_mono:
            await asyncio.sleep(LOOK_S)


def _conclusion(line: dict[str, Any]) -> Conclusion | None:
    """Read from one line of the log what an attempt meant."""
    attempt = int(line.get("attempt", 1))
    match line["event"]:
        case "job.sent":
            return Conclusion("sent", attempt - 1, line)
        case "job.released":
            return Conclusion("retry_free", attempt - 1, line)
        case "outcome.stale" if line.get("verdict") == "free":
            return Conclusion("retry_free", attempt - 1, line)
        case "job.deferred":
            return Conclusion("retry", attempt, line)
        case "job.in_doubt" | "attempt.in_doubt":
            return Conclusion("in_doubt", attempt, line)
        case "job.dead":
            return Conclusion("invalid" if line.get("relay") is None else "rejected", attempt, line)
        case "job.cancelled":
            return Conclusion("cancelled", attempt, line)
        case _:
            return None
