"""`mailslot jobs`: what became of a job, and what a person decided about it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from daemon.cli import jobs
from daemon.cli.session import Row, Session
from daemon.database import statement
from tests.cli.conftest import Mailslot
from tests.support.database import Database

TOKEN = "11111111-1111-4111-8111-111111111111"
FINISHED = {"completed_at": "now()", "lease_token": f"'{TOKEN}'", "lease_owner": "'host-1'", "leased_at": "now()"}


async def save(database: Database, **columns: str) -> int:
    """Save a job, with columns set to SQL expressions, and return its id."""
    async with database.connection() as connection, connection.transaction():
        saved = await connection.fetchval("""SELECT id FROM mailslot.enqueue('{"to": "maya@example.org", "subject": "Party"}')""")
        if columns:
            setting = ", ".join(f"{name} = {value}" for name, value in columns.items())
            await connection.execute(f"UPDATE mailslot.jobs SET {setting} WHERE id = $1", saved)  # noqa: S608 - ours
    return int(saved)


async def finished(database: Database, outcome: str, **columns: str) -> int:
    """Save a job that a worker has finished, and return its id."""
    return await save(database, **{**FINISHED, "outcome": f"'{outcome}'", **columns})


async def row_of(database: Database, job_id: int) -> dict[str, Any]:
    """Return the job's row."""
    row = await database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job_id)
    assert row is not None
    return dict(row)


async def audited(database: Database) -> list[tuple[str, int, dict[str, Any]]]:
    """Return the audit trail."""
    rows = await database.fetch("SELECT action, job_id, detail FROM mailslot.audit ORDER BY id")
    return [(row["action"], row["job_id"], json.loads(row["detail"])) for row in rows]


def recipients(**verdicts: str) -> str:
    """Return a recipients map as an SQL literal; `in_doubt` and `doubted` verdicts carry the memory of their doubt."""
    entries = {
        f"{name}@example.org": {"verdict": verdict.removeprefix("doubted "), "reply": "250 ok"}
        | ({"doubted": True} if "doubt" in verdict else {})
        for name, verdict in verdicts.items()
    }
    return f"'{json.dumps(entries)}'"


async def verdicts(database: Database, job_id: int) -> dict[str, str]:
    """Return who stands at which verdict."""
    entries = json.loads((await row_of(database, job_id))["recipients"])
    return {address.partition("@")[0]: entry["verdict"] for address, entry in entries.items()}


async def add_evidence(database: Database, job_id: int) -> None:
    """Add a ledger row of a late 2xx."""
    await database.execute(
        "INSERT INTO mailslot.attempts (job_id, lease_token, attempt, verdict, stage, reply, relay, accepted) "
        "VALUES ($1, gen_random_uuid(), 1, 'sent', 'dot', '250 2.0.0 queued as 7XQ', 'main', '{maya@example.org}')",
        job_id,
    )


# ---------------------------------------------------------------- looking


async def test_show_tells_the_job_its_recipients_and_its_attempts(mailslot: Mailslot, database: Database) -> None:
    """What the relay answered stands there, for the job and for each attempt."""
    columns = {"doubts": "1", "relay": "'main'", "reply": "'421 closing'", "recipients": recipients(maya="in_doubt")}
    job = await finished(database, "in_doubt", **columns)
    await add_evidence(database, job)
    ran = await mailslot("jobs", "show", str(job))
    assert ran.code == 0
    for words in (f"job {job}: in_doubt", "Party", "421 closing", "maya@example.org", "was in doubt", "250 2.0.0 queued as 7XQ",
                  "accepted for maya@example.org"):  # fmt: skip
        assert words in ran.out
    assert "payload\n" not in ran.out


