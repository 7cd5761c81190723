"""Measures everything, in one run on one machine: `python -m tests.bench [--quick] [--only NAME..] [--peers]`.

Starts a PostgreSQL and an SMTP sink of its own, runs the daemon as its users do, and beside it the limits: the same SMTP code
without the queue, the same statements without SMTP. Prints a table, and writes results.json and plot.svg. No timing is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from daemon import __version__
from daemon.loop import new_event_loop
from tests.bench import enqueue, flat, idle, limits, messages, pickup, plot, postfix, profile, scale, server, table
from tests.bench.bench import REPEATS, Bench
from tests.bench.row import Row
from tests.bench.worker import compile_daemon

FOLDER = Path(".mailslot/bench")
DONE, FAILED, USAGE, TERMINATED = 0, 1, 64, 143

Part: TypeAlias = Callable[[Bench], Awaitable[list[Row]]]


async def measure(bench: Bench, parts: Sequence[Part]) -> tuple[list[Row], int]:
    """Measure part by part; returns the rows, and how many parts have failed: one that fails doesn't cost the others."""
    rows: list[Row] = []
    failed = 0
    for part in parts:
        try:
            rows += await part(bench)
        except Exception:  # noqa: BLE001  the others have taken an hour
            failed += 1
            bench.say(traceback.format_exc())
    return rows, failed


def chosen(arguments: argparse.Namespace) -> list[Part]:
    """Return what is to be measured, in order."""
    if arguments.profile:
        return [partial(profile.rows, file=arguments.profile.absolute())]
    parts: list[Part] = [limits.scenes_beside_them, pickup.rows, idle.rows, enqueue.rows, messages.rows]
    if arguments.flat:
        parts.append(flat.rows)
    if arguments.scale:
        parts.append(scale.rows)
    if arguments.peers:
        parts.append(import_module("tests.bench.peers.compare").compare)
    return parts


def results(bench: Bench, rows: list[Row]) -> dict[str, object]:
    """Return everything that was measured, and on what."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "mailslot": __version__,
        "python": platform.python_version(),
        "postgres": bench.server.version,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "sink": "smtp-sink" if bench.tools else "own",
        "quick": bench.quick,
        "rows": [row.as_json() for row in rows],
    }


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the daemon, the limits beside it, and other queues.")
    parser.add_argument("--quick", action="store_true", help="each scene once, with a tenth of the jobs")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only scenes of these names, such as smtp-50 or noop*"
    )
    parser.add_argument("--repeats", type=int, metavar="N", help=f"how often each scene is measured ({REPEATS}; 1 when quick)")
    parser.add_argument("--peers", action="store_true", help="measure other queues beside it")
    parser.add_argument("--flat", action="store_true", help="large tables, and a snapshot that keeps vacuum from cleaning; slow")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="only profile one scene (smtp-50, or the first of --only)")
    parser.add_argument("--scale", action="store_true", help="1, 2, 4 and 8 daemons")
    parser.add_argument("--folder", type=Path, default=FOLDER, metavar="DIR", help="where results go (%(default)s)")
    return parser.parse_args()


def main() -> int:
    """Run the command line; returns 1 if anything has failed, 64 if there is nothing of that name."""
    arguments = parsed()
    folder = arguments.folder.absolute()
    keep = folder / "keep"
    keep.mkdir(parents=True, exist_ok=True)
    compile_daemon()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # what was started is ended, and the folder removed
    scratch = Path(tempfile.mkdtemp(prefix="mailslot-bench-", dir="/var/tmp"))  # a real disk: what fsync is for
    scratch.chmod(0o711)
    try:
        with server.running(scratch) as postgres, asyncio.Runner(loop_factory=new_event_loop) as runner:
            bench = Bench(
                postgres,
                scratch,
                keep,
                postfix.find(keep),
                quick=arguments.quick,
                only=arguments.only,
                repeats=arguments.repeats or (1 if arguments.quick else REPEATS),
            )
            runner.run(postgres.look())
            rows, failed = runner.run(measure(bench, chosen(arguments)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if rows:
        write(bench, rows, folder)
    elif not arguments.profile:
        sys.stderr.write("nothing was measured: is there a scene of that name?\n")
    return FAILED if failed else DONE if rows or arguments.profile else USAGE


def write(bench: Bench, rows: list[Row], folder: Path) -> None:
    """Print the table, and write the files."""
    print(f"{table.render(rows)}\n\n{table.LEGEND}")
    (folder / "results.json").write_text(json.dumps(results(bench, rows), indent=1) + "\n")
    (folder / "plot.svg").write_text(plot.svg(rows))
    print(f"\n{folder / 'results.json'}\n{folder / 'plot.svg'}")


if __name__ == "__main__":
    sys.exit(main())
