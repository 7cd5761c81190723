"""Is the database ready for mailslot, and how does it become so?

Owns the commands `mailslot db ..`. `migrate` is the only writer of the schema: schema.sql for a database that has none, numbered
steps for an older one, all in one transaction under a lock. So two of them at once are one after the other, the second finds
nothing to do, and one that fails leaves what it found.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from dataclasses import dataclass

from daemon import resources
from daemon.cli.exits import Exit, UnusableError
from daemon.cli.options import settings_of
from daemon.cli.render import as_json
from daemon.cli.session import Row, Session, opened
from daemon.core.errors import SchemaMismatch
from daemon.core.schema import AGREED, SCHEMA_VERSION, disagreements, refusal, require_not_newer, require_version
from daemon.core.settings import Settings

MIGRATION_LIMIT_S = 3600.0
DUTIES = ("enqueue", "work", "operate", "monitor")
"""What db_check.sql looks for: the privileges that the roles producer, worker, operator and monitor are made of."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What `migrate` found and did; `before` is None when there was no schema, `applied` empty when nothing was to do."""

    before: int | None
    after: int
    applied: tuple[str, ...]

    def __str__(self) -> str:
        if self.before is None:
            return f"schema version {self.after} created"
        if not self.applied:
            return f"schema version {self.after} is there already; nothing to do"
        return f"schema migrated from version {self.before} to {self.after}: {', '.join(self.applied)}"


async def migrate(settings: Settings) -> Migrated:
    """Bring the database to this program's schema, or raise and leave it as it was.

    Needs the right to create schemas and roles the first time, and membership in mailslot_owner later. Holds an advisory lock
    until it has committed. Raises SchemaMismatch if the schema is newer, StoreUnavailable, StoreRefused.
    """
    async with opened(settings.database, limit_s=MIGRATION_LIMIT_S) as session, session.transaction("migrate"):
        await session.rows("db_lock")
        before = await found_version(session)
        if before is None:
            await session.script("schema.sql", resources.text("schema.sql"))
            return Migrated(None, SCHEMA_VERSION, ("schema.sql",))
        require_not_newer(before, SCHEMA_VERSION)
        steps = steps_after(before)
        for step in steps:
            await session.script(step.name, f"SET LOCAL ROLE mailslot_owner; {step.sql}")
            await session.rows("db_set_version", step.version)
        return Migrated(before, SCHEMA_VERSION, tuple(f"{step.version:04}_{step.name}" for step in steps))


async def found_version(session: Session) -> int | None:
    """Return the schema's version, None if there is no schema; a schema that isn't ours is a SchemaMismatch."""
    found = await session.row("db_found")
    if found is None or not found["has_schema"]:
        return None
    version = await session.row("db_version") if found["has_meta"] else None
    if version is None:
        raise SchemaMismatch("the database has a schema named mailslot that isn't of this program; nothing was changed")
    return int(version["schema_version"])


def steps_after(version: int) -> list[resources.Step]:
    """Return the steps that are to be applied to a database of this version, in order.

    Raises SchemaMismatch when one isn't there, which means that the program wasn't installed whole.
    """
    steps = {step.version: step for step in resources.steps()}
    wanted = range(version + 1, SCHEMA_VERSION + 1)
    if missing := [each for each in wanted if each not in steps]:
        raise SchemaMismatch(f"the step to schema version {missing[0]} isn't part of this installation; install mailslot again")
    return [steps[each] for each in wanted]


def run_migrate(arguments: Namespace) -> int:
    """`mailslot db migrate`."""
    done = asyncio.run(migrate(settings_of(arguments)))
    print(as_json({"before": done.before, "after": done.after, "applied": done.applied}) if arguments.json else done)
    return Exit.DONE


def run_schema(_arguments: Namespace) -> int:
    """`mailslot db schema`."""
    sys.stdout.write(resources.text("schema.sql"))
    return Exit.DONE


def run_check(arguments: Namespace) -> int:
    """`mailslot db check`."""
    settings = settings_of(arguments)
    report, problems = asyncio.run(check(settings))
    if arguments.json:
        print(as_json({**report, "problems": problems}))
    else:
        print(f"PostgreSQL {report['server_version']}, schema version {report['schema_version']}, user {report['user']}")
        print("may " + (", ".join(name for name in DUTIES if report[f"may_{name}"]) or "nothing"))
        print("\n".join(problems) or "ok")
    if report["may_work"]:
        return Exit.CONFIGURATION if problems else Exit.DONE
    return Exit.CONFIGURATION if len(problems) > 1 else Exit.NOT_PERMITTED


async def check(settings: Settings) -> tuple[Row, list[str]]:
    """Return what was found, and a sentence for each thing that keeps a worker of this configuration from starting."""
    async with opened(settings.database) as session:
        version = await found_version(session)
        require_version(version)
        agreed = await session.row("agreement") or {}
        who = {key: agreed.get(key) for key in ("user", "may_work")}
        report = {"schema_version": version, **who, **(await session.row("db_check") or {})}
    problems = [f"{problem.path}: {problem.message}" for problem in disagreements(settings.lease, agreed)]
    problems += [
        f"{name} is off: a commit may be forgotten after a crash; set {name} = on in postgresql.conf"
        for name in ("fsync", "full_page_writes")
        if not report[name]
    ]
    if not report["may_work"]:
        problems.append(refusal(report["user"]))
    return report, problems


def run_settings(arguments: Namespace) -> int:
    """`mailslot db settings [--write]`."""
    settings = settings_of(arguments)
    before, problems = asyncio.run(write_settings(settings) if arguments.write else read_settings(settings))
    rows = {key: {"file": getattr(settings.lease, key), "database": before[column]} for column, key in AGREED.items()}
    if arguments.json:
        print(as_json({"lease": rows, "written": arguments.write}))
    else:
        for key, values in rows.items():
            sign = "=" if values["file"] == values["database"] else "!"
            print(f"{sign} lease.{key:<18} file {values['file']:<8g} database {values['database']:g}")
    if arguments.write:
        print("written" if problems else "nothing to write", file=sys.stderr)
        return Exit.DONE
    if problems:
        raise UnusableError("the file and the database disagree; change the file, or stop all workers and use --write")
    return Exit.DONE


async def read_settings(settings: Settings) -> tuple[Row, bool]:
    """Return the row of mailslot.settings, and whether the file says something else."""
    async with opened(settings.database) as session:
        require_version(await found_version(session))
        row = await session.row("agreement") or {}
    return row, bool(disagreements(settings.lease, row))


async def write_settings(settings: Settings) -> tuple[Row, bool]:
    """Write [lease] of the file into mailslot.settings; returns the row as it was before, and whether that was different."""
    before, differs = await read_settings(settings)
    if differs:
        async with opened(settings.database) as session:
            await session.rows("db_settings_write", *(getattr(settings.lease, key) for key in AGREED.values()))
    return before, differs
