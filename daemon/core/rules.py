"""The table of verdicts for one configuration: the operator's rules, then the built-in ones.

Answers: which rules hold here, and where does one come from? What a rule of the operator can't do (`settings.Rule` has no word
for it, `problems` refuses the rest): speak of anything but 4yz and 5yz replies, say sent or doubt, or blame a message for what
happened before one was begun.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from daemon.core import settings
from daemon.core.verdicts import ANY, GREYLISTED, PROVIDERS, RCPT, RULES, TRANSACTION, Meaning, Rule, Scope, Table, Verdict


class Origin(StrEnum):
    """Where a rule comes from."""

    BUILT_IN = "built in"
    PROVIDER = "provider"
    """Built in as well, for the words of a single provider."""
    CONFIG = "config.toml"


CONFIGURED: Final = "config."
"""What the names of the operator's rules begin with in a decision, so that they are never mistaken for others."""
_PROVIDER_NAMES: Final = frozenset(rule.name for rule in PROVIDERS)


def table(configured: Sequence[settings.Rule], retry: settings.Retry) -> Table:
    """Return the whole table for a configuration: the operator's rules, then the built-in ones with its wait for greylists."""
    built_in = (
        replace(rule, meaning=replace(rule.meaning, wait_s=retry.greylist_s)) if rule.meaning.reason == GREYLISTED else rule
        for rule in RULES
    )
    return Table((*(_configured(rule) for rule in configured), *built_in))


def origin(rule: str) -> Origin:
    """Return where the rule of this name comes from."""
    if rule.startswith(CONFIGURED):
        return Origin.CONFIG
    return Origin.PROVIDER if rule in _PROVIDER_NAMES else Origin.BUILT_IN


def _configured(rule: settings.Rule) -> Rule:
    verdict = Verdict(rule.verdict.value)
    stages = frozenset(rule.stages) or (ANY if verdict in {Verdict.FREE, Verdict.PAUSE} else TRANSACTION)
    if rule.scope is not settings.RuleScope.AUTO:
        scope = Scope(rule.scope.value)
    elif verdict in {Verdict.FREE, Verdict.PAUSE}:
        scope = Scope.RELAY
    else:
        scope = Scope.RECIPIENT if stages == RCPT else Scope.MESSAGE
    return Rule(
        CONFIGURED + rule.name,
        Meaning(verdict, scope, rule.reason or rule.name, rule.wait_s or None, rule.hint),
        stages,
        tuple(rule.codes) or ("4", "5"),
        tuple(rule.enhanced),
        re.compile(rule.text, re.IGNORECASE) if rule.text else None,
    )
