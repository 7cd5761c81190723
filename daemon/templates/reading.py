"""From a folder to sources: which files are templates, and is each of them what it has to be?

Only regular files that lie in the folder itself are read: a symbolic link may lead to another place in the folder (as where a
folder is exchanged as a whole) and nowhere else. Files with other endings are none of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from daemon.core.settings import Problem

KEY = "templates.dir"
NAME = re.compile(r"([a-z0-9_-]+)\.(subject\.txt|txt|html)")
LARGEST = 1_000_000
UNREADABLE = (OSError, RuntimeError, ValueError)
"""A link that leads to itself is a RuntimeError before Python 3.13, a name with a NUL in it a ValueError."""
_ENDINGS = (".txt", ".html")


def sources(folder: Path, problems: list[Problem]) -> dict[str, str]:
    """Return file name -> text, in order of names; what is wrong with a file becomes a problem."""
    try:
        home = folder.resolve(strict=True)
        paths = sorted(path for path in home.iterdir() if path.name.endswith(_ENDINGS) and not path.name.startswith("."))
    except UNREADABLE as error:
        problems.append(Problem(KEY, f"can't be read from {folder}: {_sentence(error)}"))
        return {}
    found = {}
    for path in paths:
        try:
            found[path.name] = _text(path, home)
        except UNREADABLE as error:
            problems.append(Problem(KEY, f"{path.name}: {_sentence(error)}"))
    return found


def _sentence(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _text(path: Path, home: Path) -> str:
    if not NAME.fullmatch(path.name):
        raise ValueError("the name of a template is of a to z, 0 to 9, _ and -, and ends in .subject.txt, .txt or .html")
    target = path.resolve(strict=True)
    if not target.is_relative_to(home) or not target.is_file():
        raise ValueError("isn't a file in this folder")
    octets = target.read_bytes()
    if len(octets) > LARGEST:
        raise ValueError(f"is larger than {LARGEST} bytes")
    try:
        return octets.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("isn't written in UTF-8") from None


def by_template(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return name -> the endings that it has files with; parts, which begin with _, are left out."""
    found: dict[str, set[str]] = {}
    for file in files:
        name, _, ending = file.partition(".")
        if not name.startswith("_"):
            found.setdefault(name, set()).add(ending)
    return found


def incomplete(found: Mapping[str, set[str]]) -> Iterator[Problem]:
    """Yield what templates lack."""
    for name, endings in found.items():
        if "subject.txt" not in endings:
            yield Problem(KEY, f"{name}.subject.txt is missing: every template makes its subject; a part's name begins with _")
        if endings.isdisjoint({"txt", "html"}):
            yield Problem(KEY, f"{name}.txt and {name}.html are both missing: one of them is needed")
