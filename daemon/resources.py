"""Where are the files that travel with the program?

`schema.sql` and `config.toml` stand at the top of the repository, for people who look there first, and inside the package once
it is built; `sql/` is part of the package in both. What a caller names is found either way.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

_STEP = re.compile(r"([0-9]{4})_([a-z0-9_]+)\.sql")


class Step(NamedTuple):
    """One numbered change of the schema: applied to a database whose version is `version - 1`."""

    version: int
    name: str
    sql: str


def text(name: str) -> str:
    """Return the text of `schema.sql`, `config.toml` or `sql/NAME.sql`; FileNotFoundError when there is no such file."""
    packaged = files("daemon").joinpath(name)
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return (Path(__file__).parent.parent / name).read_text("utf-8")


def steps() -> list[Step]:
    """Return the steps of `sql/steps/`, files named like `0002_add_audit.sql`, in the order of their versions."""
    folder = files("daemon").joinpath("sql/steps")
    if not folder.is_dir():
        return []
    named = [(found, entry) for entry in folder.iterdir() if (found := _STEP.fullmatch(entry.name))]
    return sorted(Step(int(found[1]), found[2], entry.read_text("utf-8")) for found, entry in named)
