"""Faults outside SMTP, as a case words them: what happens, at which moment, for how long.

    "SIGKILL 50 ms after the dot was written"        "SIGTERM while waiting for the reply to RCPT"
    "down from 10 ms after the dot, up again after 30 s"        "another worker takes the job while the body is being uploaded"

The moment is a stage of the conversation at which the relay holds its answer until the fault has happened; so milliseconds in the
wording mean before and after, and nothing is left to chance. `mark` is the moment when everything but the dot has left: the body
of a small mail is in the kernel at once, and only the mark keeps the dot back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.conformance import limits
from tests.conformance.casefile import CannotExpressError

START: Final = "start"
MARK: Final = "mark"
DOT: Final = "dot"


class What(StrEnum):
    """Which fault it is."""

    KILL = "kill"
    DRAIN = "drain"
    FREEZE = "freeze"
    OUTAGE = "outage"
    CUT = "cut"
    TAKEOVER = "takeover"
    FORCE = "force"
    """A drain that is asked for twice."""
    SILENCE = "silence"
    """The way to the relay swallows everything from now on."""


_PROCESS: Final = (
    (What.KILL, r"sigkill|kill -9|\boom\b|crash|power|killed"),
    (What.FREEZE, r"sigstop|frozen|freeze|stalls?\b|suspend"),
    (What.FORCE, r"(sigterm|sigint|signal).*\b(twice|again|second)|(twice|second|two) (sigterm|sigint|signal)"),
    (What.DRAIN, r"sigterm|sigint|drain|shut ?down|deploy|restart|cancel|stop(s|ped)? by systemd"),
)
_DATABASE: Final = (
    (What.TAKEOVER, r"another worker|takes? (over )?the job|takeover|lease\b.*\b(lost|taken|stolen|expire)"),
    (What.CUT, r"connection\b.*\b(cut|reset|lost|drop|close|terminat)"),
    (What.OUTAGE, r"\bdown\b|\baway\b|unreachable|\bgone\b|stop|restart|outage|unavailable|failover|crash"),
)
_NETWORK: Final = (
    (What.SILENCE, r"swallow|drop|black ?hole|unplug|half.?open|no (fin|rst|packet)|lost|dead|firewall|\bnat\b|cut"),
)
_WORDS: Final = {
    "process_event": _PROCESS,
    "db_event": _DATABASE,
    "database_event": _DATABASE,
    "network_event": _NETWORK,
    "link_event": _NETWORK,
}
# The first that is found; what is said of the dot's answer comes first, for it names the dot as well.
_MOMENTS: Final = (
    (START, r"\bidle\b"),
    (MARK, r"before (the )?(final )?(dot|mark)|body|upload|(at|during|after|while) (the )?mark"),
    (DOT, r"after (the )?(final )?(dot|250|acceptance|reply)|waiting for (the )?(250|reply to the dot|final)|\bdot\b|\b250\b"),
    ("data", r"\bdata\b|\b354\b"),
    ("rcpt", r"\brcpt\b|recipient"),
    ("mail", r"\bmail\b"),
    ("auth", r"\bauth\b|log ?in"),
    ("tls", r"\btls\b|starttls"),
    ("ehlo", r"\behlo\b"),
    ("greeting", r"greeting|connect"),
    (START, r"start|begin|claim|enqueue|first"),
)
_LASTS: Final = re.compile(r"(?:again|back|for|returns?|restored|until|lasts?)\D*?(\d+(?:\.\d+)?) ?(ms|s|min|m|h)\b")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Happening:
    """One fault."""

    what: What
    moment: str
    lasts_s: float
    """How long it lasts in the run, where it ends by itself."""


def happening(key: str, text: str) -> Happening:
    """Understand the wording of a fault.

    Raises:
        CannotExpressError: no fault or no moment is found in it.
    """
    words = str(text).lower()
    known = _WORDS.get(key, _PROCESS + _DATABASE)
    what = next((what for what, pattern in known if re.search(pattern, words)), None)
    moment = next((moment for moment, pattern in _MOMENTS if re.search(pattern, words)), None)
    if what is None or moment is None:
        raise CannotExpressError(f"smtp_behaviour.{key}: {text}")
    lasts = _LASTS.search(words)
    seconds = float(lasts[1]) * _UNITS[lasts[2]] if lasts else 10.0
    return Happening(what, moment, limits.database_s(seconds))