async def test_show_json_is_the_row_its_ledger_and_its_recipients(mailslot: Mailslot, database: Database) -> None:
    """JSON columns are JSON in it, not text; the payload only when asked for."""
    job = await finished(database, "in_doubt", doubts="1", recipients=recipients(maya="in_doubt"))
    await add_evidence(database, job)
    shown = (await mailslot("jobs", "show", str(job), "--json")).json
    assert shown["recipients"]["maya@example.org"] == {"verdict": "in_doubt", "reply": "250 ok", "doubted": True}
    assert [attempt["accepted"] for attempt in shown["attempts"]] == [["maya@example.org"]]
    assert (shown["id"], shown["state"], shown["lease_token"]) == (job, "in_doubt", TOKEN)
    assert "payload" not in shown
    with_payload = (await mailslot("jobs", "show", str(job), "--json", "--payload")).json
    assert with_payload["payload"]["subject"] == "Party"


async def test_what_a_relay_said_cannot_move_the_cursor(mailslot: Mailslot, database: Database) -> None:
    """Replies, subjects and addresses are strangers' text."""
    hostile = """'{"\\u001b[1mx@example.org": {"verdict": "dead"}}'"""
    job = await finished(database, "dead", reply="E'550 \\x1b[2J'", recipients=hostile)
    ran = await mailslot("jobs", "show", str(job), "--payload")
    assert ran.out.replace("\n", "").isprintable()


async def test_no_such_job_is_1(mailslot: Mailslot) -> None:
    """Every command on one job says that there is none."""
    for line in ("show 7", "retry 7", "cancel 7", "resolve 7 --sent"):
        ran = await mailslot("jobs", *line.split())
        assert (ran.code, ran.out, ran.err) == (1, "", "mailslot: there is no job 7\n"), line


