"""What an attempt means for its job: tables for one recipient, laws for many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import product
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.core.job import Job
from daemon.core.outcome import (
    RELEASED_S,
    Answer,
    Conclusion,
    Entry,
    Exchange,
    Record,
    Release,
    broken,
    by_evidence,
    given_up,
    marked,
    remaining,
    settle,
    standing,
    written,
)
from daemon.core.smtp import Stage
from daemon.core.verdicts import Decision, Scope, Verdict

NOW = datetime(2025, 12, 1, 7, 30, tzinfo=UTC)
JOB = Job(
    id=1,
    uid=UUID(int=1),
    token=UUID(int=2),
    queue="default",
    kind="email",
    priority=1,
    payload="{}",
    payload_bytes=2,
    recipients=None,
    attempt=1,
    max_attempts=5,
    crashes=0,
    doubts=0,
    on_doubt="resend",
    created_at=NOW,
    available_at=NOW,
    expires_at=NOW,
)
ADDRESSES = ("ann@example.org", "bob@example.org", "cleo@example.org", "dan@example.org")
ANN, BOB, CLEO, _ = ADDRESSES
MAX_DOUBTS = 2
BACKOFF_S = 77.0


def answer(verdict: Verdict, reason: str = "why", wait_s: float | None = None) -> Answer:
    """Make an answer whose decision is this verdict."""
    return Answer(Decision(verdict, Scope.MESSAGE, reason, wait_s, "rule"), f"reply to {verdict}")


def settled(job: Job, entries: Mapping[str, Entry], last: Answer, refused: Mapping[str, Answer] | None = None) -> Conclusion:
    """Settle an exchange in which RCPT refused some and the others share its end."""
    answers = {address: (refused or {}).get(address, last) for address in remaining(entries)}
    return settle(job, entries, Exchange(Stage.DOT, "relay", last, answers), max_doubts=MAX_DOUBTS, backoff_s=BACKOFF_S)


def recorded(job: Job, entries: Mapping[str, Entry], last: Answer, refused: Mapping[str, Answer] | None = None) -> Record:
    """Settle what must end in a record."""
    conclusion = settled(job, entries, last, refused)
    assert isinstance(conclusion, Record)
    return conclusion


def mapped(record: Record) -> dict[str, str]:
    """Return the verdicts that a record stores by recipient."""
    assert record.recipients is not None
    return {address: entry.get("verdict", "later") for address, entry in json.loads(record.recipients).items()}


def stored(**verdicts: str) -> str:
    """Return a row's map by the first letters of the addresses; a trailing ? means doubted."""
    by_letter = {address[0]: address for address in ADDRESSES}
    entries = {by_letter[k]: {"verdict": v.rstrip("?"), "doubted": v.endswith("?")} for k, v in verdicts.items()}
    return json.dumps(entries)


