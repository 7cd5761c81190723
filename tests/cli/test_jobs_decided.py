"""`mailslot jobs retry and resolve`: what a person decided about a job that is finished, and who was quicker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta

import pytest

from daemon.cli import jobs
from daemon.cli.session import Row, Session
from daemon.database import statement
from tests.cli.conftest import Mailslot
from tests.cli.given import TOKEN, add_evidence, audited, finished, recipients, row_of, save, verdicts
from tests.support.database import Database


@pytest.mark.parametrize("outcome", ["dead", "in_doubt", "cancelled"])
async def test_retry_makes_a_finished_job_as_good_as_new(mailslot: Mailslot, database: Database, outcome: str) -> None:
    """Budgets begin anew, the lease is gone, doubts stay, and it has three days."""
    doubts = "2" if outcome == "in_doubt" else "0"
    job = await finished(database, outcome, attempt="9", crashes="2", doubts=doubts, reason="'too_many'", marked_at="now()",
                         cancel_requested_at="now()", expires_at="now() - interval '1 day'")  # fmt: skip
    ran = await mailslot("jobs", "retry", str(job), "--why", "relay was wrong")
    assert ran.code == 0
    assert ran.out.startswith(f"job {job} is ready again until ")
    assert ("may have been delivered" in ran.err) == (outcome == "in_doubt")
    row = await row_of(database, job)
    assert (row["attempt"], row["crashes"], row["doubts"]) == (0, 0, int(doubts))
    cleared = ("lease_token", "lease_owner", "leased_at", "lease_expires_at", "marked_at", "cancel_requested_at", "completed_at",
               "outcome", "reason")  # fmt: skip
    assert [name for name in cleared if row[name] is not None] == []
    assert timedelta(days=2.99) < row["expires_at"] - row["available_at"] <= timedelta(days=3)
    assert await database.fetchval("SELECT available_at <= now() FROM mailslot.jobs WHERE id = $1", job)
    ((action, audited_job, detail),) = await audited(database)
    assert (action, audited_job, detail["outcome"], detail["why"]) == ("job.retry", job, outcome, "relay was wrong")
    assert await database.fetchval("SELECT who = session_user FROM mailslot.audit")


async def test_retry_is_for_those_who_do_not_have_it(mailslot: Mailslot, database: Database) -> None:
    """Whoever was sent to is left alone; everybody else is tried again, and a doubt is remembered."""
    job = await finished(database, "in_doubt", doubts="1", recipients=recipients(a="sent", b="dead", c="in_doubt", d="later"))
    assert (await mailslot("jobs", "retry", str(job))).code == 0
    assert await verdicts(database, job) == {"a": "sent", "b": "later", "c": "later", "d": "later"}
    entries = json.loads((await row_of(database, job))["recipients"])
    assert entries["c@example.org"] == {"verdict": "later", "reply": "250 ok", "doubted": True}


async def test_retry_takes_the_time_that_is_given(mailslot: Mailslot, database: Database) -> None:
    """--expires counts from the database's clock; one that has passed would end the job at once."""
    job = await finished(database, "dead")
    assert (await mailslot("jobs", "retry", str(job), "--expires", "2020-01-01T00:00Z")).code == 64
    ran = await mailslot("jobs", "retry", str(job), "--expires", "+5d", "--json")
    assert ran.json["state"] == "ready"
    row = await row_of(database, job)
    assert timedelta(days=4.99) < row["expires_at"] - row["available_at"] <= timedelta(days=5)


async def test_evidence_is_set_aside_only_by_again(mailslot: Mailslot, database: Database) -> None:
    """Without --again a proven 2xx still stops the mail; with it, what was set aside stands in the audit trail."""
    job = await finished(database, "dead")
    await add_evidence(database, job)
    assert (await mailslot("jobs", "retry", str(job), "--json")).json["evidence_set_aside"] == 0
    assert await database.fetchval("SELECT accepted FROM mailslot.attempts") == ["maya@example.org"]
    again = await finished(database, "dead")
    await add_evidence(database, again)
    assert (await mailslot("jobs", "retry", str(again), "--again", "--json")).json["evidence_set_aside"] == 1
    assert await database.fetchval("SELECT accepted FROM mailslot.attempts WHERE job_id = $1", again) is None
    assert await database.fetchval("SELECT accepted FROM mailslot.attempts WHERE job_id = $1", job) == ["maya@example.org"]
    assert list((await audited(database))[1][2]["evidence"].values()) == [["maya@example.org"]]


