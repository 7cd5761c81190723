"""Where does a configured value stand: in which line of the file, in which variable?

Reads the two written sources of the configuration into one flat shape, key -> value and origin, without judging any value.
What can't be read that way is a problem. Used by `config` alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daemon.core.settings import Problem

Key = tuple[str | int, ...]
"""("lease", "heartbeat_s"), ("relay", 0, "port"), or ("lease",) for a section itself."""

LISTS = ("relay", "rule")
"""Sections that there may be several of, each begun with [[..]]."""
_PREFIX = "MAILSLOT_"
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_ASSIGNMENT = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([^"'=\s]+))\s*=""")


class Given(NamedTuple):
    """A value as somebody wrote it."""

    value: object
    origin: str
    is_text: bool = False
    """Whether numbers and lists arrive as text, as in a variable."""
    folder: Path = Path()
    """What a relative path in it is relative to."""
    file: Path | None = None


def shown(key: Key) -> str:
    """Return a key as people write it: `relay[0].port`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def from_file(path: Path, problems: list[Problem]) -> dict[Key, Given]:
    """Return what a TOML file says; a file that can't be read or understood is one problem and says nothing."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        problems.append(Problem(str(path), f"can't be read: {error.strerror}"))
        return {}
    except UnicodeDecodeError:
        problems.append(Problem(str(path), "isn't written in UTF-8"))
        return {}
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(str(path), f"isn't TOML: {error}"))
        return {}
    lines = _lines(text)

    def given(key: Key, value: object) -> Given:
        line = lines.get(key)
        return Given(value, f"{path}, line {line}" if line else str(path), folder=path.parent, file=path)

    return {key: given(key, value) for key, value in _flat(document, problems)}


def from_environment(environ: Mapping[str, str], known: Iterable[Key], problems: list[Problem]) -> dict[Key, Given]:
    """Return what variables named MAILSLOT_SECTION__KEY say; relays and rules are numbered: MAILSLOT_RELAY__0__HOST.

    Other variables that begin with MAILSLOT_ are somebody else's, unless one is a `known` key with an underscore too few.
    """
    misspelt = {_PREFIX + "_".join(map(str, key)).upper(): _PREFIX + "__".join(map(str, key)).upper() for key in known}
    layer: dict[Key, Given] = {}
    for name, value in sorted(environ.items()):
        if name in misspelt:
            problems.append(Problem(name, f"is written with two underscores: {misspelt[name]}"))
        if not name.startswith(_PREFIX) or "__" not in name:
            continue
        match name.removeprefix(_PREFIX).lower().split("__"):
            case [section, index, key] if section in LISTS and index.isdecimal() and key:
                layer[section, int(index), key] = Given(value, name, is_text=True)
            case [section, key] if section and key and section not in LISTS:
                layer[section, key] = Given(value, name, is_text=True)
            case _:
                problems.append(
                    Problem(name, "names no setting: write MAILSLOT_SECTION__KEY, or MAILSLOT_RELAY__0__KEY for a relay")
                )
    return layer


def _flat(document: Mapping[str, Any], problems: list[Problem]) -> Iterator[tuple[Key, object]]:
    for section, content in document.items():
        if section in LISTS:
            if isinstance(content, list) and all(isinstance(table, dict) for table in content):
                yield from (((section, index, key), value) for index, table in enumerate(content) for key, value in table.items())
            else:
                problems.append(Problem(section, f"begins with [[{section}]], in two brackets: there may be several"))
        elif isinstance(content, dict):
            yield from (((section, key), value) for key, value in content.items())
        else:
            yield (section,), content


def _lines(text: str) -> dict[Key, int]:
    """Return the line of each key that stands under its section's header; good enough to point at a mistake."""
    lines: dict[Key, int] = {}
    table: Key = ()
    tables = dict.fromkeys(LISTS, -1)
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = (header[2],)
            if header[1] == "[[" and header[2] in tables:
                tables[header[2]] += 1
                table = (header[2], tables[header[2]])
            lines.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault((*table, assignment[1] or assignment[2] or assignment[3]), number)
    return lines
