"""How does a program end when its parent is gone, however the parent ended?

Runs one command and holds its standard input as a lifeline to the parent:

    python -I keeper.py --at-end INT:10,QUIT:5 [--user UID --group GID] [--remove FOLDER] -- COMMAND..

Each line that arrives names a signal, such as `TERM`, which is passed on at once. The end of the input means that the
parent is gone, also by SIGKILL; so does SIGTERM, SIGINT or SIGHUP to the keeper. Then the signals of --at-end are sent one
after the other, each with its patience in seconds, SIGKILL last; afterwards FOLDER is removed.

Promises: it ends when the command ends, with the command's exit code, or 128 + the signal that ended it.
Imports nothing of mailslot, so that `python -I` and a change of user can't keep it from starting.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
from types import FrameType

STDIN = 0
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _noticed(_number: int, _frame: FrameType | None) -> None:
    """Do nothing here: the wake-up descriptor tells."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="keeper")
    parser.add_argument("--at-end", required=True, metavar="SIGNAL:SECONDS,..")
    parser.add_argument("--user", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--remove", metavar="FOLDER")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _pass_signals_on(process: subprocess.Popen[bytes], woken: int) -> bool:
    """Pass the parent's signals on until the command has ended (False) or must end because the parent is gone (True)."""
    while process.poll() is None:
        ready, _, _ = select.select([STDIN, woken], [], [])
        if woken in ready and any(signal.Signals(number) in ENDINGS for number in os.read(woken, 64)):
            return True
        if STDIN in ready:
            names = os.read(STDIN, 4096).split()
            if not names:
                return True
            for name in names:
                process.send_signal(signal.Signals[f"SIG{name.decode()}"])
    return False


def _end_process(process: subprocess.Popen[bytes], at_end: str) -> None:
    for entry in at_end.split(","):
        name, _, patience_s = entry.partition(":")
        process.send_signal(signal.Signals[f"SIG{name}"])
        try:
            process.wait(float(patience_s))
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()


def main() -> int:
    """Run the command until it ends, or until the parent is gone."""
    arguments = _arguments()
    # Signals arrive as bytes beside the lifeline, so that none can be missed between a look and a wait.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (*ENDINGS, signal.SIGCHLD):
        signal.signal(number, _noticed)
    process = subprocess.Popen(  # noqa: S603  the caller's own command
        arguments.command,
        stdin=subprocess.DEVNULL,
        user=arguments.user,
        group=arguments.group,
        extra_groups=None if arguments.user is None else [],
    )
    if _pass_signals_on(process, woken):
        _end_process(process, arguments.at_end)
        if arguments.remove:
            shutil.rmtree(arguments.remove, ignore_errors=True)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
