"""The set of templates that holds now.

Owns its exchange: a folder is read and compiled in a thread, beside the loop, and the new set takes the old one's place in one
step, or not at all. An attempt that runs meanwhile has the set with which it began.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

import structlog

from daemon.core.errors import ConfigError
from daemon.core.message import NO_TEMPLATES, Templates
from daemon.core.settings import Problem
from daemon.templates import reading

log = structlog.get_logger("mailslot.templates")


def load(folder: str) -> Templates:
    """Return the templates of a folder; none for "".

    Raises:
        ConfigError: with every problem that was found.
    """
    if not folder:
        return NO_TEMPLATES
    try:
        rendering = import_module("daemon.templates.rendering")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("daemon"):
            raise
        message = f"needs {error.name}, which isn't installed: run `pip install 'mailslot[templates]'`"
        raise ConfigError([Problem(reading.KEY, message)]) from error
    problems: list[Problem] = []
    files = reading.sources(Path(folder), problems)
    names = reading.by_template(files)
    problems += reading.incomplete(names)
    found: Templates = rendering.compiled(files, names, problems)
    if problems:
        raise ConfigError(problems)
    return found


class Library:
    """Holds the set, and reads it again when asked to."""

    def __init__(self, folder: str = "") -> None:
        """Read the folder; raises ConfigError with every problem that was found."""
        self.current = load(folder)
        self._folder = folder
        self._asked = asyncio.Event()

    def reload(self) -> None:
        """Ask for the folder to be read again; may be called from a signal's handler."""
        self._asked.set()

    async def run(self) -> None:
        """Read the folder each time that it was asked for. A folder with a fault changes nothing."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                self.current = await asyncio.to_thread(load, self._folder)
            except ConfigError as error:
                log.error("templates.reload_failed", problems=[f"{each.path}: {each.message}" for each in error.problems])  # noqa: TRY400
            else:
                log.info("templates.reloaded", templates=len(self.current))
