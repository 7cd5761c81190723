"""compose: the bytes of whole mails, their envelopes, and the header fields that a job may set."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import msgspec
import pytest

from daemon.core import settings
from daemon.core.message import Message, compose, header
from tests.core.message.composing import CREATED_AT, DEFAULTS, UID, composed, lines_of, outcome_of, parsed, refused

PLAIN = """\
Date: Mon, 01 Dec 2025 07:30:00 +0000
From: Example Team <team@example.org>
To: Ann Example <ann@example.org>
Subject: You are invited
Message-ID: <0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d@example.org>
X-Job-ID: 0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d
Auto-Submitted: auto-generated
X-Auto-Response-Suppress: All
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

Hello Ann,
open https://example.org/i/abc
"""

RICH = """\
Date: Mon, 01 Dec 2025 07:30:00 +0000
From: Example Team <team@example.org>
To: =?utf-8?b?5YiY55Ge?= <liu@example.org>
Cc: bob@example.org
Reply-To: help@example.org
Subject: =?utf-8?b?R3LDvMOfZQ==?=
Message-ID: <0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d@example.org>
X-Job-ID: 0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d
Auto-Submitted: auto-generated
X-Auto-Response-Suppress: All
X-Campaign: winter
MIME-Version: 1.0
Content-Type: multipart/mixed;
 boundary="=_m0f5e7a529c1d4d538a396f0f6c1f2b3d"

--=_m0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: multipart/alternative;
 boundary="=_a0f5e7a529c1d4d538a396f0f6c1f2b3d"

--=_a0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

Hello

--=_a0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: multipart/related;
 type="text/html";
 boundary="=_r0f5e7a529c1d4d538a396f0f6c1f2b3d"

--=_r0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: 7bit

<img src="cid:logo@example.org">

--=_r0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: image/png;
 name="logo.png"
Content-Transfer-Encoding: base64
Content-Disposition: inline;
 filename="logo.png"
Content-ID: <logo@example.org>

iVBORw0KGgo=
--=_r0f5e7a529c1d4d538a396f0f6c1f2b3d--
--=_a0f5e7a529c1d4d538a396f0f6c1f2b3d--
--=_m0f5e7a529c1d4d538a396f0f6c1f2b3d
Content-Type: text/calendar;
 method=request;
 charset=utf-8;
 name="Einladung f_r Ann.ics"
Content-Transfer-Encoding: base64
Content-Disposition: attachment;
 filename*=utf-8''Einladung%20f%C3%BCr%20Ann.ics

QkVHSU4=
--=_m0f5e7a529c1d4d538a396f0f6c1f2b3d--
"""

LOGO = {
    "filename": "logo.png",
    "content_type": "image/png",
    "content_b64": "iVBORw0KGgo=",
    "cid": "logo@example.org",
    "inline": True,
}
INVITATION = {
    "filename": "Einladung für Ann.ics",
    "content_type": "text/calendar; method=REQUEST; charset=utf-8",
    "content": "QkVHSU4=",
}


def wire(text: str) -> bytes:
    """Return a text with the line ends of the wire."""
    return text.replace("\n", "\r\n").encode()


def test_plain_text_mail_is_exactly_these_bytes() -> None:
    """Every octet of the common case is decided here."""
    message = composed(
        to=["Ann Example <ann@example.org>"], subject="You are invited", text="Hello Ann,\nopen https://example.org/i/abc\n"
    )
    assert message == Message(
        envelope_from="team@example.org",
        recipients=("ann@example.org",),
        content=wire(PLAIN),
        message_id="<0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d@example.org>",
        needs_smtputf8=False,
        subject="You are invited",
        from_domain="example.org",
    )


def test_mail_with_everything_is_exactly_these_bytes() -> None:
    """Text comes first, the inline image beside its HTML, the attachment last."""
    message = composed(
        to={"name": "刘瑞", "email": "liu@example.org"},
        cc="bob@example.org",
        bcc=["boss@example.org"],
        reply_to="help@example.org",
        subject="Grüße",
        html='<img src="cid:logo@example.org">',
        headers={"X-Campaign": "winter"},
        attachments=[INVITATION, LOGO],
    )
    assert message.content.decode() == wire(RICH).decode()
    assert message.recipients == ("liu@example.org", "bob@example.org", "boss@example.org")


def test_same_arguments_make_the_same_bytes() -> None:
    """A second try must be the same mail to every reader that compares."""
    payload = {"html": "<p>Grüße</p>", "attachments": [LOGO], "subject": "刘" * 60}
    assert composed(**payload) == composed(**payload)


def test_date_is_the_time_of_enqueueing_in_utc() -> None:
    """The zone of the caller's clock leaves no trace."""
    text = json.dumps({"to": "ann@example.org", "text": "x"})
    tokyo = datetime(2025, 12, 1, 16, 30, tzinfo=timezone(timedelta(hours=9)))
    found = [compose(text, uid=UID, created_at=at, defaults=DEFAULTS) for at in (tokyo, CREATED_AT)]
    assert found[0] == found[1]