def after(job: Job, record: Record, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return where the recipients stand once the record is written, read as the next attempt or a person reads it."""
    if record.recipients is not None:
        found = json.loads(record.recipients)
        assert set(found) == set(entries), "nobody is forgotten and nobody invented"
    row = replace(job, recipients=record.recipients, doubts=job.doubts + record.doubts)
    verdict = record.outcome or "later"
    alike = {a: Entry(verdict, None, row.doubts > 0) for a in entries}
    return standing(row, entries) if record.recipients is not None else alike


# ---------------------------------------------------------------- one recipient: the whole table


class Case(NamedTuple):
    """One way in which an attempt for one recipient can stand and end."""

    verdict: Verdict
    on_doubt: str
    doubts: int
    used_up: bool


def expected(case: Case) -> tuple[str | None, int, bool]:
    """Return (outcome, doubts to add, assumed): the policy, said a second time and by cases."""
    if case.verdict is Verdict.SENT:
        return "sent", 0, False
    unsent = "in_doubt" if case.doubts else "dead"
    if case.verdict is Verdict.REJECTED:
        return unsent, 0, False
    if case.verdict is Verdict.LATER:
        return (unsent if case.used_up else None), 0, False
    if case.on_doubt == "assume_sent":
        return "sent", 1, True
    again = case.on_doubt == "resend" and not case.used_up and case.doubts < MAX_DOUBTS
    return (None if again else "in_doubt"), 1, False


CASES = [
    Case(*values)
    for values in product(
        (Verdict.SENT, Verdict.LATER, Verdict.REJECTED, Verdict.DOUBT),
        ("resend", "hold", "assume_sent"),
        (0, 1, 2, 3),
        (False, True),
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.verdict}-{c.on_doubt}-{c.doubts}-{'last' if c.used_up else 'left'}")
def test_one_recipient_ends_as_the_table_says(case: Case) -> None:
    """Every verdict, policy, number of doubts, with attempts left and used up."""
    job = replace(JOB, on_doubt=case.on_doubt, doubts=case.doubts, attempt=5 if case.used_up else 1)
    record = recorded(job, standing(job, [ANN]), answer(case.verdict))
    assert (record.outcome, record.doubts, record.assumed) == expected(case)
    assert record.delay_s == (BACKOFF_S if record.outcome is None else 0.0)
    assert record.recipients is None, "one recipient needs no map: the row's own columns say it all"
    assert record.accepted == ((ANN,) if case.verdict is Verdict.SENT else ())
    assert (record.reason, record.relay, record.reply, record.stage) == ("why", "relay", f"reply to {case.verdict}", Stage.DOT)
    assert record.verdict == case.verdict.value


@pytest.mark.parametrize("on_doubt", ["resend", "hold", "assume_sent"])
@pytest.mark.parametrize("attempt", [1, 5])
def test_the_relays_fault_gives_the_attempt_back_even_when_it_is_the_last(on_doubt: str, attempt: int) -> None:
    """Nothing was learnt about the message, so nothing is used up and nothing is recorded about it."""
    job = replace(JOB, on_doubt=on_doubt, attempt=attempt, doubts=1)
    free = settled(job, standing(job, [ANN]), answer(Verdict.FREE))
    assert free == Release("why", RELEASED_S, "relay", "reply to free")
    assert settled(job, standing(job, [ANN]), answer(Verdict.FREE, wait_s=9.0)) == replace(free, delay_s=9.0)


def test_a_paused_relay_holds_back_no_job() -> None:
    """The pause is the relay's own; the job is ready at once, for another relay may take it."""
    paused = settled(JOB, standing(JOB, [ANN]), answer(Verdict.PAUSE, wait_s=300.0))
    assert paused == Release("why", 0.0, "relay", "reply to pause")


def test_a_hint_of_the_relay_replaces_the_backoff() -> None:
    """Also when it is shorter; "at once" where nobody was accepted is no hint, for it would spin."""
    delays = [recorded(JOB, standing(JOB, [ANN]), answer(Verdict.LATER, wait_s=w)).delay_s for w in (None, 300.0, 5.0, 0.0)]
    assert delays == [BACKOFF_S, 300.0, 5.0, BACKOFF_S]


# ---------------------------------------------------------------- several recipients


def test_the_deferred_one_is_tried_again_and_the_sent_one_is_not() -> None:
    """250 for one and 450 for the other: evidence names the first, the second remains."""
    record = recorded(JOB, standing(JOB, [ANN, BOB]), answer(Verdict.SENT), {BOB: answer(Verdict.LATER)})
    assert (record.outcome, record.accepted, record.delay_s) == (None, (ANN,), BACKOFF_S)
    assert mapped(record) == {ANN: "sent", BOB: "later"}
    assert remaining(standing(replace(JOB, recipients=record.recipients), [ANN, BOB])) == (BOB,)


def test_the_longest_wait_of_those_who_remain_counts() -> None:
    """The hint of somebody who is refused for good delays nobody."""
    refused = {
        ANN: answer(Verdict.LATER, wait_s=10.0),
        BOB: answer(Verdict.LATER, wait_s=300.0),
        CLEO: answer(Verdict.REJECTED, wait_s=9_999.0),
    }
    record = recorded(JOB, standing(JOB, [ANN, BOB, CLEO]), answer(Verdict.LATER), refused)
    assert record.delay_s == 300.0


@pytest.mark.parametrize(
    ("before", "last", "outcome", "reason"),
    [
        ({"a": "sent", "b": "later"}, Verdict.SENT, "sent", "why"),
        ({"a": "dead", "b": "later"}, Verdict.SENT, "sent", "partial"),
        ({"a": "sent", "b": "later"}, Verdict.REJECTED, "sent", "partial"),
        ({"a": "dead", "b": "later"}, Verdict.REJECTED, "dead", "why"),
        ({"a": "in_doubt?", "b": "later"}, Verdict.SENT, "in_doubt", "partial"),
        ({"a": "in_doubt?", "b": "later"}, Verdict.REJECTED, "in_doubt", "partial"),
        ({"a": "sent", "b": "later?"}, Verdict.REJECTED, "in_doubt", "partial"),
        ({"a": "in_doubt?", "b": "later?"}, Verdict.REJECTED, "in_doubt", "why"),
    ],
)
def test_when_nobody_remains_doubt_outranks_sent_and_sent_outranks_dead(
    before: dict[str, str], last: Verdict, outcome: str, reason: str
) -> None:
    """And `partial` says that the recipients fared differently."""
    job = replace(JOB, recipients=stored(**before), doubts=int("?" in str(before)))
    record = recorded(job, standing(job, [ANN, BOB]), answer(last))
    assert (record.outcome, record.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("on_doubt", "verdicts", "outcome"),
    [
        ("resend", {ANN: "later", BOB: "later", CLEO: "dead"}, None),
        ("hold", {ANN: "in_doubt", BOB: "later", CLEO: "dead"}, None),
        ("assume_sent", {ANN: "sent", BOB: "later", CLEO: "dead"}, None),
    ],
)
def test_doubt_covers_those_whom_rcpt_accepted_and_nobody_else(
    on_doubt: str, verdicts: dict[str, str], outcome: str | None
) -> None:
    """The dot was for the accepted; who was deferred or refused at RCPT keeps that, undoubted."""
    job = replace(JOB, on_doubt=on_doubt)
    refused = {BOB: answer(Verdict.LATER), CLEO: answer(Verdict.REJECTED)}
    record = recorded(job, standing(job, [ANN, BOB, CLEO]), answer(Verdict.DOUBT), refused)
    after = standing(replace(job, recipients=record.recipients, doubts=1), [ANN, BOB, CLEO])
    assert (record.outcome, mapped(record)) == (outcome, verdicts)
    assert [after[address].doubted for address in (ANN, BOB, CLEO)] == [True, False, False]


def test_an_assumed_recipient_flags_the_job_also_when_another_ends_it_later() -> None:
    """Ann was only assumed; that Bob's copy got a 2xx an attempt later doesn't make hers one."""
    job = replace(JOB, on_doubt="assume_sent")
    first = recorded(job, standing(job, [ANN, BOB]), answer(Verdict.DOUBT), {BOB: answer(Verdict.LATER)})
    again = replace(job, recipients=first.recipients, doubts=1, attempt=2)
    last = recorded(again, standing(again, [ANN, BOB]), answer(Verdict.SENT))
    assert (first.outcome, first.assumed) == (None, False)
    assert (last.outcome, last.assumed) == ("sent", True)


# ---------------------------------------------------------------- where recipients stand


def test_without_a_map_everybody_stands_alike() -> None:
    """And everybody was doubted if the job was."""
    assert standing(JOB, [ANN, BOB]) == {ANN: Entry(), BOB: Entry()}
    assert standing(replace(JOB, doubts=1), [ANN]) == {ANN: Entry(doubted=True)}


def test_with_a_map_each_stands_by_itself_in_the_envelopes_order() -> None:
    """An address that the map doesn't know is new and to be sent to; a mark that was left behind is none any more."""
    job = replace(JOB, recipients=stored(a="sent", b="marked?"), doubts=1)
    entries = standing(job, [CLEO, BOB, ANN])
    assert list(entries) == [CLEO, BOB, ANN]
    assert entries == {CLEO: Entry(), BOB: Entry("later", None, doubted=True), ANN: Entry("sent")}
    assert remaining(entries) == (CLEO, BOB)


def test_the_marks_map_says_whom_the_dot_covers() -> None:
    """Accepted recipients are marked, refused ones keep their refusal, finished ones are left alone."""
    job = replace(JOB, recipients=stored(a="sent", b="later", c="later", d="later"))
    refused = {CLEO: answer(Verdict.REJECTED), ADDRESSES[3]: answer(Verdict.LATER)}
    text = marked(job, standing(job, ADDRESSES), refused, [BOB])
    assert text is not None
    assert {a: e.get("verdict", "later") for a, e in json.loads(text).items()} == dict(
        zip(ADDRESSES, ("sent", "marked", "dead", "later"), strict=True)
    )


@pytest.mark.parametrize("doubts", [0, 1])
def test_a_dot_for_everybody_needs_no_map(doubts: int) -> None:
    """All alike: marked_at itself says so."""
    job = replace(JOB, doubts=doubts)
    assert marked(job, standing(job, [ANN, BOB]), {}, [ANN, BOB]) is None


def test_a_map_is_kept_where_the_rows_own_columns_would_say_less() -> None:
    """All alike but undoubted in a job that knows doubt: without the map they would count as doubted."""
    assert written({ANN: Entry(), BOB: Entry()}, 0) is None
    assert written({ANN: Entry(), BOB: Entry()}, 1) is not None
    assert written({ANN: Entry(doubted=True)}, 1) is None
    assert written({ANN: Entry(doubted=True)}, 0) is not None
    assert written({ANN: Entry(), BOB: Entry("sent")}, 0) is not None


# ---------------------------------------------------------------- evidence, giving up, surprises


def test_evidence_for_everybody_ends_the_job_as_sent() -> None:
    """An earlier lease's 2xx is as good as one of our own."""
    record = by_evidence(JOB, standing(JOB, [ANN, BOB]), [ANN, BOB])
    assert (record.outcome, record.recipients, record.assumed, record.doubts) == ("sent", None, False, 0)


def test_evidence_for_some_sends_the_job_back_at_once_without_them() -> None:
    """Even on its last attempt: nothing was tried for the others yet."""
    job = replace(JOB, attempt=5)
    record = by_evidence(job, standing(job, [ANN, BOB]), [ANN])
    assert (record.outcome, record.delay_s) == (None, 0.0)
    assert mapped(record) == {ANN: "sent", BOB: "later"}


@pytest.mark.parametrize("outcome", ["dead", "cancelled"])
@pytest.mark.parametrize(
    ("before", "doubts", "ends", "reason"),
    [
        (None, 0, None, "expired"),
        (None, 1, "in_doubt", "expired"),
        ({"a": "later", "b": "dead"}, 0, None, "expired"),
        ({"a": "later", "b": "sent"}, 0, "sent", "partial"),
        ({"a": "later", "b": "in_doubt?"}, 1, "in_doubt", "partial"),
        ({"a": "later?", "b": "dead"}, 1, "in_doubt", "partial"),
    ],
)
def test_giving_up_ends_those_who_remain_and_keeps_what_the_others_have(
    before: dict[str, str] | None, doubts: int, ends: str | None, reason: str, outcome: str
) -> None:
    """Dead or cancelled only if nobody has it and nobody was in doubt."""
    job = replace(JOB, recipients=stored(**before) if before else None, doubts=doubts)
    record = given_up(job, standing(job, [ANN, BOB]), outcome, "expired", "detail")
    assert (record.outcome, record.reason, record.reply) == (ends or outcome, reason, "detail")
    assert remaining(after(job, record, standing(job, [ANN, BOB]))) == ()


def test_a_surprise_before_the_dot_is_tried_again_until_the_attempts_are_used_up() -> None:
    """The recipients stand as they stood at the claim."""
    job = replace(JOB, recipients=stored(a="sent", b="later"))
    record = broken(job, "KeyError", in_doubt=False, backoff_s=BACKOFF_S)
    assert (record.outcome, record.delay_s, record.doubts, record.recipients) == (None, BACKOFF_S, 0, job.recipients)
    assert (record.reason, record.reply, record.verdict) == ("internal_error", "KeyError", "later")
    assert broken(replace(job, attempt=5), "KeyError", in_doubt=False, backoff_s=BACKOFF_S).outcome == "dead"


def test_a_surprise_after_the_dot_is_a_doubt() -> None:
    """Nobody knows whether the relay has it, whatever on_doubt says."""
    record = broken(JOB, "KeyError", in_doubt=True, backoff_s=BACKOFF_S)
    assert (record.outcome, record.doubts, record.verdict, record.delay_s) == ("in_doubt", 1, "doubt", 0.0)


def test_a_surprise_after_the_dot_forgets_nobody() -> None:
    """Who had it before keeps that; who was to get it now is in doubt."""
    job = replace(JOB, recipients=stored(a="sent", b="later", c="dead"))
    record = broken(job, "KeyError", in_doubt=True, backoff_s=BACKOFF_S)
    assert mapped(record) == {ANN: "sent", BOB: "in_doubt", CLEO: "dead"}


# ---------------------------------------------------------------- laws


@st.composite
def situations(draw: st.DrawFn) -> tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]:
    """Draw a job, where its recipients stand, the exchange's end, and whom RCPT refused."""
    addresses = draw(st.lists(st.sampled_from(ADDRESSES), min_size=1, unique=True))
    later = draw(st.sampled_from(addresses))
    entries = {}
    for address in addresses:
        verdict = "later" if address == later else draw(st.sampled_from(["later", "sent", "dead", "in_doubt"]))
        doubted = verdict == "in_doubt" or (verdict != "dead" and draw(st.booleans()))
        entries[address] = Entry(verdict, None, doubted)
    doubts = draw(st.integers(1, 3)) if any(e.doubted for e in entries.values()) else 0
    job = replace(
        JOB,
        doubts=doubts,
        attempt=draw(st.sampled_from([1, 4, 5, 6])),
        on_doubt=draw(st.sampled_from(["resend", "hold", "assume_sent"])),
    )
    job = replace(job, recipients=written(entries, doubts))
    last = answer(draw(st.sampled_from(list(Verdict))), wait_s=draw(st.sampled_from([None, 0.0, 5.0])))
    turned_away = draw(st.lists(st.sampled_from(remaining(entries)), unique=True))
    verdicts = st.sampled_from([Verdict.LATER, Verdict.REJECTED])
    refused = {address: answer(draw(verdicts)) for address in turned_away}
    if len(refused) == len(remaining(entries)):
        last = next(reversed(refused.values()))
    return job, entries, last, refused


