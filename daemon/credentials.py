"""Where does a password come from?

Of the database and of each relay, the first of these that is there:

1. the environment: MAILSLOT_DATABASE__PASSWORD, or .._PASSWORD_FILE
2. `password_file` in config.toml
3. a credential of systemd in $CREDENTIALS_DIRECTORY: db_password; relay_NAME_password, or smtp_password for the first relay
4. `password` in config.toml, with a warning if others may read the file

Never a flag, for everybody may read a process's arguments. What is returned is a `Secret`; no message shows it.
Used by `config` alone.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from daemon.config_sources import Given, Key, shown
from daemon.core.masking import without_passwords
from daemon.core.settings import Problem, Secret

_NAMES = ("password", "password_file")


def give_way(below: dict[Key, Given], layer: Mapping[Key, Given], problems: list[Problem]) -> None:
    """Take from lower layers the password of everything that `layer` gives one to, in either way."""
    for key in [key for key in layer if key[-1] in _NAMES]:
        below.pop((*key[:-1], "password"), None)
        below.pop((*key[:-1], "password_file"), None)
        if key[-1] == "password" and (*key[:-1], "password_file") in layer:
            problems.append(Problem(shown(key), "stands beside a password_file; one of them must go"))


def resolve(
    given: dict[Key, Given],
    environ: Mapping[str, str],
    problems: list[Problem],
    warn: Callable[[Problem], None],
    *,
    sends: bool,
) -> None:
    """Replace each `password` and `password_file` in `given` by a `Secret`, and add those that systemd provides.

    Without `sends` the relays' files and credentials aren't touched: who only looks at jobs may not read them.
    """
    folder = Path(environ["CREDENTIALS_DIRECTORY"]) if environ.get("CREDENTIALS_DIRECTORY") else None
    for owner in _owners(given):
        password, file = (given.pop((*owner, name), None) for name in _NAMES)
        if owner[0] == "relay" and not sends:
            continue
        credential = _credential(folder, owner, given) if folder else None
        key = (*owner, "password")
        if file is not None:
            given[key] = _from_file((*owner, "password_file"), file, problems, warn)
        elif credential is not None and (password is None or password.file is not None):
            given[key] = _from_file(key, Given(str(credential), f"credential {credential.name}"), problems, lambda _caution: None)
        elif password is not None:
            if password.file is not None:
                _warn_of_readers(key, password.file, warn)
            given[key] = password._replace(value=Secret(password.value) if isinstance(password.value, str) else password.value)
    dsn = given.get(("database", "dsn"))
    if dsn is not None and dsn.file is not None and without_passwords(str(dsn.value)) != dsn.value:
        _warn_of_readers(("database", "dsn"), dsn.file, warn)


def _owners(given: Mapping[Key, Given]) -> Iterator[Key]:
    yield ("database",)
    yield from sorted({key[:2] for key in given if key[0] == "relay"}, key=str)


def _credential(folder: Path, owner: Key, given: Mapping[Key, Given]) -> Path | None:
    if owner == ("database",):
        names = ["db_password"]
    else:
        name = given.get((*owner, "name"))
        names = [f"relay_{Path(str(name.value)).name}_password"] if name else []
        names += ["smtp_password"] if owner == ("relay", 0) else []
    return next((folder / name for name in names if _is_filled(folder / name)), None)


def _is_filled(path: Path) -> bool:
    """Say whether a credential is there; a unit's default for one that nobody provided is an empty line."""
    try:
        return path.read_bytes().strip() != b""
    except OSError:
        return False


def _from_file(key: Key, given: Given, problems: list[Problem], warn: Callable[[Problem], None]) -> Given:
    path = given.folder / str(given.value)
    try:
        password = path.read_text("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't text in UTF-8"
        problems.append(Problem(shown(key), f"can't be read from {path}: {reason} ({given.origin})"))
        return given._replace(value=Secret(""))
    if not password or "\n" in password or "\0" in password:
        problems.append(Problem(shown(key), f"{path} must hold one line, the password ({given.origin})"))
    _warn_of_readers(key, path, warn)
    return given._replace(value=Secret(password))


def _warn_of_readers(key: Key, path: Path, warn: Callable[[Problem], None]) -> None:
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH:
        warn(Problem(shown(key), f"everybody on this machine may read {path}, which holds a password: chmod o-r {path}"))
