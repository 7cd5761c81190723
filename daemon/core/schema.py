"""Is this the database that the program was written for?

Owns the version number of schema.sql and the comparison of what all workers must agree on. `mailslot db migrate` and the daemon
ask the same questions here and so give the same answers. Never reads a database: found values come in as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from daemon.core.errors import SchemaMismatch
from daemon.core.settings import Lease, Problem

SCHEMA_VERSION = 1
"""What schema.sql writes into mailslot.meta; each change of the schema adds one, and one numbered step."""

AGREED = {
    "lease_s": "duration_s",
    "in_doubt_delay_s": "in_doubt_delay_s",
    "hard_cap_s": "hard_cap_s",
    "max_crashes": "max_crashes",
    "max_doubts": "max_doubts",
}
"""Column of mailslot.settings -> key of [lease] that must have the same value."""


def require_version(found: int | None, wanted: int = SCHEMA_VERSION) -> None:
    """Return if a database of version `found` (None: no schema at all) can be used, else raise SchemaMismatch."""
    if found is None:
        raise SchemaMismatch("the database has no mailslot schema; run `mailslot db migrate`")
    require_not_newer(found, wanted)
    if found < wanted:
        raise SchemaMismatch(
            f"the database's schema has version {found}, this program needs {wanted}; run `mailslot db migrate`",
        )


def require_not_newer(found: int, wanted: int = SCHEMA_VERSION) -> None:
    """Raise SchemaMismatch if a newer program has migrated the database: nobody knows what the schema means now."""
    if found > wanted:
        raise SchemaMismatch(
            f"the database's schema has version {found}, newer than the {wanted} of this program; install a newer mailslot",
        )


def refusal(user: str) -> str:
    """Return the sentence for a user of the database who may not do a worker's work."""
    return f'the user "{user}" may not work on jobs: run `GRANT mailslot_worker TO "{user}"` as its administrator'


def disagreements(lease: Lease, row: Mapping[str, object]) -> tuple[Problem, ...]:
    """Compare [lease] of the configuration with the row of mailslot.settings; the empty tuple means that they agree."""
    return tuple(
        Problem(
            f"lease.{key}",
            f"the file says {getattr(lease, key):g}, the database {row[column]:g}; "
            "change the file, or stop all workers and run `mailslot db settings --write`",
        )
        for column, key in AGREED.items()
        if getattr(lease, key) != row[column]
    )
