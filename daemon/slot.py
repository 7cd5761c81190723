"""One unit of concurrency: takes a job, runs its attempt, records the conclusion, and again.

This is the boundary between one job and all others: whatever an attempt raises ends here, as a conclusion about that job, and
never stops the slot. It is the only place that catches everything.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from daemon.claimer import Claimed, Claimer
from daemon.core.outcome import Conclusion, Record, Release, broken
from daemon.core.retry import backoff_s
from daemon.fence import Means
from daemon.handlers import Attempt
from daemon.recorder import Recorder
from daemon.slots import Held, Lease
from daemon.store import Ending, Written

KIND_UNKNOWN_S = 60.0
"""How long a job waits whose kind this worker doesn't know; another worker may."""

EVENTS = {"dead": "job.dead", "in_doubt": "job.in_doubt"}
"""Outcomes that need a person."""

READY_AGAIN = Written("done", None)

log = structlog.get_logger("mailslot.slot")


class Slot:
    """Runs one attempt at a time."""

    def __init__(self, means: Means, held: Held, claimer: Claimer, recorder: Recorder, attempts: Mapping[str, Attempt]) -> None:
        self._means = means
        self._held = held
        self._claimer = claimer
        self._recorder = recorder
        self._attempts = attempts
        self._log = log.bind()
        """Bound once: the lazy logger of a module makes a new one for every line."""

    async def run(self) -> None:
        """Work until the claimer says that there is no more."""
        while (claimed := await self._claimer.next()) is not None:
            await self._work(claimed)

    async def _work(self, claimed: Claimed) -> None:
        job = claimed.job
        lease = Lease(job, self._means.trust.until(claimed.asked_mono), claimed.permit)
        self._held.take(lease)
        facts = {"job_id": job.id, "job_kind": job.kind, "queue": job.queue, "attempt": job.attempt}
        self._log.debug("job.claimed", **facts, takeover=job.taken_over)
        try:
            conclusion = await self._attempt(lease)
            lease.recording = True
            written = await self._recorder.write(Ending(job, conclusion))
        finally:
            self._held.drop(lease)
            if lease.afterwards is not None:
                lease.afterwards()
        self._say(lease, conclusion, written)
        if written == READY_AGAIN and conclusion.delay_s == 0.0:
            self._claimer.released(job)

    async def _attempt(self, lease: Lease) -> Conclusion:
        job = lease.job
        attempt = self._attempts.get(job.kind)
        if attempt is None:
            log.error("kind.unknown", job_id=job.id, job_kind=job.kind, known=sorted(self._attempts))
            return Release("kind_unknown", KIND_UNKNOWN_S)
        try:
            return await attempt(lease)
        except Exception as error:
            log.exception("attempt.failed", job_id=job.id, job_kind=job.kind, stage=lease.stage)
            pause_s = backoff_s(job.attempt, self._means.settings.retry, self._means.ports.number())
            return broken(job, type(error).__name__, in_doubt=lease.past_dot and job.kind == "email", backoff_s=pause_s)

    def _say(self, lease: Lease, conclusion: Conclusion, written: Written) -> None:
        """Log the state that the row is in now, once."""
        job = lease.job
        facts = {
            "job_id": job.id,
            "job_kind": job.kind,
            "attempt": job.attempt,
            "reason": conclusion.reason,
            "relay": conclusion.relay,
            "reply": conclusion.reply,
        }
        if written.state == "lost":
            log.warning("outcome.stale", job_id=job.id, attempt=job.attempt, stage=lease.stage, verdict=_verdict(conclusion))
        elif written.outcome == "sent":
            self._log.info("job.sent", **facts)
        elif written.outcome == "cancelled":
            log.info("job.cancelled", **facts)
        elif written.outcome is not None:
            log.error(EVENTS[written.outcome], **facts)
        elif isinstance(conclusion, Release):
            log.info("job.released", retry_in_s=round(conclusion.delay_s, 3), **facts)
        else:
            event = "attempt.in_doubt" if conclusion.verdict == "doubt" else "job.deferred"
            log.warning(event, retry_in_s=round(conclusion.delay_s, 3), **facts)


def _verdict(conclusion: Conclusion) -> str:
    return conclusion.verdict if isinstance(conclusion, Record) else "free"
