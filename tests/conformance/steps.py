"""One step of a relay: what it answers, when, and what it does then.

A step is a reply, null for none, one of the words for an end (close, rst, hang, ..), or {"reply", "delay_s", "then", "split",
"server_stores_message"}. After a 421 the relay closes, as RFC 5321 section 3.8 says.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tests.conformance import limits
from tests.conformance.casefile import CannotExpressError

STEP_KEYS: Final = frozenset({"reply", "delay_s", "then", "server_stores_message", "split", "drip_s"})
ENDS: Final = {
    **dict.fromkeys(("close", "closed", "eof", "disconnect", "drop"), "close"),
    **dict.fromkeys(("rst", "reset"), "rst"),
    **dict.fromkeys(("hang", "timeout", "silence"), "hang"),
    "stall": "stall",
}


def one_step(value: Any, stage: str) -> dict[str, Any]:  # noqa: ANN401  JSON
    """Understand one step of a stage, with its delay in the run's time.

    Raises:
        CannotExpressError: it has a key or an end without a meaning here.
    """
    if value is None or (isinstance(value, str) and value in ENDS):
        value = {"reply": None, "then": value}
    elif isinstance(value, str):
        value = {"reply": value}
    if not isinstance(value, dict):
        raise CannotExpressError(f"smtp_behaviour.{stage}: {value!r}")
    if unknown := value.keys() - STEP_KEYS - {"after_bytes"}:
        raise CannotExpressError(f"smtp_behaviour.{stage}.{min(unknown)}")
    step = {"reply": None} | {key: each for key, each in value.items() if each is not None}
    if step["reply"] is not None:
        step["reply"] = re.sub(r"\r?\n", "\r\n", str(step["reply"])).removesuffix("\r\n")
    if step.pop("drip_s", 0):
        step["split"] = True  # octet by octet says it all, however slowly
    if "delay_s" in step:
        step["delay_s"] = limits.scaled_s(float(step["delay_s"]), stage)
    end = step.get("then", "close" if str(step["reply"]).startswith("421") else None)
    if end not in ENDS and end is not None:
        raise CannotExpressError(f"smtp_behaviour.{stage}.then: {end}")
    if end is not None:
        step["then"] = ENDS[end]
    return step


def is_positive(reply: object, stage: str) -> bool:
    """Whether a reply lets the conversation go on."""
    return isinstance(reply, str) and reply.startswith("3" if stage == "data" else ("2", "3"))


def is_offer(value: object) -> bool:
    """Whether EHLO's value is a list of extensions, and no list of steps."""
    return isinstance(value, list) and not any(not isinstance(each, str) or each[:3].isdigit() or each in ENDS for each in value)


def in_one_reply(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return EHLO's extensions as the reply that offers them; anything else as it is."""
    if not isinstance(value, list):
        return value
    lines = ["relay.test", *value]
    return "\r\n".join(f"250{' ' if line is lines[-1] else '-'}{line}" for line in lines)


def policy_step(value: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
    """Understand "504 5.5.2 for a name without a dot".

    Raises:
        CannotExpressError: it is about other names.
    """
    text = str(value)
    found = re.fullmatch(r"(\d{3}(?: \d\.\d+\.\d+)?)\b(.*)", text)
    if found is None or not re.search(r"dot|localhost|bare|short|unqualified|full", text):
        raise CannotExpressError(f"smtp_behaviour.ehlo_policy: {text}")
    return one_step(f"{found[1]} need a full name", "ehlo")
