"""The runner itself: it says what it can't express, and it notices what differs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import behaviour, stages
from tests.conformance.casefile import PLAIN, CannotExpressError, Case, read
from tests.conformance.conftest import Seen
from tests.conformance.happening import What, happening
from tests.conformance.jobs import work
from tests.conformance.judge import judged
from tests.conformance.play import play
from tests.conformance.result import Result
from tests.conformance.world import Keys
from tests.support.database import Databases
from tests.support.process import ROOT

pytestmark = pytest.mark.timeout(900)


def _case(job: dict[str, Any] | None = None, smtp: dict[str, Any] | None = None, expected: dict[str, Any] | None = None) -> Case:
    return Case("x", "x", {**PLAIN, **(job or {})}, smtp or {}, expected or {"outcome": "sent"})


@pytest.mark.parametrize(
    ("smtp", "named"),
    [
        ({"weather": "rain"}, "smtp_behaviour.weather"),
        ({"mail": {"reply": "250 ok", "mood": "bad"}}, "smtp_behaviour.mail.mood"),
        ({"dot": {"reply": None, "then": "sing"}}, "smtp_behaviour.dot.then: sing"),
        ({"connections": [{"weather": "rain"}]}, "smtp_behaviour.weather"),
        ({"relays": [{"weather": "rain"}]}, "smtp_behaviour.weather"),
        ({"process_event": "a comet"}, "smtp_behaviour.process_event: a comet"),
        ({"db_event": "down at some time"}, "smtp_behaviour.db_event: down at some time"),
        ({"ehlo_policy": "504 on Sundays"}, "smtp_behaviour.ehlo_policy: 504 on Sundays"),
        ({"mail": 250}, "smtp_behaviour.mail: 250"),
        ({"first_connections": {"count": 2, "then": "sing"}}, "smtp_behaviour.first_connections.then: sing"),
    ],
)
def test_behaviour_without_a_meaning_is_named(smtp: dict[str, Any], named: str) -> None:
    """Nothing is left out in silence: the key is in the error."""
    with pytest.raises(CannotExpressError) as caught:
        behaviour.plan(_case(smtp=smtp))
    assert str(caught.value) == named


@pytest.mark.parametrize(
    ("job", "named"), [({"weather": "rain"}, "job.weather"), ({"transport": {"weather": "rain"}}, "job.transport.weather")]
)
def test_job_without_a_meaning_is_named(job: dict[str, Any], named: str) -> None:
    """The same for what is to be sent."""
    with pytest.raises(CannotExpressError) as caught:
        work(_case(job=job))
    assert str(caught.value) == named


@pytest.mark.parametrize(
    ("key", "text", "what", "moment"),
    [
        ("process_event", "SIGKILL 50 ms after the dot was written", What.KILL, "dot"),
        ("process_event", "OOM kill during the body", What.KILL, "mark"),
        ("process_event", "SIGTERM while waiting for the reply to RCPT", What.DRAIN, "rcpt"),
        ("process_event", "SIGTERM 1 s after the dot", What.DRAIN, "dot"),
        ("process_event", "worker killed before the dot", What.KILL, "mark"),
        ("process_event", "SIGSTOP for 60 s at MAIL", What.FREEZE, "mail"),
        ("db_event", "down from 10 ms after the dot, up again after 30 s", What.OUTAGE, "dot"),
        ("db_event", "another worker takes the job while the body is being uploaded", What.TAKEOVER, "mark"),
        ("db_event", "connection reset while waiting for the 250", What.CUT, "dot"),
        ("db_event", "unreachable from the start, back after 1 min", What.OUTAGE, "start"),
    ],
)
def test_wording_of_a_fault_is_understood(key: str, text: str, what: What, moment: str) -> None:
    """What happens and at which moment."""
    found = happening(key, text)
    assert (found.what, found.moment) == (what, moment)


def test_cut_that_recurs_would_contradict_a_case_that_expects_everything_sent() -> None:
    """So it happens once there, and each time elsewhere."""
    cut = {"rcpt": {"ann@example.org": {"reply": None, "then": "close"}}}
    once = behaviour.plan(_case({"batch": ["ann@example.org", "bob@example.org"]}, cut, {"outcome": "sent", "server_accepts": 2}))
    each = behaviour.plan(_case({"batch": ["ann@example.org", "bob@example.org"]}, cut, {"outcome": "sent", "server_accepts": 1}))
    assert isinstance(once.relays[0].script["rcpt"]["ann@example.org"], list)
    assert isinstance(each.relays[0].script["rcpt"]["ann@example.org"], dict)


@pytest.mark.plays("connection-used-again")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("outcome", "rejected"),
        ("outcome", "retry"),
        ("outcome", "in_doubt"),
        ("outcome", "pause_transport"),
        ("server_accepts", 2),
        ("server_accepts", 0),
        ("attempts_burned", 2),
        ("connection", "discard"),
        ("reason", "weather"),
        ("per_recipient", {"ann@example.org": "rejected"}),
        ("per_recipient", {"ann@example.org": "sent 5.9.9"}),
        ("per_recipient", {"zoe@example.org": "sent"}),
    ],
)
def test_wrong_expectation_differs(seen: Seen, key: str, value: object) -> None:
    """A run that went well fits no other expectation."""
    right = {"outcome": "sent", "server_accepts": 1, "attempts_burned": 0, "connection": "reuse"}
    result = seen("connection-used-again")
    assert judged(_case(expected=right), result).ok
    judgement = judged(_case(expected={**right, key: value}), result)
    assert [each.partition(".")[0] for each in judgement.differs] == [key]


@pytest.mark.plays("stage-mail-close", "stage-body-close", "stage-mail-4xx")
def test_protocol_decides_whether_a_silence_uses_an_attempt_up(seen: Seen) -> None:
    """A case may call silence before the dot `retry`, and silence inside the body `retry_free`; a reply has one name."""
    free, used_up = {"outcome": "retry_free", "attempts_burned": 0}, {"outcome": "retry", "attempts_burned": 1}
    assert judged(_case(expected=used_up), seen("stage-mail-close")).ok
    assert judged(_case(expected=free), seen("stage-body-close")).ok
    assert judged(_case(expected=free), seen("stage-mail-4xx")).differs == ["outcome", "attempts_burned"]


@pytest.mark.plays("connection-message-limit")
def test_one_of_many_alike_that_differs_is_noticed(seen: Seen) -> None:
    """Sixty jobs were sent; with one that wasn't, the case would differ."""
    result = seen("connection-message-limit")
    case = _case({"count": 60}, expected={"outcome": "sent"})
    assert judged(case, result).ok
    odd = replace(result.jobs[0], row={**(result.jobs[0].row or {}), "outcome": "in_doubt"})
    assert judged(case, replace(result, jobs=[odd, *result.jobs[1:]])).differs == ["outcome"]


