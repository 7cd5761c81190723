"""From `smtp_behaviour` to what the scripted relays do, and to the few settings that a behaviour implies.

Understood are, for one relay:

    greeting ehlo helo starttls auth mail data dot rset quit    a step, or a list of steps: one for each attempt
    rcpt, dot_by_rcpt        a step, or address (or *) -> step
    during_body              {"after_bytes", "then" | "reply"}
    STAGE_after_N_messages   a step from the N-th message of a connection on         rcpt_after_N_recipients   likewise
    fourth_parallel_connection_STAGE, fourth_connection_STAGE   a step for whoever comes as fourth; any ordinal number
    first_connections        {"count", "then": "close|rst|hang[_after_greeting|_after_ehlo]" | a reply}
    connections              [behaviour of the first connection, of the second, .., of all others]
    refuse, refuse_for_s     no connection is taken: never, or for so many seconds
    connect                  {"then": "close|rst|hang"}: what happens before the greeting
    certificate              "for NAME", "expired", "self-signed": what STARTTLS shows; tls: "starttls|implicit|none"
    dns                      the resolver's error, or a list of them: one for each look-up, "ok" for none
    ehlo_policy              the reply to a name without a dot; ehlo_after_tls: as ehlo, once it is encrypted
    idle_before_second_job_s a mail goes before, and the connection is idle for so long
    close_after_idle_s       the relay closes an idle connection after so many seconds

and above them `relays` (a behaviour each, beside what is said for all), `workers`, and keys ending in `_event` (`happening`).
`aliases` has other words for some of it.

What a step is, `steps` says. A cut that isn't in a list happens each time, unless the case expects all its jobs to be sent: then
it happens once. A late refusal that the case doesn't count on is meant to come too late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance import limits
from tests.conformance.aliases import plain_behaviour
from tests.conformance.casefile import CannotExpressError, Case
from tests.conformance.happening import START, Happening, What, happening
from tests.conformance.steps import ENDS, STEP_KEYS, in_one_reply, is_offer, is_positive, one_step, policy_step
from tests.support.relay_session import DEFAULTS, Script

STAGES: Final = frozenset(
    {"greeting", "ehlo", "ehlo_after_tls", "helo", "starttls", "auth", "mail", "data", "dot", "rset", "quit"}
)
EHLO: Final = frozenset({"ehlo", "ehlo_after_tls"})
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
REFUSED: Final = "refused@conformance.example"
"""Whom every relay refuses: the mail that makes the daemon send RSET."""

_ORDINAL: Final = "|".join(ORDINALS) + r"|\d+(?:st|nd|rd|th)"
_AFTER_MESSAGES: Final = re.compile(r"(greeting|ehlo|mail|rcpt|data|dot)_after_(\d+)_messages?")
_AFTER_RECIPIENTS: Final = re.compile(r"rcpt_after_(\d+)_recipients?")
_NUMBERED: Final = re.compile(rf"({_ORDINAL})_(parallel_)?connection(?:_(\w+))?")
_FIRST: Final = re.compile(r"(\w+?)(?:_(?:after|at|on)_(\w+))?")
_MULTILINE: Final = re.compile(r"\d{3}-")


@dataclass
class RelayPlan:
    """What one relay is and does."""

    script: Script
    refuses_for_s: float | None = 0.0
    """None: for ever."""
    blackhole: bool = False
    """Whether connections aren't even refused."""
    certificate: str = ""
    tls: str = "none"
    narrow: bool = False
    dns: tuple[str, ...] = ()
    needs_login: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Plan:
    """What surrounds the jobs of a case."""

    relays: list[RelayPlan]
    workers: int = 1
    happenings: list[Happening] = field(default_factory=list)
    idle_s: float | None = None
    """How long the connection of a mail that goes before is idle."""
    needs_large_body: bool = False
    asks_for_reset: bool = False
    drains: bool = False
    """Whether the end of the daemon is part of the behaviour."""
    concurrency: int = 10


def plan(case: Case) -> Plan:
    """Understand a case's behaviour.

    Raises:
        CannotExpressError: it has a key or a value without a meaning here.
    """
    common = {key: value for key, value in case.behaviour.items() if key != "noop"}  # nobody here says NOOP
    made = Plan([], workers=int(common.pop("workers", 1)))
    for key in [key for key in common if key.endswith("_event")]:
        made.happenings += [happening(key, text) for text in _each(common.pop(key))]
    relays = common.pop("relays", [{}])
    made.relays = [_relay(plain_behaviour({**common, **own}), case) for own in relays]
    _silence_idle(made)
    everything = list(_flat(case.behaviour))
    idle = [float(value) for key, value in everything if key == "idle_before_second_job_s" or _closes_idle(key)]
    if idle:
        made.idle_s = limits.idle_s(max(idle))
    made.asks_for_reset = any(key == "rset" for key, _ in everything)
    made.drains = case.behaviour.get("quit", DEFAULTS["quit"]) != DEFAULTS["quit"] and not made.happenings
    made.needs_large_body = any(relay.narrow for relay in made.relays)
    if "batch" in case.job or any("limits" in relay.script and _per_connection(relay) for relay in made.relays):
        made.concurrency = 1  # one after the other, over one connection as long as that lasts
    return made