async def test_only_a_finished_job_that_was_not_sent_is_retried(mailslot: Mailslot, database: Database) -> None:
    """Ready, leased and sent jobs are shown and left alone."""
    lease = {"lease_token": "gen_random_uuid()", "lease_expires_at": "now()"}
    for job in (await save(database), await save(database, **lease), await finished(database, "sent")):
        before = await row_of(database, job)
        ran = await mailslot("jobs", "retry", str(job))
        assert ran.code == 1
        assert ran.out.startswith(f"job {job}: ")
        assert "only dead, in_doubt and cancelled" in ran.err
        assert await row_of(database, job) == before
    assert await audited(database) == []


async def test_retry_wakes_idle_workers(mailslot: Mailslot, database: Database) -> None:
    """Nobody waits for a poll; unless notifications are switched off."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await database.connect()
    await listener.add_listener("mailslot", lambda *note: heard.put_nowait(note[3]))
    job = await finished(database, "dead")
    async with asyncio.timeout(30):
        assert await heard.get() == "1"  # the insert's own, with the number of the bell
        assert (await mailslot("jobs", "retry", str(job))).code == 0
        assert await heard.get() == ""
        await database.execute("UPDATE mailslot.settings SET notify = false")
        silent = await finished(database, "dead")
        assert (await mailslot("jobs", "retry", str(silent))).code == 0
        await database.execute("SELECT pg_notify('mailslot', 'last')")
        assert await heard.get() == "last"


@dataclass(frozen=True)
class Found:
    """What a person found out about a job in doubt, and how it ends."""

    flag: str
    before: dict[str, str] | None
    outcome: str
    reason: str
    after: dict[str, str] | None


@pytest.mark.parametrize(
    "found",
    [
        Found("--sent", {"a": "in_doubt"}, "sent", "resolved_sent", {"a": "sent"}),
        Found("--not-sent", {"a": "in_doubt"}, "dead", "resolved_not_sent", {"a": "dead"}),
        Found("--sent", {"a": "in_doubt", "b": "dead"}, "sent", "partial", {"a": "sent", "b": "dead"}),
        Found("--sent", {"a": "in_doubt", "b": "sent"}, "sent", "resolved_sent", {"a": "sent", "b": "sent"}),
        Found("--not-sent", {"a": "in_doubt", "b": "sent"}, "sent", "partial", {"a": "dead", "b": "sent"}),
        Found("--not-sent", {"a": "in_doubt", "b": "dead"}, "dead", "resolved_not_sent", {"a": "dead", "b": "dead"}),
        Found("--sent", {"a": "doubted later", "b": "later"}, "sent", "partial", {"a": "sent", "b": "later"}),
        Found("--sent", {"a": "doubted dead"}, "sent", "resolved_sent", {"a": "sent"}),
        Found("--sent", {"a": "dead"}, "sent", "resolved_sent", {"a": "sent"}),
        Found("--sent", None, "sent", "resolved_sent", None),
        Found("--not-sent", None, "dead", "resolved_not_sent", None),
    ],
)
async def test_resolve_ends_the_doubt_of_those_who_were_in_doubt(mailslot: Mailslot, database: Database, found: Found) -> None:
    """Everybody else's verdict stays; with some sent and some not the job ends as sent, partial."""
    before = "NULL" if found.before is None else recipients(**found.before)
    job = await finished(database, "in_doubt", doubts="1", recipients=before)
    ran = await mailslot("jobs", "resolve", str(job), found.flag, "--why", "asked Maya", "--json")
    assert (ran.code, ran.json) == (0, {"id": job, "state": found.outcome, "reason": found.reason})
    row = await row_of(database, job)
    assert (row["outcome"], row["reason"], row["doubts"], str(row["lease_token"])) == (found.outcome, found.reason, 1, TOKEN)
    assert (None if row["recipients"] is None else await verdicts(database, job)) == found.after
    assert await audited(database) == [
        ("job.resolve", job, {"sent": found.flag == "--sent", "outcome": found.outcome, "why": "asked Maya"}),
    ]