async def test_list_is_newest_first_and_pages_by_id(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page says how to get the next; jobs that come meanwhile don't shift it."""
    monkeypatch.setenv("COLUMNS", "60")
    ids = [await save(database, reason=f"'{'x' * 150}'") for _ in range(5)]
    ran = await mailslot("jobs", "list", "--limit", "2")
    head, *rows = ran.out.splitlines()
    assert head.split() == ["ID", "STATE", "QUEUE", "KIND", "AGE", "TRY", "DUE", "REASON"]
    assert [int(row.split()[0]) for row in rows] == ids[:2:-1]
    assert all(len(row) <= 60 for row in rows)
    assert ran.err == f"older ones: --after {ids[3]}\n"
    await save(database)
    ran = await mailslot("jobs", "list", "--limit", "3", "--after", str(ids[3]), "--json")
    assert [row["id"] for row in ran.lines] == ids[2::-1]


async def test_list_filters_by_state_and_queue(mailslot: Mailslot, database: Database) -> None:
    """Each state has its name here, the lease's halves too."""
    lease = {"lease_token": "gen_random_uuid()", "lease_expires_at": "now()", "leased_at": "now()"}
    made = {
        "ready": await save(database),
        "leased": await save(database, **lease),
        "marked": await save(database, **lease, marked_at="now()"),
        **{outcome: await finished(database, outcome) for outcome in ("sent", "dead", "in_doubt", "cancelled")},
    }
    other = await save(database, queue="'other'")
    for state, job in made.items():
        ran = await mailslot("jobs", "list", "--json", "--state", state, "--queue", "default")
        assert [(row["id"], row["state"]) for row in ran.lines] == [(job, state)]
    assert [row["id"] for row in (await mailslot("jobs", "list", "--json", "--queue", "other")).lines] == [other]
    both = await mailslot("jobs", "list", "--json", "--state", "dead", "--state", "sent")
    assert {row["id"] for row in both.lines} == {made["dead"], made["sent"]}


# ---------------------------------------------------------------- retry


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
        assert await heard.get() == ""  # the insert's own
        assert (await mailslot("jobs", "retry", str(job))).code == 0
        assert await heard.get() == ""
        await database.execute("UPDATE mailslot.settings SET notify = false")
        silent = await finished(database, "dead")
        assert (await mailslot("jobs", "retry", str(silent))).code == 0
        await database.execute("SELECT pg_notify('mailslot', 'last')")
        assert await heard.get() == "last"


# ---------------------------------------------------------------- the fence

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


# ---------------------------------------------------------------- cancel


@pytest.mark.parametrize(
    ("columns", "state", "outcome"),
    [
        ({}, "cancelled", "cancelled"),
        ({"doubts": "1"}, "in_doubt", "in_doubt"),
        ({"recipients": recipients(a="sent", b="later")}, "sent", "sent"),
        ({"lease_token": "gen_random_uuid()", "lease_expires_at": "now()"}, "cancel_requested", None),
    ],
    ids=["ready", "doubted", "partial", "leased"],
)
async def test_cancel_says_what_it_could_do(
    mailslot: Mailslot, database: Database, columns: dict[str, str], state: str, outcome: str | None
) -> None:
    """A job that a worker holds is only asked for; one that may be out is never called cancelled."""
    job = await save(database, **columns)
    ran = await mailslot("jobs", "cancel", str(job), "--json", "--why", "party is off")
    assert (ran.code, ran.json) == (0, {"id": job, "state": state})
    row = await row_of(database, job)
    assert row["outcome"] == outcome
    assert row["cancel_requested_at"] is not None
    assert await audited(database) == [("job.cancel", job, {"state": state, "why": "party is off"})]


async def test_a_finished_job_is_not_cancelled(mailslot: Mailslot, database: Database) -> None:
    """It is shown, exit 1, and the trail has nothing: nothing was done."""
    for outcome in ("sent", "dead", "in_doubt", "cancelled"):
        job = await finished(database, outcome)
        ran = await mailslot("jobs", "cancel", str(job))
        assert (ran.code, ran.err) == (1, f"mailslot: job {job} is finished already; nothing was done\n")
        assert ran.out.startswith(f"job {job}: {outcome}")
    assert await audited(database) == []


# ---------------------------------------------------------------- resolve


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


# ---------------------------------------------------------------- roles and durability


async def test_an_operator_needs_no_other_role(mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command on jobs works with mailslot_operator alone."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_operator")
    dead, doubtful, ready = await finished(database, "dead"), await finished(database, "in_doubt"), await save(database)
    await add_evidence(database, dead)
    for line in (f"show {dead}", "list", f"retry {dead} --again", f"resolve {doubtful} --sent", f"cancel {ready}"):
        ran = await mailslot("jobs", *line.split())
        assert (ran.code, ran.err) == (0, ""), line
    assert len(await audited(database)) == 3


async def test_a_decision_is_durable_whatever_the_servers_default(mailslot: Mailslot, database: Database) -> None:
    """With synchronous_commit off by default, every write of an operator has it on."""
    await database.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    await database.execute("""
        CREATE TABLE public.seen (setting text);
        CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
    """)
    dead, doubtful, ready = await finished(database, "dead"), await finished(database, "in_doubt"), await save(database)
    await database.execute("CREATE TRIGGER look AFTER UPDATE ON mailslot.jobs EXECUTE FUNCTION public.look()")
    for line in (f"retry {dead}", f"resolve {doubtful} --sent", f"cancel {ready}"):
        assert (await mailslot("jobs", *line.split())).code == 0
    rows = await database.fetch("SELECT setting FROM public.seen")
    assert [row["setting"] for row in rows] == ["on", "on", "on"]


async def test_cancel_waits_for_a_record_that_is_being_written(mailslot: Mailslot, database: Database) -> None:
    """The worker's outcome commits first: the job is sent, and the command says that nothing was done."""
    job = await save(database, lease_token=f"'{TOKEN}'", lease_expires_at="now()")
    worker: asyncpg.Connection = await database.connect()
    recording = worker.transaction()
    await recording.start()
    await worker.execute("UPDATE mailslot.jobs SET outcome = 'sent', completed_at = now() WHERE id = $1", job)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        cancelling = group.create_task(mailslot("jobs", "cancel", str(job)))
        while not await database.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            pass
        await recording.commit()
    assert cancelling.result().code == 1
    assert (await row_of(database, job))["outcome"] == "sent"
    assert await audited(database) == []
