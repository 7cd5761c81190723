"""What was configured, and by whom?

`read` takes one file, the environment and the command line's flags; a later one wins, key by key:

    default  <  config.toml  <  MAILSLOT_SECTION__KEY  <  flag

Each value keeps its origin, so that a problem names the line, the variable or the flag that has to be changed. All problems are
found in one go. Passwords are `credentials`' business: they are never flags, and no message shows a value. It runs before the
log is configured, so a warning goes to whom the caller says.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from daemon import config_sources as sources
from daemon import credentials
from daemon.config_sources import Given, Key
from daemon.core.errors import ConfigError
from daemon.core.masking import without_passwords
from daemon.core.problems import problems_between
from daemon.core.settings import Problem, Relay, Rule, RuleVerdict, Secret, Settings

DEFAULT_PATH = Path("/etc/mailslot/config.toml")

FLAGS: Mapping[str, tuple[str, Key]] = {
    "concurrency": ("--concurrency", ("worker", "concurrency")),
    "queues": ("--queue", ("worker", "queues")),
    "name": ("--name", ("worker", "name")),
    "log_level": ("--log-level", ("log", "level")),
    "log_format": ("--log-format", ("log", "format")),
}

PATHS: frozenset[tuple[str, str]] = frozenset({("templates", "dir"), ("dkim", "private_key_file"), ("relay", "ca_file")})
"""Sections and keys that hold a path; a relative one is relative to the file in which it stands."""

_TABLES: Mapping[str, type] = {"relay": Relay, "rule": Rule}
"""What one entry of each list of tables is."""
_SECTIONS: Mapping[str, type] = {field.name: field.type for field in fields(Settings)}
_FIELDS: Mapping[str, Mapping[str, FieldInfo]] = {
    name: {field.encode_name: field for field in fields(_TABLES.get(name, kind))}
    for name, kind in _SECTIONS.items()
    if name != "handlers"
}


def warn_on_stderr(caution: Problem) -> None:
    """Write a warning where a person or the journal sees it."""
    sys.stderr.write(f"mailslot: warning: {caution.path}: {caution.message}\n")


def load(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    sends: bool = False,
    warn: Callable[[Problem], None] = warn_on_stderr,
) -> Settings:
    """Return the settings that hold for this process; see `read`. Raises ConfigError with every problem that was found."""
    settings, problems = read(path, environ, flags, sends=sends, warn=warn)
    if problems:
        raise ConfigError(problems)
    return settings


def read(
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    sends: bool = False,
    warn: Callable[[Problem], None] = warn_on_stderr,
) -> tuple[Settings, list[Problem]]:
    """Return the settings and what is wrong with them; where something is, a default stands in its place.

    The file is `path`, else `$MAILSLOT_CONFIG`, else /etc/mailslot/config.toml if it exists, else none. `flags` are named as in
    FLAGS; None means not given. `sends` is for the daemon: a relay must be configured and its password be readable; an
    operator's command needs neither.
    """
    problems: list[Problem] = []
    chosen = path or (Path(environ["MAILSLOT_CONFIG"]) if environ.get("MAILSLOT_CONFIG") else None)
    if chosen is None and DEFAULT_PATH.exists():
        chosen = DEFAULT_PATH
    given: dict[Key, Given] = {}
    for layer in (
        sources.from_file(chosen, problems) if chosen else {},
        sources.from_environment(environ, _variables(), problems),
        {FLAGS[name][1]: Given(value, FLAGS[name][0]) for name, value in flags.items() if value is not None},
    ):
        credentials.give_way(given, layer, problems)
        given |= layer
    credentials.resolve(given, environ, problems, warn, sends=sends)
    for key, path_given in given.items():
        if (key[0], key[-1]) in PATHS and path_given.value and isinstance(path_given.value, str):
            given[key] = path_given._replace(value=str(path_given.folder / path_given.value))
    settings = _settings(given, problems)
    broken = {problem.path for problem in problems}
    if str(chosen) not in broken:
        problems += [problem for problem in problems_between(settings, sends=sends) if broken.isdisjoint(_looked_at(problem))]
    if sends:
        problems += _unreadable_files(settings)
    origins = {sources.shown(key): value.origin for key, value in given.items()}
    return settings, [_with_origin(problem, origins) for problem in problems]


def redacted(settings: Settings) -> dict[str, object]:
    """Return the settings as plain values that may be shown: every password is replaced by stars."""
    plain: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=lambda _secret: "***")
    plain["database"]["dsn"] = without_passwords(plain["database"]["dsn"])
    return plain


def _variables() -> Iterator[Key]:
    for section, known in _FIELDS.items():
        if section not in _TABLES:
            yield from ((section, key) for key in known)


def _settings(given: Mapping[Key, Given], problems: list[Problem]) -> Settings:
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    tables: dict[str, dict[int, dict[str, Any]]] = {section: {} for section in _TABLES}
    for key, value in given.items():
        expected = _type_of(key)
        if expected is None:
            problems.append(Problem(sources.shown(key), _unknown(key)))
            continue
        try:
            converted = _converted(value, expected)
        except (msgspec.ValidationError, json.JSONDecodeError):
            problems.append(Problem(sources.shown(key), f"must be {_words(expected)}"))
            converted = None
        match key:
            case (str(section), int(index), str(name)):
                tables[section].setdefault(index, {})[name] = converted
            case (str(section), str(name)):
                values[section][name] = converted
            case _:
                pass  # _type_of knows no other shape
    sections = {
        section: _SECTIONS[section](**{_FIELDS[section][name].name: value for name, value in known.items() if value is not None})
        for section, known in values.items()
        if section not in {*_TABLES, "handlers"}
    }
    handlers = {kind: function for kind, function in values["handlers"].items() if function is not None}
    lists: dict[str, Any] = {section: list(_entries(section, known, problems)) for section, known in tables.items()}
    return Settings(**sections, **lists, handlers=handlers)


STAND_INS: Mapping[str, Mapping[str, object]] = {
    "relay": {"name": "relay", "host": "localhost"},
    "rule": {"name": "rule", "verdict": RuleVerdict.LATER},
}
"""What stands for a missing key, so that the rest can be looked at too."""


def _entries(section: str, tables: Mapping[int, Mapping[str, Any]], problems: list[Problem]) -> Iterator[Any]:
    if sorted(tables) != list(range(len(tables))):
        problems.append(Problem(section, f"{section}s are numbered from 0 without a gap"))
    for index, known in sorted(tables.items()):
        missing = [name for name, field in _FIELDS[section].items() if field.required and name not in known]
        problems += [Problem(f"{section}[{index}].{name}", f"is missing; every {section} has one") for name in missing]
        usable = {name: value for name, value in known.items() if value is not None}
        yield _TABLES[section](**{**STAND_INS[section], "name": f"{section}-{index}", **usable})


def _type_of(key: Key) -> Any:  # noqa: ANN401  # types of the typing module have no common type
    match key:
        case (str(section), int(), str(name)) if section in _TABLES:
            field = _FIELDS[section].get(name)
        case ("handlers", str(kind)):
            kind_type, function_type = get_args(_SECTIONS["handlers"])
            return function_type if _fits(kind, kind_type) else None
        case (str(section), str(name)):
            field = _FIELDS.get(section, {}).get(name)
        case _:
            return None
    return field and field.type


def _fits(value: str, expected: Any) -> bool:  # noqa: ANN401  # the same
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError:
        return False
    return True


def _converted(given: Given, expected: Any) -> Any:  # noqa: ANN401  # the same
    value = given.value
    if isinstance(value, Secret):
        return value
    if given.is_text and isinstance(value, str) and get_origin(expected) is list:
        value = (
            json.loads(value) if value.lstrip().startswith("[") else [part.strip() for part in value.split(",") if part.strip()]
        )
    return msgspec.convert(value, expected, strict=not given.is_text)


def _words(expected: Any) -> str:  # noqa: ANN401  # the same
    meta = next((extra for extra in getattr(expected, "__metadata__", ()) if isinstance(extra, msgspec.Meta)), None)
    if meta is not None and meta.description:
        return meta.description
    if get_origin(expected) is list:
        return f"a list, and each of its entries {_words(get_args(expected)[0])}"
    if isinstance(expected, type) and issubclass(expected, StrEnum):
        return "one of " + ", ".join(f'"{choice}"' for choice in expected)
    return "true or false" if expected is bool else "text in quotes"


def _unknown(key: Key) -> str:
    section, name = str(key[0]), str(key[-1])
    if section not in _SECTIONS:
        near = [other for other, known in _FIELDS.items() if len(key) == 1 and section in known]
        near = near or difflib.get_close_matches(section, _SECTIONS, 1)
        return "isn't a section" + (f"; did you mean [{near[0]}]?" if near else f"; there are {', '.join(_SECTIONS)}")
    if len(key) == 1:
        return f"is a section: write its keys below [{section}]"
    if section == "handlers":
        return f"isn't the name of a kind of job, which is {_words(get_args(_SECTIONS[section])[0])}"
    elsewhere = [other for other, known in _FIELDS.items() if name in known and other != section]
    near = difflib.get_close_matches(name, _FIELDS[section], 1)
    if near:
        return f"isn't a setting; did you mean {near[0]}?"
    return f"isn't a setting here; it belongs to [{elsewhere[0]}]" if elsewhere else f"isn't a setting of [{section}]"


def _unreadable_files(settings: Settings) -> Iterator[Problem]:
    for index, relay in enumerate(settings.relay):
        if relay.ca_file:
            try:
                Path(relay.ca_file).open("rb").close()
            except OSError as error:
                yield Problem(f"relay[{index}].ca_file", f"can't be read: {error.strerror}")


def _looked_at(problem: Problem) -> set[str]:
    """Return the keys, and their sections, without which a rule between values has nothing to say."""
    keys = {problem.path, *problem.concerns}
    return keys | {key.rpartition(".")[0] for key in keys}


def _with_origin(problem: Problem, origins: Mapping[str, str]) -> Problem:
    origin = origins.get(problem.path)
    return Problem(problem.path, f"{problem.message} ({origin})" if origin else problem.message)
