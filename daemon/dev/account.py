"""Which account runs a program that refuses to run as root, and what can that account reach?

PostgreSQL never runs as root. Root therefore borrows an account that exists already; everybody else is their own account.
Nothing is created or changed on the machine: no user, and no permission of a folder that isn't ours.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import subprocess
from pathlib import Path

from daemon.core.errors import MailslotError

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclasses.dataclass(frozen=True)
class Account:
    """Somebody who runs PostgreSQL; `user` and `group` are None when that is who we are anyway."""

    name: str
    user: int | None = None
    group: int | None = None

    @classmethod
    def choose(cls, owned: Path) -> Account:
        """Return ourselves; for root, who owns the folder `owned` already, else who called sudo, else postgres or nobody."""
        if os.geteuid() != 0:
            return cls(name=str(os.geteuid()))
        if owned.exists() and owned.stat().st_uid != 0:
            found = pwd.getpwuid(owned.stat().st_uid)
            return cls(found.pw_name, found.pw_uid, found.pw_gid)
        for name in (os.environ.get("SUDO_USER", ""), "postgres", "nobody"):
            try:
                found = pwd.getpwnam(name)
            except KeyError:
                continue
            if found.pw_uid != 0:
                return cls(found.pw_name, found.pw_uid, found.pw_gid)
        raise MailslotError("PostgreSQL refuses to run as root, and there is no account postgres or nobody to run it as.")

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the command as this account and wait for it; its output is in `stdout`, errors included.

        Raises:
            OSError: the account can't reach or execute the program.
        """
        return subprocess.run(  # noqa: S603  our own command lines
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            cwd="/",
            env=ENVIRONMENT,
            user=self.user,
            group=self.group,
            extra_groups=None if self.user is None else [],
        )

    def can_enter(self, folder: Path) -> bool:
        """Say whether the account can reach what lies in the folder."""
        return self.run("/bin/sh", "-c", 'test -x "$0"', folder).returncode == 0

    def own(self, path: Path) -> None:
        """Give the path to the account."""
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)
