"""A message that makes a relay drop the connection waits longer each time, and blames the relay once."""

from __future__ import annotations

from daemon.core.retry import dropped_s
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.core.verdicts import decide
from daemon.smtp.drops import Drops
from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.relay import ScriptedRelay

DROPPED = Report("relay", Stage.RCPT, Fault.CLOSED)
SENT = Report("relay", Stage.DOT, Reply(250, "2.0.0", "ok"))
AWAY = Report("relay", Stage.CONNECT, Fault.REFUSED)


def test_drops_are_counted_for_each_job_until_it_comes_further() -> None:
    """In a row, by job; a relay that is away, and any answer, begin the count anew."""
    drops = Drops()

    def counted(job_id: int, report: Report) -> int:
        return drops.count(job_id, report, decide(report))

    assert [counted(1, DROPPED), counted(1, DROPPED), counted(2, DROPPED), counted(1, DROPPED)] == [1, 2, 1, 3]
    assert [counted(1, SENT), counted(1, DROPPED)] == [0, 1]
    assert [counted(2, AWAY), counted(2, DROPPED)] == [0, 1]


def test_a_thousand_jobs_are_remembered_and_no_more() -> None:
    """The oldest is forgotten, which costs it a shorter pause."""
    drops = Drops()
    for job_id in range(1_001):
        drops.count(job_id, DROPPED, decide(DROPPED))
    assert drops.count(0, DROPPED, decide(DROPPED)) == 1
    assert drops.count(1_000, DROPPED, decide(DROPPED)) == 2


def test_the_pause_after_a_drop_doubles_up_to_a_minute() -> None:
    """One second first; a million drops overflow nothing."""
    assert [dropped_s(times) for times in (1, 2, 3, 6, 7, 10**6)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


ENQUEUE = """SELECT id FROM mailslot.enqueue(jsonb_build_object('to', $1::text, 'subject', 'x', 'text', 'y'))"""


async def test_a_message_that_the_relay_drops_takes_the_relay_from_nobody(database: Database, start_daemon: StartDaemon) -> None:
    """One recipient at whose RCPT the relay closes: its neighbours are sent, the relay is never given up, its pauses grow."""
    script = {"rcpt": {"drop@example.org": {"reply": None, "then": "close"}, "*": "250 2.1.5 Ok"}}
    async with ScriptedRelay(script) as relay:
        daemon = await start_daemon(database, relay.port)
        drop = await database.fetchval(ENQUEUE, "drop@example.org")
        pauses: list[float] = []
        for _ in range(3):
            line = await daemon.event("job.released", job_id=drop, retry_in_s=2.0 ** len(pauses))
            pauses.append(line["retry_in_s"])
            await daemon.event("job.sent", job_id=await database.fetchval(ENQUEUE, "ann@example.org"))
        assert pauses == [1.0, 2.0, 4.0]
        assert not [line for line in daemon.lines if line["event"] in {"relay.lost", "relay.paused"}]
