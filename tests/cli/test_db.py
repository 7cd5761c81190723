"""`mailslot db`: created, checked, agreed upon."""

from __future__ import annotations

import json

import pytest

from daemon import resources
from daemon.core.schema import SCHEMA_VERSION
from daemon.dev.postgres import Server
from tests.cli.conftest import Mailslot
from tests.conftest import StartDaemon
from tests.support.database import Database


async def test_migrate_says_what_it_did(mailslot: Mailslot, database: Database) -> None:
    """In a sentence, and as JSON."""
    await database.execute("DROP SCHEMA mailslot CASCADE")
    ran = await mailslot("db", "migrate", "--json")
    assert (ran.code, ran.json) == (0, {"before": None, "after": SCHEMA_VERSION, "applied": ["schema.sql"]})
    ran = await mailslot("db", "migrate")
    assert (ran.code, ran.out) == (0, f"schema version {SCHEMA_VERSION} is there already; nothing to do\n")


async def test_a_newer_schema_is_78_for_every_command_of_the_schema(mailslot: Mailslot, database: Database) -> None:
    """The sentence says what to install."""
    await database.execute("UPDATE mailslot.meta SET schema_version = 99")
    for command in ("migrate", "check", "settings", "settings --write"):
        ran = await mailslot("db", *command.split())
        assert (ran.code, ran.out) == (78, ""), command
        assert "version 99, newer than" in ran.err, command


async def test_schema_is_printed_without_a_database(run: Mailslot, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be read, or applied by psql."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", "postgresql://nobody@127.0.0.1:9/none")
    ran = await run("db", "schema")
    assert (ran.code, ran.out) == (0, resources.text("schema.sql"))


async def test_check_of_a_good_database_is_ok(mailslot: Mailslot) -> None:
    """It says who asked and what they may do."""
    ran = await mailslot("db", "check", "--json")
    assert ran.code == 0
    assert ran.json["problems"] == []
    assert (ran.json["schema_version"], ran.json["fsync"], ran.json["full_page_writes"]) == (SCHEMA_VERSION, True, True)
    assert (await mailslot("db", "check")).out.endswith("\nmay enqueue, work, operate, monitor\nok\n")


@pytest.mark.parametrize("role", ["worker", "operator", "monitor"])
async def test_check_names_the_privileges_of_a_role(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A worker may work; an operator may operate, enqueue and see; a monitor may see. Who may not work is told what to grant."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_{role}")
    may = {"worker": {"work"}, "operator": {"enqueue", "operate", "monitor"}, "monitor": {"monitor"}}[role]
    ran = await mailslot("db", "check", "--json")
    assert ran.code == (0 if role == "worker" else 77)
    assert [f'GRANT mailslot_worker TO "mailslot_{role}"' in problem for problem in ran.json["problems"]] == [True] * (
        role != "worker"
    )
    assert {duty for duty in ("enqueue", "work", "operate", "monitor") if ran.json[f"may_{duty}"]} == may


@pytest.mark.parametrize("role", ["operator", "monitor"])
async def test_a_daemon_whose_user_may_not_work_leaves_with_77(database: Database, start_daemon: StartDaemon, role: str) -> None:
    """Instead of waiting for a heartbeat that is never answered."""
    dsn = f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_{role}"
    daemon = await start_daemon(database, 9, environment={"MAILSLOT_DATABASE__DSN": dsn})
    assert await daemon.stopped() == 77
    assert f'GRANT mailslot_worker TO "mailslot_{role}"' in daemon.errors


async def test_check_reports_every_problem(mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key that differs is a line, and the exit code is that of a wrong configuration."""
    monkeypatch.setenv("MAILSLOT_LEASE__MAX_CRASHES", "5")
    monkeypatch.setenv("MAILSLOT_LEASE__MAX_DOUBTS", "4")
    ran = await mailslot("db", "check", "--json")
    assert ran.code == 78
    assert [problem.partition(":")[0] for problem in ran.json["problems"]] == ["lease.max_crashes", "lease.max_doubts"]
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_monitor")
    ran = await mailslot("db", "check", "--json")
    assert (ran.code, len(ran.json["problems"])) == (78, 3)


async def test_check_refuses_a_server_that_forgets(
    run: Mailslot, private_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fsync or full_page_writes off no promise holds."""
    admin = Database("postgres", private_server.dsn)
    await admin.apply_schema()
    await admin.execute("ALTER SYSTEM SET fsync = off")
    await admin.execute("ALTER SYSTEM SET full_page_writes = off")
    private_server.restart()
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", private_server.dsn)
    ran = await run("db", "check")
    assert ran.code == 78
    assert "fsync is off" in ran.out
    assert "full_page_writes is off" in ran.out


async def test_settings_are_compared_and_written_only_when_asked(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference is 78; --write makes them equal, and the audit trail has both sides and the author."""
    assert (await mailslot("db", "settings")).code == 0
    monkeypatch.setenv("MAILSLOT_LEASE__MAX_CRASHES", "5")
    monkeypatch.setenv("MAILSLOT_LEASE__IN_DOUBT_DELAY_S", "700")
    ran = await mailslot("db", "settings")
    assert ran.code == 78
    assert [line.split()[:2] for line in ran.out.splitlines() if line.startswith("!")] == [
        ["!", "lease.in_doubt_delay_s"],
        ["!", "lease.max_crashes"],
    ]
    assert await database.fetchval("SELECT max_crashes FROM mailslot.settings") == 3
    ran = await mailslot("db", "settings", "--write", "--json")
    assert (ran.code, ran.json["written"]) == (0, True)
    assert ran.json["lease"]["max_crashes"] == {"file": 5, "database": 3}
    row = await database.fetchrow("SELECT * FROM mailslot.settings")
    assert row is not None
    assert (row["max_crashes"], row["in_doubt_delay_s"], row["lease_s"], row["notify"]) == (5, 700.0, 30.0, True)
    (note,) = await database.fetch("SELECT action, who = session_user AS is_mine, detail FROM mailslot.audit")
    detail = json.loads(note["detail"])
    assert (note["action"], note["is_mine"]) == ("settings.write", True)
    assert (detail["before"]["max_crashes"], detail["after"]["max_crashes"]) == (3, 5)
    assert (await mailslot("db", "settings")).code == 0


async def test_writing_what_is_there_writes_nothing(mailslot: Mailslot, database: Database) -> None:
    """The trail holds changes, not looks."""
    ran = await mailslot("db", "settings", "--write")
    assert (ran.code, ran.err) == (0, "nothing to write\n")
    assert await database.fetchval("SELECT count(*) FROM mailslot.audit") == 0


async def test_a_monitor_may_compare_but_not_write(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all workers must agree on is an operator's to change."""
    monkeypatch.setenv("MAILSLOT_LEASE__MAX_CRASHES", "5")
    for role, code in (("monitor", 77), ("worker", 77), ("operator", 0)):
        monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_{role}")
        assert (await mailslot("db", "settings", "--write")).code == code