@given(situations())
def test_a_job_goes_on_exactly_while_somebody_remains(situation: tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]) -> None:
    """Outcome None if and only if the stored map has somebody to send to; each recipient of the envelope is in it."""
    job, entries, last, refused = situation
    conclusion = settled(job, entries, last, refused)
    assert isinstance(conclusion, Release) is (last.decision.verdict in {Verdict.FREE, Verdict.PAUSE})
    if isinstance(conclusion, Record):
        assert (conclusion.outcome is None) is bool(remaining(after(job, conclusion, entries)))
        assert conclusion.outcome in {None, "sent", "dead", "in_doubt"}
        assert conclusion.delay_s >= 0.0


@given(situations())
def test_nobody_who_was_in_doubt_ends_as_dead(situation: tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]) -> None:
    """Neither the recipient nor the job, and doubt once known is remembered."""
    job, entries, last, refused = situation
    conclusion = settled(job, entries, last, refused)
    for record in (conclusion, given_up(job, entries, "dead", "x"), given_up(job, entries, "cancelled", "x")):
        if not isinstance(record, Record):
            continue
        now = after(job, record, entries)
        for address, entry in entries.items():
            assert now[address].doubted or not entry.doubted
            assert not (now[address].doubted and now[address].verdict == "dead")
        assert not (record.outcome in {"dead", "cancelled"} and job.doubts + record.doubts)


