"""Compares what a case expects with what came of it.

Rules, beside the obvious:
- The run of a case that ends in a final outcome is judged by that; one about putting off (retry, retry_free, partial,
  pause_transport) by what its first attempt meant.
- Many jobs alike (`count`) must all come to what is expected. Of a batch, in which the relay may treat each address in its own
  way, at least one must; `server_accepts` and `per_recipient` say the rest.
- Whether a missing answer uses an attempt up, the protocol says and not the case: silence before the dot doesn't, silence inside
  the body does.
- An attempt that sends isn't used up; a case may count it all the same. What became of an attempt that found nothing to send
  (`invalid`) nobody counts.
- Whatever is expected: nobody may speak SMTP wrongly, and no attempt may end in a surprise.
- What came too late, or outlived too many workers, is dead: cases have no word of its own for it.
- A daemon that refuses to start leaves all jobs unharmed, as a relay that pauses does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance.casefile import EXPECTED_KEYS, CannotExpressError, Case
from tests.conformance.result import NOT_TRIED, JobResult, Result

PUT_OFF = frozenset({"retry", "retry_free"})
DEAD = frozenset({"rejected", "invalid", "expired", "worker_lost"})


@dataclass
class Judgement:
    """One case's line."""

    case: Case
    expected: dict[str, Any]
    got: dict[str, Any]
    differs: list[str] = field(default_factory=list)
    took_s: float = 0.0
    result: Result | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differs


def expectation(case: Case) -> dict[str, Any]:
    """Return what a case expects, of what can be compared."""
    shown = {key: case.expected[key] for key in sorted(EXPECTED_KEYS - {"asserts", "also_ok"}) if key in case.expected}
    shown["outcome"] = "|".join(case.wanted)
    return shown


def judged(case: Case, result: Result) -> Judgement:
    """Compare.

    Raises:
        CannotExpressError: the case expects something that isn't compared here.
    """
    if unknown := case.expected.keys() - EXPECTED_KEYS:
        raise CannotExpressError(f"expected.{min(unknown)}")
    words = [_word(job, case, result) for job in result.jobs]
    made = Judgement(case, expectation(case), {"outcome": "+".join(sorted(set(words)))}, result=result)
    if not _is_wanted(words, case, result):
        made.differs.append("outcome")
    _compare(made, "attempts_burned", _burned(case, result), burned_fits(case, result))
    _compare(made, "server_accepts", result.stored, result.stored == case.expected.get("server_accepts"))
    _compare(made, "connection", result.connection or "unknown", result.connection == case.expected.get("connection"))
    reasons = sorted({str(_reason(job)) for job in result.jobs})
    _compare(made, "reason", "+".join(reasons), case.expected.get("reason") in reasons)
    _per_recipient(made, case, result)
    made.differs += result.surprises
    return made


def _compare(made: Judgement, key: str, got: object, fits: bool) -> None:  # noqa: FBT001  the answer to the key's question
    if key in made.expected:
        made.got[key] = got
        if not fits:
            made.differs.append(key)


def _word(job: JobResult, case: Case, result: Result) -> str:
    """Say what came of a job, in the kind of words that the case expects."""
    if not job.is_final and (result.refused_to_start or (result.paused and job.burned == 0)) and job.last != "partial":
        return "pause_transport"
    if case.wanted[0] in PUT_OFF:
        return job.first if job.first != NOT_TRIED else _untried(result)
    return job.last if job.last != NOT_TRIED else _untried(result)


def _untried(result: Result) -> str:
    return "retry_free" if result.lost else NOT_TRIED


def _is_wanted(words: list[str], case: Case, result: Result) -> bool:
    wanted = {*case.wanted, *(_by_protocol(case, result))}
    if "dead" in wanted:
        wanted |= DEAD
    if wanted & {"rejected", "invalid"}:
        wanted |= {"expired", "worker_lost"}
    right = [word in wanted for word in words]
    return any(right) if "batch" in case.job else bool(right) and all(right)


def _by_protocol(case: Case, result: Result) -> set[str]:
    """Return what the protocol says where a case speaks of putting off after a relay's silence."""
    stage = result.silent_stage
    if stage in {None, "dot", "quit", "rset"} or PUT_OFF.isdisjoint(case.wanted):
        return set()
    return {"retry"} if stage == "body" else {"retry_free"}


def burned_fits(case: Case, result: Result) -> bool:
    """Tell whether the attempts that were used up are as many as expected."""
    expected = case.expected.get("attempts_burned")
    if expected is None:
        return True
    return all(_one_fits(job, int(expected), case, result) for job in result.jobs)


def _one_fits(job: JobResult, expected: int, case: Case, result: Result) -> bool:
    burned = _first_burned(job, case)
    if burned == expected or job.last == "invalid":
        return True
    if job.last == "sent" and expected >= 1:
        return burned + 1 == expected
    return bool(_by_protocol(case, result)) and {burned, expected} == {0, 1}


def _first_burned(job: JobResult, case: Case) -> int:
    """Count up to the conclusion that is judged."""
    return job.conclusions[0].burned if case.wanted[0] in PUT_OFF and job.conclusions else job.burned


def _burned(case: Case, result: Result) -> str:
    return "+".join(sorted({str(_first_burned(job, case)) for job in result.jobs}))


def _reason(job: JobResult) -> object:
    if job.row is not None and job.row["reason"]:
        return job.row["reason"]
    return job.conclusions[0].line.get("reason") if job.conclusions else None


def _per_recipient(made: Judgement, case: Case, result: Result) -> None:
    """Compare "word code" for each address with what the row says: for the address, or for all alike."""
    expected: dict[str, str] = case.expected.get("per_recipient", {})
    got = {address: _recipient(address, result) for address in expected}
    if expected:
        made.got["per_recipient"] = got
    for address, words in expected.items():
        word, _, code = words.partition(" ")
        found, _, reply = got[address].partition(" ")
        same = found == word or {found, word} == PUT_OFF or (word == "dead" and found in DEAD)
        if not same or code not in reply:
            made.differs.append(f"per_recipient.{address}")


def _recipient(address: str, result: Result) -> str:
    for job in result.jobs:
        if address in job.recipients:
            return " ".join(job.recipients[address]).strip()
    for job in result.jobs:
        if address in job.payload:
            reply = (job.row or {}).get("reply") or next((each.line.get("reply") for each in job.conclusions), None) or ""
            return f"{job.last} {reply}".strip()
    return NOT_TRIED
