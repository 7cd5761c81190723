"""`mailslot jobs show, list and cancel`, and what an operator's role and a commit are worth."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.cli.conftest import Mailslot
from tests.cli.given import TOKEN, add_evidence, audited, finished, recipients, row_of, save
from tests.support.database import Database


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
