"""`mailslot run` and `mailslot dev`: hands settings to the daemon, or arguments to the demonstration."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib import import_module

from daemon import logs
from daemon.cli.exits import Exit, UsageError
from daemon.cli.options import settings_of_worker
from daemon.cli.render import as_json
from daemon.core.errors import ConfigError


def run(arguments: Namespace) -> int:
    """Start the daemon; returns its exit code when it has drained."""
    if arguments.check_config:
        return check_config(arguments)
    if arguments.json:
        raise UsageError("--json goes with --check-config; the daemon's log is JSON lines wherever it isn't a terminal")
    settings, problems = settings_of_worker(arguments)
    from daemon.app import run as run_daemon  # noqa: PLC0415 - the daemon and its libraries are loaded only to be run

    return run_daemon(settings, once=arguments.once, problems=problems)


def check_config(arguments: Namespace) -> int:
    """Say every problem that keeps a worker from being made of this configuration, each with its key; nothing is started.

    Templates, keys, certificates and the operator's functions are read as at the daemon's start.
    """
    from daemon import parts  # noqa: PLC0415 - the same

    settings, problems = settings_of_worker(arguments)
    logs.configure(settings.log, stream=sys.stderr)
    try:
        parts.load(settings, os.environ, problems)
    except ConfigError as error:
        if not arguments.json:
            raise
        print(as_json({"ok": False, "problems": [{"key": each.path, "problem": each.message} for each in error.problems]}))
        return Exit.CONFIGURATION
    print(as_json({"ok": True, "problems": []}) if arguments.json else "ok")
    return Exit.DONE


def dev(arguments: Namespace) -> int:
    """Start the demonstration with its own database and inbox."""
    try:
        demo = import_module("daemon.dev.demo")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("daemon"):
            raise
        raise UsageError(f"mailslot dev needs {error.name}, which isn't installed; run `pip install 'mailslot[dev]'`") from error
    return int(demo.main(arguments))
