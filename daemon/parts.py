"""What the configuration names and the worker is made of: templates, the signer, the operator's functions, certificates.

Answers one question, for `mailslot run` and `mailslot run --check-config` alike: can a worker be made of this? Each part reads
its own files and says what is wrong with them. Here all of it comes together, so that whoever has to put it right reads every
problem at once, and the check can't call good what the start refuses. Connects to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from daemon import dkim, handlers
from daemon.core.errors import ConfigError
from daemon.core.settings import Problem, Relay, Settings
from daemon.smtp.opening import tls_context
from daemon.templates import Library

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Parts:
    """What was read."""

    library: Library
    signer: dkim.Signer | None
    functions: Mapping[str, handlers.Function]


def load(settings: Settings, environ: Mapping[str, str], known: Iterable[Problem] = ()) -> Parts:
    """Read and try everything that the settings name; `known` is what is wrong with the settings themselves.

    Raises:
        ConfigError: with every problem, the known ones first.
    """
    problems = list(known)

    def tried(read: Callable[[], Part], otherwise: Part) -> Part:
        try:
            return read()
        except ConfigError as error:
            wrong = {problem.path for problem in problems}  # a key that is known to be wrong was read as its default
            problems.extend(problem for problem in error.problems if problem.path not in wrong)
            return otherwise

    parts = Parts(
        tried(lambda: Library(settings.templates.dir), Library()),
        tried(lambda: dkim.load(settings.dkim, environ), None),
        tried(lambda: handlers.load(settings.handlers), {}),
    )
    tried(lambda: _try_certificates(settings.relay), None)
    if problems:
        raise ConfigError(problems)
    return parts


def _try_certificates(relays: Iterable[Relay]) -> None:
    """Read what the relays' certificates will be checked against; raises ConfigError with the key of each that can't be."""
    problems = []
    for index, relay in enumerate(relays):
        try:
            tls_context(relay)
        except ConfigError as error:
            problems += [Problem(f"relay[{index}].ca_file", problem.message) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