@pytest.mark.parametrize("month", range(1, 13))
def test_date_is_written_as_the_standard_library_writes_it(month: int) -> None:
    """Each day of the week and each month, in the words of RFC 5322."""
    for day in range(1, 8):
        at = datetime(2024, month, day, 5, 6, 7, tzinfo=UTC)
        assert header.date(at) == format_datetime(at)


def test_time_without_a_zone_is_a_bug_of_the_caller() -> None:
    """A naive time would make other bytes on another machine."""
    with pytest.raises(ValueError, match="no time zone"):
        compose("{}", uid=UID, created_at=datetime(2025, 12, 1, tzinfo=UTC).replace(tzinfo=None), defaults=DEFAULTS)


def test_bcc_is_in_the_envelope_and_nowhere_else() -> None:
    """Nobody else learns of a blind copy."""
    message = composed(bcc=["boss@example.org"], html="<p>x</p>")
    assert message.recipients == ("ann@example.org", "boss@example.org")
    assert b"boss@" not in message.content
    assert b"bcc" not in message.content.lower()


def test_mail_to_blind_copies_only_names_an_empty_group() -> None:
    """Some relays add an ugly To, or refuse, where neither To nor Cc stands."""
    message = composed(to=[], bcc="boss@example.org")
    assert lines_of(message, "To") == "To: undisclosed-recipients:;"
    assert message.recipients == ("boss@example.org",)


def test_mail_with_cc_only_has_no_to() -> None:
    """An empty To would be no address list."""
    assert parsed(composed(to=None, cc="bob@example.org")).keys()[:4] == ["Date", "From", "Cc", "Subject"]


def test_recipient_named_twice_gets_one_copy() -> None:
    """The domain's case doesn't count, the local part's does; the first place decides the order."""
    message = composed(
        to=["Ann <ann@EXAMPLE.org>", "bob@example.org"], cc=["ann@example.org", "Ann@example.org"], bcc="bob@example.org"
    )
    assert message.recipients == ("ann@example.org", "bob@example.org", "Ann@example.org")


def test_sender_of_the_job_beats_the_configuration() -> None:
    """It is also the envelope's, and gives the Message-ID its domain."""
    message = composed(**{"from": {"name": "Maya", "email": "maya@example.net"}})
    assert lines_of(message, "From") == "From: Maya <maya@example.net>"
    assert message.envelope_from == "maya@example.net"
    assert message.message_id == f"<{UID}@example.net>"


def test_configured_bounce_address_is_the_envelope_sender() -> None:
    """From and Sender never decide where bounces go when the configuration does."""
    message = composed(msgspec.structs.replace(DEFAULTS, envelope_from="bounce@bounces.example.org"))
    assert message.envelope_from == "bounce@bounces.example.org"
    assert message.message_id == f"<{UID}@bounces.example.org>"
    assert b"Return-Path" not in message.content


def test_configured_message_id_domain_wins() -> None:
    """A host behind several senders may want one domain for all."""
    assert (
        composed(msgspec.structs.replace(DEFAULTS, message_id_domain="Bücher.example")).message_id
        == f"<{UID}@xn--bcher-kva.example>"
    )


VERP = msgspec.structs.replace(DEFAULTS, envelope_from="Bounce@bounces.example.org", verp=True)


def test_bounces_come_back_to_an_address_of_the_job() -> None:
    """The uid is in it, so that a bounce that quotes nothing still says whose it is; From and Message-ID don't change."""
    message = composed(VERP)
    assert message.envelope_from == f"Bounce+{UID.hex}@bounces.example.org"
    assert message.message_id == f"<{UID}@bounces.example.org>"
    assert message.content == composed(msgspec.structs.replace(VERP, verp=False)).content
    assert composed(msgspec.structs.replace(VERP, verp_separator="-")).envelope_from == f"Bounce-{UID.hex}@bounces.example.org"


def test_bounces_to_the_sender_of_a_job_have_no_address_of_their_own() -> None:
    """Nobody promised that the sender's server delivers it."""
    assert composed(msgspec.structs.replace(VERP, envelope_from="")).envelope_from == "team@example.org"


