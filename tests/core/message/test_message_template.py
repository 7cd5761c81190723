"""template: which texts a payload asks for, and what is refused before and after a template is filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from daemon.core.message import Message, Rendered, Unbuildable, compose
from tests.core.message.composing import CREATED_AT, DEFAULTS, UID, parsed


class Echo:
    """A template that answers what the test says, and remembers what it was given."""

    def __init__(self, answer: Rendered | Unbuildable) -> None:
        self.answer = answer
        self.given: list[tuple[Mapping[str, object], int]] = []

    def render(self, data: Mapping[str, object], limit: int) -> Rendered | Unbuildable:
        """Answer."""
        self.given.append((data, limit))
        return self.answer


INVITE = Rendered(subject="Come, Ann", text="Dear Ann\n", html="<p>Dear Ann</p>\n")


def outcome_of(made: Echo, /, **payload: object) -> Message | Unbuildable:
    """Compose a mail to Ann by the one template that there is."""
    text = json.dumps({"to": "ann@example.org", "template": "invite"} | payload)
    return compose(text, uid=UID, created_at=CREATED_AT, defaults=DEFAULTS, templates={"invite": made})


def test_template_makes_subject_text_and_html() -> None:
    """From the job's data, with the largest size of a message for a limit."""
    template = Echo(INVITE)
    message = outcome_of(template, data={"name": "Ann"})
    assert isinstance(message, Message)
    assert message.subject == "Come, Ann"
    assert [part.get_content() for part in parsed(message).iter_parts()] == ["Dear Ann\r\n", "<p>Dear Ann</p>\r\n"]
    assert template.given == [({"name": "Ann"}, DEFAULTS.max_message_bytes)]


def test_text_is_made_of_the_html_where_the_template_has_none() -> None:
    """As for a payload with only HTML."""
    message = outcome_of(Echo(Rendered(subject="S", html="<p>Dear <b>Ann</b></p>")))
    assert isinstance(message, Message)
    assert next(parsed(message).iter_parts()).get_content() == "Dear Ann\r\n"


def test_everything_but_the_texts_stays_the_jobs() -> None:
    """Recipients, headers, attachments."""
    message = outcome_of(Echo(INVITE), headers={"X-A": "1"}, attachments=[{"filename": "a.bin", "content": "AAAA"}])
    assert isinstance(message, Message)
    assert parsed(message)["X-A"] == "1"
    assert [part.get_filename() for part in parsed(message).iter_attachments()] == ["a.bin"]


@pytest.mark.parametrize("data", [None, {}])
def test_data_may_be_missing(data: object) -> None:
    """Some templates need none."""
    template = Echo(INVITE)
    assert isinstance(outcome_of(template, data=data), Message)
    assert template.given[0][0] == {}


@pytest.mark.parametrize(
    ("payload", "reason", "field"),
    [
        ({"subject": "Mine"}, "template_conflict", "subject"),
        ({"text": ""}, "template_conflict", "text"),
        ({"html": "<p>"}, "template_conflict", "html"),
        ({"template": None, "data": {}}, "template_conflict", "data"),
        ({"template": 1}, "wrong_type", "template"),
        ({"data": []}, "wrong_type", "data"),
        ({"template": "Invite"}, "template_unknown", "template"),
        ({"template": "../invite"}, "template_unknown", "template"),
        ({"template": "invite.html"}, "template_unknown", "template"),
        ({"template": "invite\0"}, "template_unknown", "template"),
        ({"template": ""}, "template_unknown", "template"),
    ],
)
def test_payload_that_asks_for_the_impossible_is_refused(payload: dict[str, object], reason: str, field: str) -> None:
    """A name is looked up in a table, so that no spelling of it leads anywhere else; and nothing is filled in."""
    template = Echo(INVITE)
    found = outcome_of(template, **payload)
    assert isinstance(found, Unbuildable)
    assert (found.reason, found.field) == (reason, field)
    assert template.given == []


def test_without_templates_none_can_be_named() -> None:
    """A worker that wasn't given any says so."""
    found = compose('{"to": "a@example.org", "template": "invite"}', uid=UID, created_at=CREATED_AT, defaults=DEFAULTS)
    assert str(found) == "template_unknown: template: there is none of this name; there are 0"


@pytest.mark.parametrize(
    ("rendered", "part"),
    [
        (Rendered(subject=" ", text="x"), "subject"),
        (Rendered(subject="x", text=" \n\t"), "text"),
        (Rendered(subject="x", text="x", html="\n"), "html"),
        (Rendered(subject="x", text="", html="<p>x"), "text"),
    ],
)
def test_part_that_comes_out_blank_is_refused(rendered: Rendered, part: str) -> None:
    """Nobody wants to be invited by an empty page."""
    assert str(outcome_of(Echo(rendered))) == f"template_blank: template: its {part} came out blank"


@pytest.mark.parametrize("subject", ["Come\r\nBcc: x@example.org", "Come\nnow", "Come\x00", "Come\u2028"])
def test_subject_of_a_template_follows_the_rules_of_headers(subject: str) -> None:
    """What a row's data bring into it is hostile like any other subject."""
    found = outcome_of(Echo(Rendered(subject=subject, text="x")))
    assert isinstance(found, Unbuildable)
    assert (found.reason, found.field) == ("header_control_char", "subject")


def test_what_the_template_answers_is_the_answer() -> None:
    """A template that can't be filled in says why."""
    answer = Unbuildable("template_variable_missing", "data.link", "invite.txt needs it")
    assert outcome_of(Echo(answer)) == answer
