"""From the command line to an exit code.

Every command ends here: what it raises becomes a sentence on standard error and a number (`daemon.cli.exits`), never a traceback;
only a bug shows one. Nothing but the parser is loaded before it is known what is wanted.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from daemon.cli.exits import Exit, meaning_of, sentence_for
from daemon.cli.parser import parser
from daemon.core.errors import MailslotError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, also for --help and for usage errors."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else Exit.NOTHING_DONE
    module, _, name = arguments.target.partition(":")
    try:
        code = int(getattr(import_module(module), name)(arguments))
        sys.stdout.flush()
    except MailslotError as error:
        sys.stderr.write(f"mailslot: {sentence_for(error)}\n")
        return meaning_of(error)
    except BrokenPipeError:
        _forget_output()
        return Exit.PIPE_CLOSED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return code


def _forget_output() -> None:
    """Point standard output at nothing, or the interpreter would complain about the closed pipe once more when it leaves."""
    try:
        descriptor = sys.stdout.fileno()
    except (io.UnsupportedOperation, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
