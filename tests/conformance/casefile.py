"""Reads files of cases: what is to be sent, what the relay does, and what has to come of it.

A file is a list of cases, or an object with the list under `cases`. A case:

    {"id": "..", "kind": "..", "job": {..}, "smtp_behaviour": {..}, "expected": {..}, "why": ".."}

Of `job` only what differs from a plain mail of one team to one person need be said (`PLAIN`). A NUL, which no jsonb can hold, is
read as U+0001: the next worst. Other keys (source, symptom, ..) are for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLAIN: dict[str, Any] = {
    "from": "Team <team@example.org>",
    "to": ["Ann <ann@example.org>"],
    "subject": "You are invited",
    "text": "Come at eight.\n",
}
EXPECTED_KEYS = frozenset(
    {"outcome", "also_ok", "per_recipient", "attempts_burned", "connection", "server_accepts", "reason", "asserts"}
)


class CannotExpressError(Exception):
    """A case says something that the suite doesn't understand; the text names it."""


@dataclass(frozen=True)
class Case:
    """One case, as it was written."""

    id: str
    kind: str
    job: dict[str, Any]
    behaviour: dict[str, Any]
    expected: dict[str, Any]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Return the outcomes that are right; the first is the one that the case names."""
        return (self.expected["outcome"], *self.expected.get("also_ok", ()))

    @property
    def copies(self) -> int:
        """Return how many jobs the case is made of."""
        return int(self.job.get("count", len(self.job.get("batch", [None]))))

    @property
    def needs_all(self) -> bool:
        """Whether every one of its jobs has to be sent in the end."""
        return bool(self.expected["outcome"] == "sent" and self.expected.get("server_accepts", self.copies) >= self.copies)

    @property
    def holds_doubt(self) -> bool:
        """Whether a missing answer is left to a person: so in every case that may end in doubt."""
        recipients = self.expected.get("per_recipient", {}).values()
        return any(str(word).startswith("in_doubt") for word in (*self.wanted, *recipients))


def read(path: Path) -> list[Case]:
    """Read the cases of one file, in order.

    Raises:
        ValueError: it isn't JSON, or a case lacks what makes it one.
    """
    content = json.loads(path.read_text("utf-8"))
    found = content["cases"] if isinstance(content, dict) else content
    return [_case(number, each) for number, each in enumerate(found, 1)]


def read_all(paths: Iterable[Path]) -> list[Case]:
    """Read several files; a folder stands for all its .json files."""
    files = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    return [case for file in files for case in read(file)]


def _case(number: int, raw: dict[str, Any]) -> Case:
    name = str(raw.get("id", f"#{number}"))
    if not isinstance(raw.get("expected"), dict) or "outcome" not in raw["expected"]:
        raise ValueError(f"{name}: expected.outcome is missing")
    return Case(
        id=name,
        kind=str(raw.get("kind", "other")),
        job=_storable({**PLAIN, **raw.get("job", {})}),
        behaviour=raw.get("smtp_behaviour", {}),
        expected=raw["expected"],
    )


def _storable(value: Any) -> Any:  # noqa: ANN401  any JSON
    if isinstance(value, str):
        return value.replace("\0", "\x01")
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(each) for key, each in value.items()}
    return value