def _silence_idle(made: Plan) -> None:
    """A link that dies while a connection is idle is noticed by the next command, which nobody answers."""
    for fault in [fault for fault in made.happenings if fault.what is What.SILENCE and fault.moment == START]:
        made.happenings.remove(fault)
        made.idle_s = 1.0
        for relay in made.relays:
            relay.script["connections"] = [{"mail": [relay.script["mail"], {"reply": None, "then": "hang"}]}, {}]


def _relay(said: dict[str, Any], case: Case) -> RelayPlan:
    made = RelayPlan(dict(DEFAULTS))
    rest = dict(said)
    _surroundings(made, rest)
    connections = [dict(each) for each in rest.pop("connections", [])]
    first = rest.pop("first_connections", None)
    numbered: dict[int, Script] = {}
    for key in list(rest):
        if (found := _NUMBERED.fullmatch(key)) and not found[2]:
            numbered[_number(found[1])] = {found[3] or "greeting": rest.pop(key)}
    made.script |= _script(rest, case, made)
    own = [_script(each, case, made) for each in _connections(first, numbered, connections, made.script)]
    if own:
        made.script["connections"] = own
    _offer(made, said)
    if isinstance(made.script["rcpt"], dict):
        made.script["rcpt"] = {**made.script["rcpt"], REFUSED: "550 5.1.1 no such user"}
    return made


def _surroundings(made: RelayPlan, rest: dict[str, Any]) -> None:
    """Take out what isn't said inside a conversation."""
    if "refuse_for_s" in rest:
        made.refuses_for_s = limits.outage_s(float(rest.pop("refuse_for_s")))
    if rest.pop("refuse", False):
        made.refuses_for_s = None
    dns = rest.pop("dns", None)
    made.dns = tuple(str(word) for word in _each(dns)) if dns else ()
    made.certificate = str(rest.pop("certificate", ""))
    made.tls = str(rest.pop("tls", "starttls" if made.certificate or "starttls" in rest else "none"))
    made.needs_login = any(key == "auth" for key, _ in _flat(rest))
    connect = rest.pop("connect", None)
    if connect is not None:
        step = one_step(connect, "connect")
        made.blackhole = step.get("then") in {"hang", "stall"}
        rest["greeting"] = {"reply": None, **step}
    if "idle_before_second_job_s" in rest:
        made.settings["idle_s"] = 60.0
        rest.pop("idle_before_second_job_s")


def _script(said: dict[str, Any], case: Case, made: RelayPlan) -> Script:
    """Understand what one relay, or one of its connections, says."""
    script: Script = {}
    for key, value in said.items():
        if key in STAGES:
            script[key] = value if key in EHLO and is_offer(value) else _steps(value, key, case, made)
        elif key in {"rcpt", "dot_by_rcpt"}:
            script[key] = _by_address(value, key, case, made)
        elif key == "during_body":
            script[key] = _during_body(value, case, made)
        elif key == "ehlo_policy":
            script[key] = policy_step(value)
        elif key == "refuse":
            script[key] = bool(value)
        elif key == "idle_before_second_job_s":
            made.settings["idle_s"] = 60.0
        elif _closes_idle(key):
            made.settings["idle_s"] = 60.0
            script["idle"] = _close_of_idle(key, float(value))
        elif (limit := _limit(key, value)) is not None:
            script.setdefault("limits", []).append(limit)
        else:
            raise CannotExpressError(f"smtp_behaviour.{key}")
    return script


def _closes_idle(key: str) -> bool:
    return "idle" in key and key.endswith("_s") and key != "idle_before_second_job_s"


def _close_of_idle(key: str, seconds: float) -> dict[str, Any]:
    reply = "421 4.4.2 idle for too long" if "421" in key else None
    return {"after_s": limits.idle_s(seconds) / 2, "step": {"reply": reply, "then": "close"}}


def _limit(key: str, value: object) -> dict[str, Any] | None:
    if found := _AFTER_MESSAGES.fullmatch(key):
        return {"stage": found[1], "after_messages": int(found[2]), "step": one_step(value, found[1])}
    if found := _AFTER_RECIPIENTS.fullmatch(key):
        return {"stage": "rcpt", "after_recipients": int(found[1]), "step": one_step(value, "rcpt")}
    if (found := _NUMBERED.fullmatch(key)) and found[2]:
        stage = found[3] or "greeting"
        if stage in STAGES | {"rcpt"}:
            return {"stage": stage, "parallel": _number(found[1]) - 1, "step": one_step(value, stage)}
    return None


def _number(ordinal: str) -> int:
    return ORDINALS.index(ordinal) + 1 if ordinal in ORDINALS else int(ordinal[:-2])


