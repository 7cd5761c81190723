"""`mailslot classify`: what a relay's reply, or its silence, would mean here, and which rule says so.

Asks the same table as the daemon, with the rules of the same configuration in front; nothing is connected to.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from daemon.cli.exits import Exit, UsageError
from daemon.cli.options import settings_of
from daemon.cli.render import as_json, listing
from daemon.core.reply import ReplyReader
from daemon.core.rules import origin, table
from daemon.core.settings import Settings
from daemon.core.smtp import GO_AHEAD, Fault, Reply, Report, Stage
from daemon.core.verdicts import Verdict, decide

GO_ON = "go_on"
TRIED_AGAIN = frozenset({Verdict.LATER, Verdict.FREE, Verdict.PAUSE})
BEFORE_DATA = frozenset({Stage.GREETING, Stage.EHLO, Stage.TLS, Stage.AUTH, Stage.MAIL, Stage.RCPT})
MEANINGS: Mapping[str, str] = {
    GO_ON: "the relay did what it was asked",
    Verdict.SENT: "accepted by the relay",
    Verdict.LATER: "tried again; an attempt is used up",
    Verdict.REJECTED: "refused for good",
    Verdict.FREE: "tried again; the attempt is given back",
    Verdict.PAUSE: "tried again; the attempt is given back, and the relay rests",
    Verdict.DOUBT: "may have been sent; the job's on_doubt decides",
}


def run(arguments: Namespace) -> int:
    """Print what the answer means at the stage."""
    facts = classified(settings_of(arguments), answer_of(arguments.answer), Stage(arguments.stage), reused=arguments.reused)
    print(as_json(facts) if arguments.json else _for_people(facts))
    return Exit.DONE


def answer_of(text: str) -> Reply | Fault:
    """Read a reply as a relay says it, with line ends as they are or written as backslash n; or what came instead of one."""
    if text in set(Fault):
        return Fault(text)
    lines = text.replace("\\n", "\n").strip("\n").replace("\r", "").encode("utf-8", "surrogateescape").replace(b"\n", b"\r\n")
    match ReplyReader().feed(lines + b"\r\n"):
        case [Reply() as reply]:
            return reply
        case _:
            raise UsageError(
                f"{text!r} is neither one reply, such as '450 4.2.0 Greylisted' or '450-4.2.0 one\\n450 4.2.0 two', nor one of "
                + ", ".join(Fault)
            )


def classified(settings: Settings, answer: Reply | Fault, stage: Stage, *, reused: bool) -> dict[str, object]:
    """Return verdict, scope, reason, wait in seconds (None: the usual backoff), the rule that decided, and where it is from."""
    if isinstance(answer, Reply) and _goes_on(answer, stage):
        return {"verdict": GO_ON, "scope": None, "reason": "accepted", "wait_s": None, "rule": None, "origin": None}
    decision = decide(
        Report("", stage, answer, reused),
        configured_sender=bool(settings.mail.envelope_from),
        rules=table(settings.rule, settings.retry),
    )
    return {
        "verdict": decision.verdict,
        "scope": decision.scope,
        "reason": decision.reason,
        "wait_s": decision.wait_s,
        "rule": decision.rule,
        "origin": origin(decision.rule),
    }


def _goes_on(reply: Reply, stage: Stage) -> bool:
    return reply.code == GO_AHEAD if stage is Stage.DATA else reply.positive and stage in BEFORE_DATA


def _for_people(facts: Mapping[str, object]) -> str:
    wait_s, rule = facts["wait_s"], facts["rule"]
    wait = "the usual" if wait_s is None else f"{wait_s:g} s at least"
    shown = {
        "verdict": f"{facts['verdict']}, {MEANINGS[str(facts['verdict'])]}",
        "scope": facts["scope"],
        "reason": facts["reason"],
        "wait": wait if facts["verdict"] in TRIED_AGAIN else None,
        "rule": None if rule is None else f"{rule} ({facts['origin']})",
    }
    return listing(shown)
