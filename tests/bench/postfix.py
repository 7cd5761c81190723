"""Debian's smtp-sink and smtp-source: where they are, or how they are unpacked without being installed.

They belong to Postfix, and are the fastest sink and source that a package manager has. Nothing is configured or started by the
package itself: it is only unpacked, and only where apt-get and dpkg can do so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

PATHS = os.pathsep.join(["/usr/sbin", "/usr/lib/postfix/sbin", os.environ.get("PATH", "")])
DOWNLOAD_TIMEOUT_S = 60.0
USAGE = 1
"""What the programs leave with when they are asked for nothing; 127 when a library is missing."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The two programs, and the environment in which they find their libraries."""

    sink: str
    source: str
    environment: dict[str, str] = field(default_factory=dict)


def find(folder: Path) -> Tools | None:
    """Return the programs: those of the machine, or unpacked into the folder, where they stay for the next run; None without."""
    sink, source = shutil.which("smtp-sink", path=PATHS), shutil.which("smtp-source", path=PATHS)
    if sink and source:
        return _working(Tools(sink, source))
    unpacked = folder / "postfix"
    if not unpacked.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        _unpack(unpacked)
    programs = unpacked / "usr" / "sbin"
    libraries = {"LD_LIBRARY_PATH": str(unpacked / "usr" / "lib" / "postfix")}
    return _working(Tools(str(programs / "smtp-sink"), str(programs / "smtp-source"), libraries))


def _unpack(place: Path) -> None:
    unfinished = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _run(unfinished, "apt-get", "download", "-q", "postfix")
        (package,) = unfinished.glob("postfix_*.deb")
        _run(unfinished, "dpkg", "-x", package.name, ".")
        package.unlink()
        unfinished.rename(place)
    except (OSError, ValueError, subprocess.SubprocessError):
        shutil.rmtree(unfinished, ignore_errors=True)


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_TIMEOUT_S)


def _working(tools: Tools) -> Tools | None:
    try:
        tried = subprocess.run([tools.sink], env={**os.environ, **tools.environment}, capture_output=True, check=False)
    except OSError:
        return None
    return tools if tried.returncode == USAGE else None
