"""Runs files of cases through the real daemon, and says what differs: `python -m tests.conformance FILE.. [--only ID..]`.

A line for each case: its id, what is expected, what came of it. At the end the counts by kind. Exits 1 if a case differs, 64 if a
file is no file of cases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conformance.casefile import Case, read_all
from tests.conformance.judge import Judgement
from tests.conformance.suite import AT_ONCE, judge_all, own_databases

CASES = Path(__file__).parent / "cases"
USAGE, INTERRUPTED = 64, 130
LONGEST = 400
"""Characters of one difference: a traceback isn't for a line."""


def _shown(values: dict[str, Any]) -> str:
    """Return the outcome and then what else there is, as key=value."""
    rest = [f"{key}={json.dumps(value, ensure_ascii=True)}" for key, value in values.items() if key != "outcome"]
    return " ".join([str(values.get("outcome", "-")), *rest])


def _line(judgement: Judgement) -> str:
    differs = ", ".join(" / ".join(each.splitlines())[:LONGEST] for each in judgement.differs)
    verdict = "ok" if judgement.ok else f"DIFFERS: {differs}"
    return f"{judgement.case.id}\texpected {_shown(judgement.expected)}\tgot {_shown(judgement.got)}\t{verdict}"


def _say(text: str) -> None:
    sys.stdout.write(text.encode("ascii", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def _summary(judgements: list[Judgement]) -> str:
    kinds = Counter(judgement.case.kind for judgement in judgements)
    right = Counter(judgement.case.kind for judgement in judgements if judgement.ok)
    rows = [f"  {kind}: {right[kind]} of {count}" for kind, count in sorted(kinds.items())]
    return "\n".join([*rows, f"{sum(right.values())} of {len(judgements)} cases are as expected"])


def _as_json(judgement: Judgement) -> dict[str, Any]:
    case = judgement.case
    return {
        "id": case.id,
        "kind": case.kind,
        "ok": judgement.ok,
        "expected": judgement.expected,
        "got": judgement.got,
        "differs": judgement.differs,
        "took_s": judgement.took_s,
    }


async def _main(cases: list[Case], at_once: int) -> list[Judgement]:
    async with own_databases() as databases:
        return await judge_all(cases, databases, at_once=at_once, heard=lambda judgement: _say(_line(judgement)))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run cases of mail and relay through the real daemon.")
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="a file of cases or a folder; default: the project's own"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="only cases whose id or kind begins so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file as well")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="how many cases at the same time")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended, as by Ctrl-C
    try:
        cases = read_all(options.files or [CASES])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        sys.stderr.write(f"no file of cases: {error}\n")
        return USAGE
    only = tuple(options.only)
    chosen = [case for case in cases if not only or case.id.startswith(only) or case.kind.startswith(only)]
    try:
        judgements = asyncio.run(_main(chosen, options.at_once))
    except KeyboardInterrupt:
        return INTERRUPTED
    _say(_summary(judgements))
    if options.json:
        options.json.write_text(json.dumps([_as_json(judgement) for judgement in judgements], indent=1) + "\n")
    return 0 if all(judgement.ok for judgement in judgements) else 1


if __name__ == "__main__":
    sys.exit(main())