def test_bounce_address_that_verp_makes_too_long_is_refused() -> None:
    """At 64 octets it is not, at 65 it is (RFC 5321 section 4.5.3.1.1)."""
    longest = msgspec.structs.replace(VERP, envelope_from=f"{'b' * 31}@example.org")
    assert len(composed(longest).envelope_from.partition("@")[0]) == 64
    found = refused(msgspec.structs.replace(VERP, envelope_from=f"{'b' * 32}@example.org"))
    assert (found.reason, found.field) == ("address_invalid", "mail.envelope_from")


def test_envelope_sender_is_never_empty() -> None:
    """A null reverse-path is for notifications about mail (RFC 5321 section 4.5.5), and nobody learns of what bounces."""
    assert composed().envelope_from == "team@example.org"


@pytest.mark.parametrize(
    ("defaults", "reason", "field"),
    [
        (settings.Mail(), "no_sender", "from"),
        (settings.Mail(from_="nobody"), "address_invalid", "mail.from"),
        (settings.Mail(from_="a@example.org", envelope_from="b"), "address_invalid", "mail.envelope_from"),
        (settings.Mail(from_="a@example.org", message_id_domain="a b"), "address_invalid", "mail.message_id_domain"),
    ],
)
def test_configuration_that_cannot_send_is_named(defaults: settings.Mail, reason: str, field: str) -> None:
    """The field says that the configuration is at fault, and where."""
    found = refused(defaults)
    assert (found.reason, found.field) == (reason, field)


def test_job_may_say_that_a_person_wrote() -> None:
    """Then vacation notes are welcome, and nothing suppresses them."""
    mail = parsed(composed(headers={"Auto-Submitted": "no"}))
    assert mail.get_all("Auto-Submitted") == ["no"]
    assert "X-Auto-Response-Suppress" not in mail


def test_job_may_choose_what_is_suppressed() -> None:
    """The default gives way, it is not written beside the job's own."""
    assert parsed(composed(headers={"x-auto-response-suppress": "OOF"})).get_all("X-Auto-Response-Suppress") == ["OOF"]


def test_unsubscribe_url_stays_on_one_line_as_it_is() -> None:
    """An encoded or broken URL disables the button (RFC 8058)."""
    url = f"<https://example.org/u?token={'a1' * 60}&x==?y>"
    message = composed(headers={"List-Unsubscribe": url, "List-Unsubscribe-Post": "List-Unsubscribe=One-Click"})
    assert lines_of(message, "List-Unsubscribe") == f"List-Unsubscribe: {url}"


@pytest.mark.parametrize(
    ("headers", "reason", "field"),
    [
        ({}, "header_not_allowed", "headers.List-Unsubscribe-Post"),
        ({"List-Unsubscribe": "<mailto:out@example.org>"}, "header_invalid", "headers.List-Unsubscribe"),
        ({"List-Unsubscribe": "<http://example.org/u>"}, "header_invalid", "headers.List-Unsubscribe"),
        ({"List-Unsubscribe": "https://example.org/u"}, "header_invalid", "headers.List-Unsubscribe"),
        ({"List-Unsubscribe": "<https://>"}, "header_invalid", "headers.List-Unsubscribe"),
        (
            {"List-Unsubscribe": "<https://example.org/u>", "List-Unsubscribe-Post": "yes"},
            "header_invalid",
            "headers.List-Unsubscribe-Post",
        ),
    ],
)
def test_one_click_without_what_it_needs_is_refused(headers: dict[str, str], reason: str, field: str) -> None:
    """RFC 8058 section 3.1: an https address, and exactly one value."""
    found = refused(headers={"List-Unsubscribe-Post": "List-Unsubscribe=One-Click"} | headers)
    assert (found.reason, found.field) == (reason, field)


def test_one_click_may_stand_beside_a_mailto() -> None:
    """The names' case doesn't count, and one https address among others is enough."""
    url = "<mailto:out@example.org>, <HTTPS://example.org/u>"
    mail = parsed(composed(headers={"list-unsubscribe": url, "list-unsubscribe-post": "List-Unsubscribe=One-Click"}))
    assert (mail["List-Unsubscribe"], mail["List-Unsubscribe-Post"]) == (url, "List-Unsubscribe=One-Click")


def test_unsubscribing_by_mail_needs_no_one_click() -> None:
    """List-Unsubscribe alone is older than RFC 8058."""
    assert parsed(composed(headers={"List-Unsubscribe": "<mailto:out@example.org>"}))["List-Unsubscribe"]