async def test_a_resolved_job_still_says_what_was_only_assumed(mailslot: Mailslot, database: Database) -> None:
    """One recipient was found out about, the other's answer is missing as before."""
    assumed = '"a@x.org": {"verdict": "sent", "doubted": true, "assumed": true}'
    entries = f"""'{{{assumed}, "b@x.org": {{"verdict": "in_doubt", "doubted": true}}}}'"""
    job = await finished(database, "in_doubt", doubts="1", recipients=entries)
    assert (await mailslot("jobs", "resolve", str(job), "--sent")).code == 0
    row = await row_of(database, job)
    assert (row["outcome"], row["assumed"]) == ("sent", True)


async def test_only_a_job_in_doubt_is_resolved(mailslot: Mailslot, database: Database) -> None:
    """What isn't in doubt is shown and left alone."""
    for job in (await save(database), *[await finished(database, outcome) for outcome in ("sent", "dead", "cancelled")]):
        ran = await mailslot("jobs", "resolve", str(job), "--not-sent")
        assert ran.code == 1
        assert "only a job in doubt" in ran.err
    assert await audited(database) == []


async def test_a_resolved_job_can_be_retried(mailslot: Mailslot, database: Database) -> None:
    """Not sent, a person found out; so it may be sent now, and the memory of the doubt stays with it."""
    job = await finished(database, "in_doubt", doubts="1", recipients=recipients(a="in_doubt"))
    assert (await mailslot("jobs", "resolve", str(job), "--not-sent")).code == 0
    assert (await mailslot("jobs", "retry", str(job))).code == 0
    assert await verdicts(database, job) == {"a": "later"}
    assert (await row_of(database, job))["doubts"] == 1


CHANGES = {
    "another person's resolve": "UPDATE mailslot.jobs SET outcome = 'dead' WHERE id = $1",
    "a late 2xx": "UPDATE mailslot.jobs SET outcome = 'sent' WHERE id = $1",
    "another person's retry and another end": "UPDATE mailslot.jobs SET lease_token = gen_random_uuid() WHERE id = $1",
    "another person's retry and the same end": "UPDATE mailslot.jobs SET completed_at = now() + interval '1 s' WHERE id = $1",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("action", [("retry",), ("resolve", "--sent"), ("resolve", "--not-sent")], ids=" ".join)
async def test_whoever_was_quicker_wins(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch, action: tuple[str, ...], change: str
) -> None:
    """The row changes between the look and the write: nothing is written, the job is shown as it is now."""
    job = await finished(database, "in_doubt")
    read = jobs._read  # noqa: SLF001 - the moment between the look and the write
    changed: list[Row] = []

    async def read_then_change(session: Session, job_id: int) -> Row | None:
        row = await read(session, job_id)
        if not changed:
            await database.execute(change, job_id)
            changed.append(await row_of(database, job_id))
        return row

    monkeypatch.setattr(jobs, "_read", read_then_change)
    name, *flags = action
    ran = await mailslot("jobs", name, str(job), *flags)
    assert ran.code == 1
    assert ran.out.startswith(f"job {job}: {changed[0]['outcome']}")
    assert "was changed meanwhile" in ran.err
    assert await row_of(database, job) == changed[0]
    assert await audited(database) == []


async def test_the_statements_themselves_refuse_an_outcome_that_is_final(database: Database) -> None:
    """Whoever calls them: a sent job is never made ready, and only doubt is resolved."""
    connection = await database.connect()
    for outcome, names in {"sent": ("job_retry", "job_resolve"), "dead": ("job_resolve",), "cancelled": ("job_resolve",)}.items():
        row = await row_of(database, await finished(database, outcome))
        fence = (row["id"], row["outcome"], row["lease_token"], row["completed_at"])
        for name in names:
            rest = (None, False, None) if name == "job_retry" else (False, None)
            assert await connection.fetch(statement(name), *fence, *rest) == []
    assert await audited(database) == []
