"""What a command says to the shell that called it.

The numbers are those of sysexits.h, so that systemd and scripts can tell what is worth another try: 69 and 75 are, 64, 65, 77 and
78 need a person first. `meaning_of` is the one place where an error becomes a number.
"""

from __future__ import annotations

from enum import IntEnum

from daemon.core.errors import (
    NO_PRIVILEGE,
    POOLER,
    ConfigError,
    MailslotError,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
)


class Exit(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    NOTHING_DONE = 1
    """The job isn't there or isn't as it was; nothing was changed. Also: a bug."""
    USAGE = 64
    BAD_DATA = 65
    """What was to be saved can't become a mail or a job; nothing was saved."""
    UNAVAILABLE = 69
    UNFINISHED = 75
    NOT_PERMITTED = 77
    CONFIGURATION = 78
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class UsageError(MailslotError):
    """The flags contradict each other or name a file that can't be read (exit 64)."""


class BadDataError(MailslotError):
    """What was to be saved can't be; nothing was saved (exit 65)."""


class UnusableError(MailslotError):
    """The database answers but can't keep the promises, or disagrees with the file (exit 78)."""


NO_SCHEMA = frozenset({"3F000", "42P01", "42883"})
"""No such schema, table, function: the statement met a database that nobody has migrated."""
NO_DATABASE = "3D000"
NO_LOGIN = "28"
MEANINGS: dict[type[MailslotError], Exit] = {
    UsageError: Exit.USAGE,
    BadDataError: Exit.BAD_DATA,
    StoreUnavailable: Exit.UNAVAILABLE,
    ConfigError: Exit.CONFIGURATION,
    SchemaMismatch: Exit.CONFIGURATION,
    UnusableError: Exit.CONFIGURATION,
}


def meaning_of(error: MailslotError) -> Exit:
    """Return the exit code that says what kind of help `error` needs."""
    if isinstance(error, StoreRefused):
        return _meaning_of_refusal(error.sqlstate)
    return next((code for kind, code in MEANINGS.items() if isinstance(error, kind)), Exit.NOTHING_DONE)


def _meaning_of_refusal(sqlstate: str) -> Exit:
    if sqlstate == NO_PRIVILEGE or sqlstate.startswith(NO_LOGIN):
        return Exit.NOT_PERMITTED
    if sqlstate in NO_SCHEMA or sqlstate in {NO_DATABASE, POOLER}:
        return Exit.CONFIGURATION
    return Exit.NOTHING_DONE


def sentence_for(error: MailslotError) -> str:
    """Return what to tell the person: the error's own sentence, and what to do where that isn't in it."""
    if isinstance(error, StoreRefused) and error.sqlstate in NO_SCHEMA:
        return f"{error}\nthe database has no mailslot schema, or an older one; run `mailslot db migrate`"
    if isinstance(error, StoreRefused) and error.sqlstate == NO_PRIVILEGE:
        return (
            f"{error}\nlook at and decide about jobs as a member of mailslot_operator, save them as one of mailslot_producer, "
            "work on them as one of mailslot_worker"
        )
    return str(error)
