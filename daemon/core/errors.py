"""Surprises: what stops a command or sends a loop into its retry. Expected results are values, never exceptions."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.core.settings import Problem

NO_PRIVILEGE = "42501"
"""SQLSTATE: the user may not do that."""
POOLER = "08P01"
"""SQLSTATE of what stands before the server and doesn't take what we ask for at the connection's start."""


class MailslotError(Exception):
    """Base of all; its text is a sentence for the person who has to act."""


class ConfigError(MailslotError):
    """The configuration can't be used; carries every problem that was found (exit 78)."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{problem.path}: {problem.message}" for problem in problems))
        self.problems = tuple(problems)


class SchemaMismatch(MailslotError):  # noqa: N818  says what happened
    """The database isn't what this program was written for; nothing was written (exit 78)."""


class StoreUnavailable(MailslotError):  # noqa: N818  says what happened
    """The database didn't answer, or said that it can't now: the same statement may succeed later (exit 69)."""


class StoreRefused(MailslotError):  # noqa: N818  says what happened
    """The database answered, and the answer was no; repeating the statement as it is can't help (exit 77 or 1)."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
