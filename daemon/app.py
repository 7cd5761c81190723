"""The composition root: what the worker is made of, how it starts, and how it stops. Read from top to bottom.

Boot: logs -> signals -> database there and right -> loops -> first heartbeat answered -> READY.
Drain (`daemon.drain`): claim no more -> hand back -> wait -> record -> stop the heartbeat -> close SMTP -> close the pool.

All tasks live in the TaskGroups here. A loop that ends by a surprise ends the process: what we hold is then taken over by others
when its lease expires, which is safer than going on without a heartbeat or a recorder.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

import structlog

from daemon import __version__, boot, handlers, logs, parts
from daemon.allowance import Allowances
from daemon.attempt import MailAttempt
from daemon.batch import Batch, Turn
from daemon.bell import Bell
from daemon.claimer import Claimer
from daemon.composer import Composer
from daemon.core.rules import table
from daemon.core.settings import Problem, Settings
from daemon.drain import Drain
from daemon.fence import Interrupts, Means
from daemon.heartbeat import Heartbeat
from daemon.loop import new_event_loop
from daemon.notify import Notifier
from daemon.ports import Ports
from daemon.recorder import Recorder
from daemon.session import Identity, Session
from daemon.slot import Slot
from daemon.slots import Held
from daemon.smtp.relays import Relays
from daemon.store import Store
from daemon.sweeper import Sweeper
from daemon.watch import Watch, give_up_on_relays

DRAINED, UNAVAILABLE, UNFINISHED = 0, 69, 75
ONCE_STARTUP_S = 30.0
YOUNG_OBJECTS = 10_000
"""Objects made before the collector looks among them. A mail leaves next to nothing to it, and looking after each 700, the
interpreter's number, took 7 % of what an attempt costs."""

log = structlog.get_logger("mailslot.app")


