"""Could a mail be built? The same answer as composing gives, and mostly without composing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trying
from hypothesis import strategies as some

from daemon.core import settings
from daemon.core.message import NO_TEMPLATES, Message, Unbuildable, check, compose
from daemon.core.message.check import Check
from daemon.core.message.payload import read

NOW = datetime(2026, 12, 1, 8, 30, tzinfo=UTC)
UID = UUID(int=0)
MAIL = settings.Mail(from_="Team <team@example.org>")
PLAIN = {"to": ["Maya Ray <maya@example.org>", "sam@example.org"], "subject": "Party", "text": "Come.\n"}

NAMES = some.from_regex(r"[A-Za-z0-9]{1,12}(?: [A-Za-z0-9]{1,12}){0,2}", fullmatch=True)
LOCALS = some.from_regex(r"[A-Za-z0-9!#$%&'*+/^_`{|}~-]{1,30}(?:\.[A-Za-z0-9-]{1,30})?", fullmatch=True)
DOMAINS = some.from_regex(r"[a-z0-9]{1,20}(?:\.[a-z0-9]{1,20}){0,2}\.[a-z]{2,10}", fullmatch=True)
BOXES = some.builds(lambda name, local, domain: f"{name} <{local}@{domain}>" if name else f"{local}@{domain}",
                    some.one_of(some.just(""), NAMES), LOCALS, DOMAINS)  # fmt: skip
SIMPLE = some.fixed_dictionaries(
    {
        "to": some.lists(BOXES, min_size=1, max_size=8),
        "subject": some.text(some.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(str.strip),
        "text": some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=400).map(lambda text: text + "."),
    },
    optional={"from": BOXES, "cc": some.lists(BOXES, max_size=3), "bcc": some.lists(BOXES, max_size=3), "reply_to": BOXES},
)


class Noted:
    """Notes which mails are composed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.payloads: list[str] = []
        monkeypatch.setattr(check, "compose", self)

    def __call__(self, payload: str, **options: Any) -> Message | Unbuildable:  # noqa: ANN401  as the real one's
        """Compose."""
        self.payloads.append(payload)
        return compose(payload, **options)


def asked(payload: object, mail: settings.Mail = MAIL) -> Unbuildable | None:
    """Return what the check says."""
    return Check(mail, NO_TEMPLATES, NOW).fault(json.dumps(payload))


def composed(payload: object, mail: settings.Mail = MAIL) -> Unbuildable | None:
    """Return what composing says."""
    answer = compose(json.dumps(payload), uid=UID, created_at=NOW, defaults=mail)
    return None if isinstance(answer, Message) else answer


@trying(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(SIMPLE)
def test_a_mail_of_a_simple_shape_can_always_be_built(payload: dict[str, Any]) -> None:
    """Whatever its text holds: nothing that composing and proving could object to is left."""
    draft = read(json.dumps(payload), MAIL.max_message_bytes, NO_TEMPLATES)
    assert check._is_simple(draft, 65_536) is ("=?" not in payload["subject"])  # noqa: SLF001  that it is about these mails
    assert composed(payload) is None


def test_simple_mails_arent_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in place of all, to see whether their sender can be used; one more for those that name their own."""
    noted = Noted(monkeypatch)
    asking = Check(MAIL, NO_TEMPLATES, NOW)
    for number in range(100):
        assert asking.fault(json.dumps({**PLAIN, "subject": f"Party {number}"})) is None
    assert len(noted.payloads) == 1
    for number in range(100):
        assert asking.fault(json.dumps({**PLAIN, "from": f"Maya <maya{number}@example.org>"})) is None
    assert len(noted.payloads) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"html": "<p>Come.</p>"},
        {"headers": {"X-Campaign": "winter"}},
        {"attachments": [{"filename": "a", "content_b64": ""}]},
        {"subject": "Grüße"},
        {"subject": " Party"},
        {"subject": "=?utf-8?q?x?="},
        {"subject": "x" * 61},
        {"to": "Grüße <maya@example.org>"},
        {"to": '"Ray, Maya" <maya@example.org>'},
        {"to": "grüße@example.org"},
        {"to": {"name": "x" * 41, "email": "maya@example.org"}},
        {"to": [f"maya{number}@example.org" for number in range(101)]},
        {"from": "Grüße <maya@example.org>"},
        {"reply_to": "Grüße <maya@example.org>"},
        {"text": "x" * 65_537},
    ],
)
def test_all_others_are_composed(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """What isn't obvious isn't guessed."""
    noted = Noted(monkeypatch)
    assert asked({**PLAIN, **change}) is None
    assert noted.payloads == [json.dumps({**PLAIN, **change})]


@pytest.mark.parametrize(
    "payload",
    [
        [],
        {},
        {**PLAIN, "to": []},
        {**PLAIN, "to": None},
        {**PLAIN, "to": "maya"},
        {**PLAIN, "text": None},
        {**PLAIN, "text": " \n"},
        {**PLAIN, "text": 1},
        {**PLAIN, "subject": "a\nBcc: b@example.org"},
        {**PLAIN, "sbuject": "x"},
        {**PLAIN, "headers": {"Bcc": "b@example.org"}},
        {**PLAIN, "from": "maya"},
        {**PLAIN, "template": "party"},
    ],
)
def test_a_fault_is_said_as_composing_says_it(payload: object) -> None:
    """Reason, field and detail."""
    assert (asked(payload), asked(payload)) == (composed(payload), composed(payload))
    assert asked(payload) is not None


@pytest.mark.parametrize(
    "mail",
    [
        settings.Mail(),
        settings.Mail(from_="Team <team@example.org>", max_message_bytes=1_024),
        settings.Mail(from_="Team <team@example.org>", envelope_from=f"{'b' * 40}@example.org", verp=True),
    ],
)
def test_a_configuration_that_can_send_no_mail_is_a_fault_of_each(mail: settings.Mail) -> None:
    """No sender, too small a limit, a return path that becomes too long."""
    payload = {**PLAIN, "text": "x" * 1_000}
    assert asked(payload, mail) == composed(payload, mail)
    assert asked(payload, mail) is not None