async def test_value_of_an_odd_shape_is_one_case_that_cant_be_expressed(databases: Databases, tmp_path: Path) -> None:
    """It stops no other case."""
    for smtp in ({"refuse_for_s": "a while"}, {"connections": 7}, {"rcpt_limit": {"many": True}}):
        with pytest.raises(CannotExpressError, match="a value of this shape"):
            await play(_case(smtp=smtp), databases, Keys(tmp_path))


def test_unknown_expectation_is_named(tmp_path: Path) -> None:
    """What can't be compared isn't taken for right; a case without an outcome is no case."""
    file = tmp_path / "cases.json"
    file.write_text('[{"id": "a", "expected": {"outcome": "sent", "colour": "blue"}}]')
    (case,) = read(file)
    with pytest.raises(CannotExpressError, match=r"expected\.colour"):
        judged(case, Result([], [], []))
    file.write_text('[{"id": "a", "expected": {}}]')
    with pytest.raises(ValueError, match="outcome is missing"):
        read(file)


def test_stages_are_written_as_the_table_says() -> None:
    """`python -m tests.conformance.stages` has been run since its table changed."""
    assert stages.FILE.read_text() == stages.text()


def test_command_prints_a_line_each_and_fails_when_one_differs(tmp_path: Path) -> None:
    """One case is as expected, one differs, one can't be expressed; all are said, and in the file for scripts too."""
    file, out = tmp_path / "cases.json", tmp_path / "out.json"
    cases = [
        {"id": "right", "kind": "a", "expected": {"outcome": "sent", "server_accepts": 1}},
        {"id": "wrong", "kind": "a", "job": {"to": []}, "expected": {"outcome": "sent"}},
        {"id": "odd", "kind": "b", "smtp_behaviour": {"weather": "rain"}, "expected": {"outcome": "sent"}},
    ]
    file.write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.conformance", str(file), "--json", str(out)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines[:3]] == ["right", "wrong", "odd"]
    assert lines[0].endswith("\tok")
    assert lines[1].endswith("\tDIFFERS: outcome")
    assert "can't express: key smtp_behaviour.weather" in lines[2]
    assert lines[3:] == ["  a: 1 of 2", "  b: 0 of 1", "1 of 3 cases are as expected"]
    assert [entry["ok"] for entry in json.loads(out.read_text())] == [True, False, False]