def run(settings: Settings, *, once: bool, problems: Sequence[Problem] = ()) -> int:
    """Run the worker until it has drained, or with `once` until nothing is due; returns its exit code.

    `problems` is what is wrong with the settings themselves. Raises MailslotError for what must be put right before it can start.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to read again: its default is the end
    logs.configure(settings.log, stream=sys.stdout)
    made_of = parts.load(settings, os.environ, problems)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_run(settings, made_of, once=once))
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


async def _run(settings: Settings, made_of: parts.Parts, *, once: bool) -> int:
    worker = Worker(settings, made_of, Ports(), once=once)
    structlog.contextvars.bind_contextvars(owner=worker.identity.owner)  # tasks begun from here on say who speaks
    gc.freeze()  # what was imported stays: the collector need never look at it again
    gc.set_threshold(YOUNG_OBJECTS)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.drain.request)
    loop.add_signal_handler(signal.SIGHUP, worker.library.reload)
    try:
        return await worker.serve() if await worker.boot() else DRAINED
    finally:
        worker.relays.close()
        worker.store.close()
        for number in (signal.SIGTERM, signal.SIGINT):  # the drain is over; nothing that comes now changes the exit code
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


class Worker:
    """One process: its parts, and the order in which they run."""

    def __init__(self, settings: Settings, made_of: parts.Parts, ports: Ports, *, once: bool = False) -> None:
        host = socket.gethostname()
        self.settings = settings
        self.once = once
        self.ports = ports
        self.notifier = Notifier(os.environ)
        self.identity = Identity(
            key=ports.token().int >> 66,
            owner=f"{settings.worker.name or host}:{os.getpid()}",
            host=host,
            pid=os.getpid(),
            version=__version__,
            concurrency=settings.worker.concurrency,
        )
        self.store = Store(settings, self.identity.owner, ports)
        self.held = Held(settings.worker.concurrency)
        self.heartbeat = Heartbeat(settings, self.held, self.store, ports)
        rules = table(settings.rule, settings.retry)
        self.relays = Relays(settings.relay, boottime_s=ports.boottime_s, chance=ports.number, rules=rules)
        allowances = Allowances(
            self.relays, settings.worker.queues, self.store.take, ports.boottime_s, mail_only=not made_of.functions
        )
        turn = Turn()
        self.claimer = Claimer(
            settings,
            self.store,
            ports,
            may_claim=lambda: self.heartbeat.healthy,
            allowances=allowances,
            bell=Bell(self.store.arm, ports.boottime_s, listens=settings.worker.listen and not once),
            turn=turn,
            once=once,
        )
        self.drain = Drain(settings.worker, self.held, self.claimer, self.notifier)
        self.marks = Batch(self.store.mark, turn)
        self.recorder = Recorder(self.store, ports, turn, reconnect_max_s=settings.database.reconnect_max_s)
        self.sweeper = Sweeper(
            settings,
            self.store,
            ports,
            on_swept=self.claimer.look_behind,
            on_front=self.claimer.front,
        )
        self.session = Session(settings, self.identity, on_wake=self.claimer.rung, on_lost=self.heartbeat.hurry)
        self.watch = Watch(settings, self.claimer, self.heartbeat, self.held, ports)
        self.library = made_of.library
        composer = Composer(settings.mail, self.library, made_of.signer)
        self.means = Means(
            settings,
            self.relays,
            Interrupts(ports.boottime_s),
            mark=self.marks.ask,
            payload=self.store.payload,
            compose=composer,
            recorder_sick=lambda: self.recorder.sick,
            permit=allowances.renew,
            ports=ports,
        )
        self.attempts: dict[str, handlers.Attempt] = {
            "email": MailAttempt(self.means),
            **{kind: handlers.FunctionAttempt(self.means, function) for kind, function in made_of.functions.items()},
        }
        self.heartbeat.on_recovered = self.claimer.recovered
        self.heartbeat.on_ready = self.announce
        self.relays.on_change = self.claimer.wake

    async def boot(self) -> bool:
        """Wait for the database, or for a signal; returns whether to go on."""
        timeout_s = self.settings.database.startup_timeout_s or (ONCE_STARTUP_S if self.once else 0.0)
        self.notifier.status("waiting for the database")
        async with asyncio.TaskGroup() as tasks:
            check: asyncio.Future[Any] = tasks.create_task(boot.ready(self.store, self.settings, self.ports, timeout_s=timeout_s))
            await asyncio.wait({check, self.drain.begun}, return_when=asyncio.FIRST_COMPLETED)
            check.cancel()
        return not check.cancelled()

    def announce(self) -> None:
        """Say that the worker works: its database is right, and its first heartbeat was answered."""
        worker = self.settings.worker
        log.info(
            "daemon.ready",
            version=__version__,
            concurrency=worker.concurrency,
            queues=worker.queues,
        )
        if not self.settings.mail.from_:
            log.warning("sender.missing", hint="mail.from is empty: a job without a from of its own will be dead")
        self.notifier.ready("working")

    async def serve(self) -> int:
        """Work until drained; returns the exit code. The heartbeat is stopped last."""
        async with asyncio.TaskGroup() as tasks:
            claiming = tasks.create_task(self.claimer.run())
            loops = [
                tasks.create_task(loop)
                for loop in (
                    self.marks.run(),
                    self.recorder.run(),
                    self.sweeper.run(),
                    self.relays.run(),
                    self.library.run(),
                    self.watch.run(self.notifier),
                    self.heartbeat.run(self.session),
                )
            ]
            impatience = tasks.create_task(give_up_on_relays(lambda: not self.claimer.held_up, self.drain.request, self.ports))
            slots = {
                tasks.create_task(Slot(self.means, self.held, self.claimer, self.recorder, self.attempts).run())
                for _ in range(self.settings.worker.concurrency)
            }
            finished = await self.drain.run(slots, claiming)
            for task in (*loops, impatience):
                task.cancel()
        await self.session.leave()
        log.info("daemon.stopped", finished=finished)
        if not finished:
            return UNFINISHED
        return DRAINED if impatience.cancelled() else UNAVAILABLE
