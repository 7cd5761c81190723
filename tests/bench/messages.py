"""Making a mail, ours beside the standard library, as rows of the table; see `message`, which also runs alone."""

from __future__ import annotations

from tests.bench.bench import Bench
from tests.bench.message import MAILS, measured
from tests.bench.row import OURS, Row

SECONDS, QUICK_SECONDS = 2.0, 0.5


async def rows(bench: Bench) -> list[Row]:
    """Measure each kind of mail; no process, no server."""
    if not bench.wanted("message"):
        return []
    found = []
    for name, mail in MAILS.items():
        repeats = [measured(mail, QUICK_SECONDS if bench.quick else SECONDS) for _ in range(bench.repeats)]
        for side, by in (("ours", OURS), ("library", "standard library")):
            averages_us = [each[f"{side}_average_us"] for each in repeats]
            figures = [{"jobs_per_s": 1e6 / average_us, "worker_cpu_ms": average_us / 1000} for average_us in averages_us]
            found.append(Row(f"message, {name}", by, figures))
    bench.say(
        f"message: {found[0].figures['worker_cpu_ms']:.3f} ms, the standard library {found[1].figures['worker_cpu_ms']:.3f} ms"
    )
    return found
