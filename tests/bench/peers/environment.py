"""A peer's own environment: a venv with exactly the packages of its requirements, which never meet the project's.

It stays in the bench's folder and is made anew when the requirements or the interpreter change. Needs the network the first time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.peers.catalogue import Peer

MAKE_LIMIT_S = 300.0
ASK_LIMIT_S = 20.0
NEWER_MINORS = 3
CAN_MAKE_ONE = "import ensurepip, platform, venv; print(platform.python_version())"


class NotMeasuredError(Exception):
    """A peer, or one of its scenes, couldn't be measured; the text says why, for the table."""


async def environment_of(peer: Peer, folder: Path) -> tuple[Path, str]:
    """Return the interpreter of the peer's environment and its version; make the environment when it isn't there.

    Raises NotMeasuredError when no interpreter is new enough, or when a package can't be had.
    """
    base, version = await _interpreter(peer.python)
    place = folder / peer.name
    wanted = f"{version}\n{peer.requirements.read_text(encoding='utf-8')}"
    stamp, python = place / "made-from", place / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        await output_of([base, "-m", "venv", "--clear", place], limit_s=MAKE_LIMIT_S)
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--quiet",
            "-r",
            peer.requirements,
        ]
        await output_of(pip, limit_s=MAKE_LIMIT_S)
        stamp.write_text(wanted, encoding="utf-8")  # last, so that what was broken off begins again
    return python, version


async def output_of(command: Sequence[str | Path], *, limit_s: float, cwd: Path | None = None) -> str:
    """Run a program to its end and return what it wrote, without the project's own environment in its way.

    Raises NotMeasuredError when it fails or takes too long; then it is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=cwd, env=clean(), start_new_session=True
    )
    try:
        async with asyncio.timeout(limit_s):
            written, _ = await process.communicate()
    except TimeoutError:
        raise NotMeasuredError(f"{_named(command)} took more than {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    text = written.decode(errors="replace").strip()
    if process.returncode != 0:
        raise NotMeasuredError(f"{_named(command)}: {last_line(text) or f'exit code {process.returncode}'}")
    return text


def clean() -> dict[str, str]:
    """Return our environment without what would change another Python's imports, or where PostgreSQL is looked for."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG", "OBAN", "VIRTUAL_ENV"))}


def last_line(text: str) -> str:
    """Return the last line that says something, where a traceback and pip say what went wrong: its first 200 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("WARNING", "[notice]"))]
    return lines[-1][:200] if lines else ""


async def _interpreter(least: tuple[int, int]) -> tuple[Path, str]:
    for candidate in _candidates(least):
        try:
            return candidate, await output_of([candidate, "-c", CAN_MAKE_ONE], limit_s=ASK_LIMIT_S)
        except (NotMeasuredError, OSError):
            continue  # a shim without a version behind it, or a Debian Python without its venv package
    raise NotMeasuredError(f"needs Python {least[0]}.{least[1]} or newer, with venv, on the PATH")


def _candidates(least: tuple[int, int]) -> Iterator[Path]:
    """Our own interpreter first, so that peers and we run on the same one; then the oldest that will do."""
    if sys.version_info[:2] >= least:
        yield Path(sys.executable)
    for minor in range(least[1], least[1] + NEWER_MINORS):
        found = shutil.which(f"python{least[0]}.{minor}")
        if found:
            yield Path(found)
        yield from sorted(Path.home().glob(f".pyenv/versions/{least[0]}.{minor}*/bin/python"))


def _named(command: Sequence[str | Path]) -> str:
    words = [Path(command[0]).name, *map(str, command[1:4])]
    return "pip" if "pip" in words else " ".join(words[:3])