@given(situations())
def test_only_a_positive_answer_makes_evidence(situation: tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]) -> None:
    """Accepted names those the relay answered 2xx for, and only they (or the assumed) become sent."""
    job, entries, last, refused = situation
    conclusion = settled(job, entries, last, refused)
    if not isinstance(conclusion, Record):
        return
    covered = [address for address in remaining(entries) if address not in refused]
    assert list(conclusion.accepted) == (covered if last.decision.verdict is Verdict.SENT else [])
    now = after(job, conclusion, entries)
    fresh = {a for a, entry in now.items() if entry.verdict == "sent" and entries[a].verdict != "sent"}
    assumed = set(covered) if last.decision.verdict is Verdict.DOUBT and job.on_doubt == "assume_sent" else set()
    assert fresh == set(conclusion.accepted) | assumed
    assert conclusion.doubts == (last.decision.verdict is Verdict.DOUBT)


@given(situations())
def test_what_is_settled_for_a_recipient_stays(situation: tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]) -> None:
    """Sent, dead and in doubt are final for the attempt, for evidence and for giving up."""
    job, entries, last, refused = situation
    known = [address for address, entry in entries.items() if entry.verdict != "later"]
    records = [settled(job, entries, last, refused), given_up(job, entries, "dead", "x"), by_evidence(job, entries, ())]
    for record in records:
        if isinstance(record, Record):
            now = after(job, record, entries)
            assert [now[a].verdict for a in known] == [entries[a].verdict for a in known]


@given(situations())
def test_the_mark_remembers_what_a_lost_worker_knew(situation: tuple[Job, dict[str, Entry], Answer, dict[str, Answer]]) -> None:
    """Read after the worker is lost: who was covered is to be judged, refusals stand, doubt is kept."""
    job, entries, _, refused = situation
    covered = [address for address in remaining(entries) if address not in refused]
    assume(covered)  # with nobody accepted there is no dot, and no mark
    text = marked(job, entries, refused, covered)
    if text is None:
        assert set(covered) == set(entries)
        return
    found = json.loads(text)
    assert [a for a in entries if found[a].get("verdict") == "marked"] == covered
    assert all(found[a].get("doubted", False) is entry.doubted for a, entry in entries.items())
