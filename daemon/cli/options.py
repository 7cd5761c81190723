"""From flags to settings: the last link of default < file < environment < flag."""

from __future__ import annotations

import os
from argparse import Namespace

from daemon import config
from daemon.core.settings import Problem, Settings


def settings_of(arguments: Namespace) -> Settings:
    """Load the configuration of an operator's command, which needs no relay; raises ConfigError with every problem in it."""
    return config.load(arguments.config, os.environ, {})


def settings_of_worker(arguments: Namespace) -> tuple[Settings, list[Problem]]:
    """Load the configuration of `mailslot run`, whose flags override it, and what is wrong with it."""
    flags = {"concurrency": arguments.concurrency, "queues": arguments.queue}
    return config.read(arguments.config, os.environ, flags, sends=True)