def test_configuration_allows_further_headers() -> None:
    """In any spelling; what is written is the job's, as free text."""
    allowing = msgspec.structs.replace(DEFAULTS, allow_headers=["Jabber-ID"])
    assert parsed(composed(allowing, headers={"jabber-id": "maya@example.org, ü"}))["jabber-id"] == "maya@example.org, ü"
    assert refused(headers={"Jabber-ID": "x"}).reason == "header_not_allowed"


@pytest.mark.parametrize(
    "name", ["Bcc", "From", "Resent-Bcc", "Content-Type", "ARC-Seal", "DKIM-Signature", "X-Job-ID", "Received-SPF"]
)
def test_no_configuration_allows_what_is_never_a_jobs(name: str) -> None:
    """Also one that was built by hand, past the rules for configurations."""
    allowing = msgspec.structs.replace(DEFAULTS, allow_headers=[name])
    assert refused(allowing, headers={name: "x@example.org"}).reason == "header_not_allowed"


@pytest.mark.parametrize("name", ["X-Priority", "References", "Jabber-ID"])
def test_configuration_denies_headers(name: str) -> None:
    """Denied is denied, also where it is allowed otherwise."""
    denying = msgspec.structs.replace(DEFAULTS, allow_headers=["Jabber-ID"], deny_headers=[name.upper()])
    found = refused(denying, headers={name: "1"})
    assert str(found) == f"header_not_allowed: headers.{name}: is denied by mail.deny_headers"


@pytest.mark.parametrize(
    "name",
    [
        "From", "Sender", "To", "Cc", "Bcc", "bcc", "Resent-To", "Resent-Bcc", "Return-Path", "Date", "Message-ID",
        "Content-Type", "Content-Transfer-Encoding", "Received", "DKIM-Signature", "ARC-Seal", "Subject",
        "Authentication-Results", "MIME-Version", "Reply-To", "X-Job-ID", "List-Unsubscribe-Post", "Unheard-Of",
        "", "X A", "X:A", "X-Ä", "X-" + "a" * 75,
    ],
)  # fmt: skip
def test_header_of_this_name_is_refused(name: str) -> None:
    """A header map must not become a second envelope, a forged trace, or a broken name."""
    found = refused(headers={name: "x@example.org"})
    assert found.reason == "header_not_allowed"
    assert found.field.startswith(f"headers.{name}"[:79])


@pytest.mark.parametrize(
    "name",
    [
        "X-A",
        "x-entity-ref-id",
        "List-ID",
        "References",
        "In-Reply-To",
        "Feedback-ID",
        "Importance",
        "Precedence",
        "Keywords",
        "X-" + "a" * 74,
    ],
)
def test_header_of_this_name_is_allowed(name: str) -> None:
    """As it is spelled, once."""
    assert parsed(composed(headers={name: "<a@example.org>"})).get_all(name) == ["<a@example.org>"]


def test_header_given_twice_in_different_case_is_refused() -> None:
    """Readers disagree about which of two References counts."""
    assert refused(headers={"X-A": "1", "x-a": "2"}).reason == "header_repeated"


@pytest.mark.parametrize("value", ["", " <a@b>", "<a@b> ", "ü", "=?utf-8?q?x?=", "<https://example.org/?a=?b?Q?c?=>"])
def test_identifiers_that_would_need_encoding_are_refused(value: str) -> None:
    """They are never encoded, and never such that a reader decodes them."""
    assert refused(headers={"References": value}).reason == "header_invalid"


def test_message_over_the_limit_is_refused_and_at_the_limit_is_not() -> None:
    """The limit is the size of the finished message in octets."""
    size = len(composed().content)
    assert composed(msgspec.structs.replace(DEFAULTS, max_message_bytes=size)).content
    found = refused(msgspec.structs.replace(DEFAULTS, max_message_bytes=size - 1))
    assert str(found) == f"message_too_large: the message has {size} octets, {size - 1} are allowed"


def test_header_fields_over_a_hundred_thousand_octets_are_refused() -> None:
    """Relays cut longer ones, and what is cut becomes body."""
    found = refused(headers={f"X-{index}": "a" * 7000 for index in range(15)})
    assert found.reason == "header_too_long"


def test_poisonous_payload_costs_its_own_message_only() -> None:
    """Whatever a payload holds, the answer is a value."""
    assert str(outcome_of("[" * 100_000)) == "not_json: the payload is nested too deeply"