def _per_connection(relay: RelayPlan) -> bool:
    after = [limit["after_messages"] for limit in relay.script["limits"] if "after_messages" in limit]
    if after:
        relay.settings |= {"connections": 1, "messages_per_connection": 2 * max(after), "max_age_s": 600.0}
    return bool(after)


def _connections(
    first: Any,  # noqa: ANN401  JSON
    numbered: dict[int, Script],
    connections: list[Script],
    script: Script,
) -> Iterator[Script]:
    if isinstance(first, dict):
        yield from [_opening(str(first.get("then", "")), script)] * int(first.get("count", 1))
    elif first is not None:
        yield from first
    yield from connections
    if numbered:
        yield from (numbered.get(number, {}) for number in range(1, max(numbered) + 1))
    if first is not None or numbered:
        yield {}


def _opening(then: str, script: Script) -> Script:
    """Understand "rst_after_greeting" and its kin."""
    if then == "refuse":
        return {"refuse": True}
    if then[:3].isdigit():
        return {"greeting": then}
    found = _FIRST.fullmatch(then)
    if found is None or found[1] not in ENDS:
        raise CannotExpressError(f"smtp_behaviour.first_connections.then: {then}")
    stage = found[2] or "connect"
    if stage in {"connect", "accept"}:
        return {"greeting": {"reply": None, "then": found[1]}}
    if stage not in STAGES | {"rcpt"}:
        raise CannotExpressError(f"smtp_behaviour.first_connections.then: {then}")
    if stage == "ehlo":
        return {"ehlo": {"reply": "250 relay.test", "then": found[1]}}
    step = script[stage]["*"] if stage == "rcpt" else script[stage]
    return {stage: {"reply": step if isinstance(step, str) else None, "then": found[1]}}


def _steps(value: Any, stage: str, case: Case, made: RelayPlan) -> Any:  # noqa: ANN401  JSON
    """Understand a step, or a list of one for each attempt."""
    if isinstance(value, list) and value[1:] and all(_MULTILINE.match(str(each)) for each in value[:-1]):
        value = "\r\n".join(value)  # one reply of several lines
    if isinstance(value, list):
        return [one_step(each, stage) for each in value]
    step = one_step(value, stage)
    reply = step.get("reply")
    if step.get("then") and reply is None and case.needs_all and stage not in {"rset", "quit"}:
        return [step, DEFAULTS["rcpt"]["*"] if stage == "rcpt" else in_one_reply(DEFAULTS[stage])]
    late = step.get("delay_s") and reply is not None and not is_positive(reply, stage)
    if late and stage in {"mail", "rcpt", "data"} and not _counts_on_refusal(case):
        made.settings["command_timeout_s"] = made.settings["data_timeout_s"] = limits.limit_s(stage) / 4
        step["delay_s"] = limits.limit_s(stage)
    return step


def _counts_on_refusal(case: Case) -> bool:
    words = (*case.wanted, *map(str, case.expected.get("per_recipient", {}).values()))
    return any(word.startswith(("rejected", "partial")) for word in words)


def _by_address(value: Any, key: str, case: Case, made: RelayPlan) -> dict[str, Any]:  # noqa: ANN401  JSON
    if not isinstance(value, dict) or value.keys() & STEP_KEYS:
        value = {"*": value}
    steps = {}
    for address, step in value.items():
        local, at, domain = address.rpartition("@")
        name = address if domain.isascii() else local + at + domain.encode("idna").decode("ascii")
        steps[name] = _steps(step, key if key == "rcpt" else "dot", case, made)
    return steps if key == "dot_by_rcpt" else {"*": "250 2.1.5 ok", **steps}


def _during_body(value: Any, case: Case, made: RelayPlan) -> Any:  # noqa: ANN401  JSON
    after = int(value.get("after_bytes", 1)) if isinstance(value, dict) else 1
    step = {**one_step(value, "during_body"), "after_bytes": after}
    if step.get("then") in {"hang", "stall"}:
        step["then"] = "stall"  # who goes on reading hangs after the dot, and nobody could tell
    made.narrow = True  # else the body has left, and the dot after it, before anything happens to it
    if case.needs_all and step.get("then"):
        return [step, None]
    return step


def _offer(made: RelayPlan, said: dict[str, Any]) -> None:
    """Offer what the behaviour has answers for, if its list of extensions leaves it out."""
    offer = made.script["ehlo"]
    if is_offer(offer):
        names = {str(each).split(" ")[0].upper() for each in offer}
        made.script["ehlo"] = [
            *offer,
            *(
                ["STARTTLS"]
                if made.tls == "starttls" and "STARTTLS" not in names and ("starttls" in said or made.certificate)
                else []
            ),
            *(["AUTH PLAIN LOGIN"] if made.needs_login and "AUTH" not in names else []),
        ]


def _each(value: Any) -> list[Any]:  # noqa: ANN401  JSON
    return value if isinstance(value, list) else [value]


def _flat(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  JSON
    """Yield every key at any depth, with its value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key, each
            yield from _flat(each)
    elif isinstance(value, list):
        for each in value:
            yield from _flat(each)
