"""`mailslot classify`: the daemon's own verdicts, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Mailslot

RULES = """
[mail]
from = "team@example.org"
[[rule]]
name = "ours"
verdict = "pause"
codes = ["454"]
text = "throttling"
reason = "ask_for_more"
wait_s = 900
[retry]
greylist_s = 900
"""


async def classified(run: Mailslot, *arguments: str) -> dict[str, Any]:
    """Return what is said in JSON."""
    ran = await run("classify", "--json", *arguments)
    assert ran.code == 0, ran.err
    answer: dict[str, Any] = ran.json
    return answer


async def test_the_rule_that_decides_is_named_with_its_origin(run: Mailslot) -> None:
    """Everything that the daemon would go by."""
    ran = await run("classify", "454 Throttling failure: Maximum sending rate exceeded.")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "  verdict  free, tried again; the attempt is given back",
        "  scope    relay",
        "  reason   rate_limited",
        "  wait     5 s at least",
        "  rule     ses_rate (provider)",
    ]


async def test_the_configurations_own_rules_come_first(run: Mailslot, tmp_path: Path) -> None:
    """And so does its wait for greylists."""
    (tmp_path / "rules.toml").write_text(RULES)
    config = ("--config", str(tmp_path / "rules.toml"))
    said = "454 Throttling failure: Maximum sending rate exceeded."
    assert await classified(run, said, *config) == {
        "verdict": "pause",
        "scope": "relay",
        "reason": "ask_for_more",
        "wait_s": 900.0,
        "rule": "config.ours",
        "origin": "config.toml",
    }
    assert (await classified(run, "450 Greylisted", "--stage", "rcpt", *config))["wait_s"] == 900.0


@pytest.mark.parametrize(
    "said", ["450-4.2.0 Greylisted\\n450 4.2.0 for 10 minutes", "450-4.2.0 Greylisted\r\n450 4.2.0 for 10 minutes\r\n"]
)
async def test_a_reply_of_several_lines_is_one(run: Mailslot, said: str) -> None:
    """With line ends as they came, or as they are typed."""
    answer = await classified(run, said, "--stage", "rcpt")
    assert (answer["verdict"], answer["scope"], answer["wait_s"], answer["rule"]) == ("later", "recipient", 600.0, "greylisted")


@pytest.mark.parametrize(
    ("arguments", "verdict", "rule"),
    [
        (("connection_closed",), "doubt", "dot_unanswered"),
        (("timeout", "--stage", "body"), "later", "body_dropped"),
        (("timeout", "--stage", "body", "--reused"), "free", "no_reply"),
        (("503 5.5.1 no", "--stage", "mail"), "rejected", "mail_refused"),
        (("503 5.5.1 no", "--stage", "mail", "--reused"), "free", "stale"),
        (("250 ok",), "sent", "dot_accepted"),
        (("250 ok", "--stage", "rcpt"), "go_on", None),
        (("354 go", "--stage", "data"), "go_on", None),
        (("250 ok", "--stage", "data"), "free", "desync"),
        (("250 ok", "--stage", "body"), "free", "desync"),
    ],
)
async def test_stage_and_age_decide_too(run: Mailslot, arguments: tuple[str, ...], verdict: str, rule: str | None) -> None:
    """The default is the dot on a fresh connection."""
    answer = await classified(run, *arguments)
    assert (answer["verdict"], answer["rule"]) == (verdict, rule)


async def test_a_verdict_without_a_next_try_has_no_wait(run: Mailslot) -> None:
    """What is sent or refused isn't waited for, and what goes on has no rule."""
    assert "wait" not in (await run("classify", "550 no")).out
    assert (await run("classify", "250 ok", "--stage", "mail")).out.splitlines() == [
        "  verdict  go_on, the relay did what it was asked",
        "  reason   accepted",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("hello",), ("",), ("250-ok",), ("250 a\\n250 b",), ("250 ok", "--stage", "nope"), ("250 ok", "--stage", "build"), ()],
)
async def test_what_is_no_reply_and_no_stage_is_a_usage_error(run: Mailslot, arguments: tuple[str, ...]) -> None:
    """Exit 64, nothing on standard output."""
    ran = await run("classify", *arguments)
    assert (ran.code, ran.out) == (64, "")
