"""Which jobs make a relay drop the connection, and how often in a row: what a worker remembers between two tries.

A relay that closes in the middle of a transaction has said nothing about the message, so no attempt is used up. But where it does
so on one message again and again, the message waits longer each time, and the relay isn't blamed twice for the same one: one
address that crashes a content filter must not take the relay from everybody else. Forgotten when the process ends, and when the
job comes further than that.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from daemon.core.smtp import Fault, Report, Stage
from daemon.core.verdicts import Decision, Verdict

_REMEMBERED: Final = 1_000
_DROPPED_AT: Final = frozenset({Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.BODY})


class Drops:
    """Counts by job; holds at most a thousand of them."""

    def __init__(self) -> None:
        self._times: OrderedDict[int, int] = OrderedDict()

    def count(self, job_id: int, report: Report, decision: Decision) -> int:
        """Return how many times in a row this job was dropped, this report included; 0 if it wasn't now."""
        if decision.verdict is not Verdict.FREE or report.stage not in _DROPPED_AT or not isinstance(report.answer, Fault):
            self._times.pop(job_id, None)
            return 0
        times = self._times.pop(job_id, 0) + 1
        self._times[job_id] = times
        if len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)
        return times
