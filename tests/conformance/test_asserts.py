"""What a case's outcome doesn't show: looked for in what relays and daemons saw of the same runs."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Any

import pytest

from tests.conformance.casefile import read_all
from tests.conformance.conftest import Seen
from tests.conformance.result import Result
from tests.conformance.test_cases import CASES

pytestmark = pytest.mark.timeout(900)
plays = pytest.mark.plays
JOBS = {case.id: case.job for case in read_all([CASES])}


def _commands(result: Result, stage: str = "", relay: int = 0) -> list[dict[str, Any]]:
    events = result.relays[relay].events
    return events.of("command", stage=stage) if stage else events.of("command")


def _lines(result: Result, stage: str) -> list[str]:
    return [event["line"] for event in _commands(result, stage)]


def _content(result: Result) -> bytes:
    return result.relays[0].messages[0].content


def _mail(result: Result) -> EmailMessage:
    """Read the mail that the relay got, by the newer of the standard library's parsers."""
    mail = message_from_bytes(_content(result), policy=policy.SMTP)
    assert isinstance(mail, EmailMessage)
    return mail


def _text(part: Any) -> str:  # noqa: ANN401  a part of a mail
    return str(part.get_content()).replace("\r\n", "\n")


def _field(result: Result, name: str) -> str:
    """Return a header by the older parser, decoded."""
    return str(make_header(decode_header(str(message_from_bytes(_content(result))[name]))))


def _stages_between(result: Result, first: str, last: str) -> list[str]:
    """Return what came between the first event of one name or stage and the next of another."""
    names = [event.get("stage", event["event"]) for event in result.relays[0].events.all]
    begin = names.index(first) + 1
    return names[begin : names.index(last, begin)]


@plays("doubt-silence")
def test_doubt_is_held_and_says_where_it_arose(seen: Seen) -> None:
    """The job isn't ready again by itself; the log has one line about it, with the relay and the reason."""
    result = seen("doubt-silence")
    row = result.jobs[0].row
    assert row is not None
    assert (row["outcome"], row["doubts"], row["attempt"]) == ("in_doubt", 1, 1)
    (line,) = result.lines("job.in_doubt")
    assert (line["relay"], line["reason"]) == ("relay1", "timeout")
    assert len(_commands(result, "dot")) >= 1


@plays("doubt-garbled")
def test_next_mail_inherits_nothing_from_a_garbled_answer(seen: Seen) -> None:
    """Nothing more is said on that connection; it is closed, and what comes next begins on another."""
    events = seen("doubt-garbled").relays[0].events
    (dot,) = events.of("command", stage="dot", connection=1)
    assert events.of("command", connection=1)[-1] == dot
    assert events.of("closed", connection=1) != []


@plays("doubt-quit-closed", "doubt-quit-hangs")
def test_goodbye_comes_after_the_record_and_holds_nothing_up(seen: Seen) -> None:
    """The row was final when the drain was asked for, only then QUIT was sent, and the daemon ended well all the same."""
    for name in ("doubt-quit-closed", "doubt-quit-hangs"):
        result = seen(name)
        assert len(_commands(result, "quit")) == 1
        said = [line["event"] for line in result.daemons[0].lines]
        assert said.index("job.sent") < said.index("drain.begun") < said.index("daemon.stopped")
        assert [line["finished"] for line in result.lines("daemon.stopped")] == [True]


@plays("crash-drain-after-dot")
def test_nothing_is_said_between_the_dot_and_its_answer(seen: Seen) -> None:
    """A drain that comes in between sends no QUIT; the worker waits, records, and leaves."""
    result = seen("crash-drain-after-dot")
    assert _stages_between(result, "dot", "stored") == []
    assert result.daemons[0].events("job.sent") != []
    assert len(result.daemons) == 1


@plays("crash-after-dot", "crash-before-dot", "crash-at-rcpt")
def test_mark_tells_a_doubt_from_an_attempt_that_is_given_back(seen: Seen) -> None:
    """Of a killed worker's jobs, one with a dot is in doubt; one before it is sent once, with no attempt used up."""
    doubted = seen("crash-after-dot").jobs[0].row
    assert doubted is not None
    assert (doubted["outcome"], doubted["doubts"]) == ("in_doubt", 1)
    for name in ("crash-before-dot", "crash-at-rcpt"):
        row = seen(name).jobs[0].row
        assert row is not None
        assert (row["outcome"], row["doubts"], row["crashes"], row["attempt"]) == ("sent", 0, 1, 1)


@plays("crash-stolen-before-dot")
def test_lost_lease_keeps_the_dot_back(seen: Seen) -> None:
    """The connection is dropped without QUIT, and no dot ever came."""
    result = seen("crash-stolen-before-dot")
    assert _commands(result, "dot") == []
    assert _commands(result, "quit") == []
    assert len(result.relays[0].events.of("closed")) == len(result.relays[0].events.of("connection"))


@plays("connection-late-refusal")
def test_mail_after_a_late_refusal_has_a_connection_of_its_own(seen: Seen) -> None:
    """Ann's connection dies of the wait, and Bob's mail goes over another."""
    result = seen("connection-late-refusal")
    ann, bob = (next(e for e in _commands(result, "rcpt") if name in e["line"]) for name in ("<ann@", "<bob@"))
    assert ann["connection"] != bob["connection"]
    assert result.relays[0].messages[0].recipients == ("bob@example.org",)


@plays("connection-aged")
def test_aged_connection_is_replaced_within_the_attempt(seen: Seen) -> None:
    """The 421 to the first command of the second mail costs no attempt and isn't even worth a line about the job."""
    result = seen("connection-aged")
    assert result.relays[0].connections == 2
    assert result.lines("job.released") == []
    assert result.lines("job.deferred") == []


@plays("connection-closed-at-once", "relay-away-for-hours")
def test_outage_makes_no_storm(seen: Seen) -> None:
    """Jobs don't try for themselves: one connect at a time, and the change of the relay's state is said once."""
    dropped = seen("connection-closed-at-once")
    assert dropped.relays[0].connections <= 5
    outage = seen("relay-away-for-hours")
    # On a slow machine the relay may be back before the worker has looked for it; it must never be lost twice.
    assert len(outage.lines("relay.lost")) <= 1
    assert len(outage.lines("relay.resumed")) == len(outage.lines("relay.lost"))
    assert len(outage.lines("job.released")) <= 10


@plays("recipients-second-try")
def test_second_try_is_the_same_mail_to_who_was_put_off(seen: Seen) -> None:
    """It goes to Bob alone, under the same Message-ID and Date, and its To names all three as before."""
    first, second = seen("recipients-second-try").relays[0].messages
    assert (first.recipients, second.recipients) == (("ann@example.org",), ("bob@example.org",))
    assert first.content == second.content
    assert b"To: ann@example.org, bob@example.org, cleo@example.org\r\n" in first.content
    assert first.sender == second.sender


@plays("recipients-too-many")
def test_rest_of_too_many_recipients_gets_the_same_mail(seen: Seen) -> None:
    """Two mails, the same octets, everybody once."""
    first, second = seen("recipients-too-many").relays[0].messages
    assert first.content == second.content
    assert sorted(first.recipients + second.recipients) == ["ann@example.org", "bob@example.org", "cleo@example.org"]


@plays("recipients-none", "recipients-line-break", "message-line-break-in-subject")
def test_mail_that_cant_be_built_uses_no_connection(seen: Seen) -> None:
    """The relay is never asked."""
    for name in ("recipients-none", "recipients-line-break", "message-line-break-in-subject"):
        assert seen(name).relays[0].connections == 0


@plays("recipients-bcc", "recipients-bcc-alone")
def test_blind_copy_leaves_no_trace_in_the_mail(seen: Seen) -> None:
    """It is in the envelope, and its address nowhere in the data."""
    result = seen("recipients-bcc")
    assert result.relays[0].messages[0].recipients == ("ann@example.org", "boss@example.org")
    alone = seen("recipients-bcc-alone")
    for content in (_content(result), _content(alone)):
        assert b"boss" not in content.lower()
        assert b"\nbcc" not in content.lower()
    assert _field(alone, "To") == "undisclosed-recipients:;"


@plays("recipients-twice")
def test_who_is_named_three_times_is_asked_for_once(seen: Seen) -> None:
    """One RCPT."""
    assert len(_lines(seen("recipients-twice"), "rcpt")) == 1


@plays("recipients-idn", "recipients-idn-2008")
def test_domain_goes_as_a_labels(seen: Seen) -> None:
    """No SMTPUTF8 is asked for; the sharp s stays what it is."""
    assert _lines(seen("recipients-idn"), "rcpt") == ["RCPT TO:<ann@xn--bcher-kva.example>"]
    assert _lines(seen("recipients-idn-2008"), "rcpt") == ["RCPT TO:<ann@xn--fa-hia.example>"]
    assert "SMTPUTF8" not in _lines(seen("recipients-idn"), "mail")[0]


@plays("recipients-smtputf8")
def test_local_part_of_elsewhere_asks_for_smtputf8(seen: Seen) -> None:
    """MAIL says so, and the header has the address as it is."""
    result = seen("recipients-smtputf8")
    assert "SMTPUTF8" in _lines(result, "mail")[0]
    assert "To: jörg@example.org\r\n".encode() in _content(result)


@plays("recipients-greylisted")
def test_greylist_is_given_its_time(seen: Seen) -> None:
    """The next try is five minutes away at the least, as the relay asked."""
    (line,) = seen("recipients-greylisted").lines("job.deferred")
    assert line["retry_in_s"] >= 300


@plays("relay-wrong-password")
def test_wrong_password_is_one_log_in_for_a_hundred_jobs(seen: Seen) -> None:
    """One AUTH command by one mechanism, and one line that a person has to see."""
    result = seen("relay-wrong-password")
    assert result.relays[0].log_ins == 1
    assert [line["level"] for line in result.lines("relay.paused")] == ["error"]


@plays("relay-certificate-of-another", "relay-certificate-expired", "relay-encryption-stripped")
def test_nothing_is_sent_in_clear_where_encryption_fails(seen: Seen) -> None:
    """No MAIL, no AUTH."""
    for name in ("relay-certificate-of-another", "relay-certificate-expired", "relay-encryption-stripped"):
        assert _commands(seen(name), "mail") + _commands(seen(name), "auth") == []


@plays("doubt-no-failover", "relay-second-isnt-asked-about-recipients")
def test_second_relay_isnt_asked_after_the_first_had_its_say(seen: Seen) -> None:
    """Not after a dot, and not about a refused recipient."""
    assert seen("doubt-no-failover").relays[1].connections == 0
    assert seen("relay-second-isnt-asked-about-recipients").relays[1].connections == 0


@plays("rate-m365-connections")
def test_too_many_connections_become_fewer(seen: Seen) -> None:
    """The daemon says that it slows down, to three or fewer."""
    assert seen("rate-m365-connections").lines("relay.slowed")[-1]["connections"] <= 3


@plays("verdict-too-large-for-the-relay", "verdict-refused-after-dot")
def test_refusal_for_good_is_asked_for_once(seen: Seen) -> None:
    """What EHLO says to be too large isn't even tried; what was refused isn't tried again."""
    assert _commands(seen("verdict-too-large-for-the-relay"), "mail") == []
    refused = [event for event in _commands(seen("verdict-refused-after-dot"), "rcpt") if "<ann@" in event["line"]]
    assert len(refused) == 1


@plays("message-encoded-line-break", "message-encoded-line-break-in-name", "message-line-break-in-subject")
def test_no_header_grows_out_of_a_value(seen: Seen) -> None:
    """Whatever parser reads it: no Bcc, and the value is what was asked for."""
    subject = seen("message-encoded-line-break")
    assert (_mail(subject)["Bcc"], message_from_bytes(_content(subject))["Bcc"]) == (None, None)
    assert _field(subject, "Subject") == JOBS["message-encoded-line-break"]["subject"]
    named = seen("message-encoded-line-break-in-name")
    assert (_mail(named)["Bcc"], message_from_bytes(_content(named))["Bcc"]) == (None, None)


@plays("message-comma-in-name")
def test_name_with_commas_is_one_sender(seen: Seen) -> None:
    """Both parsers read one mailbox, with the same name."""
    result, asked = seen("message-comma-in-name"), JOBS["message-comma-in-name"]["from"]
    (address,) = _mail(result)["From"].addresses
    assert (address.display_name, address.addr_spec) == (asked["name"], asked["email"])
    assert getaddresses([str(message_from_bytes(_content(result))["From"])]) == [(asked["name"], asked["email"])]


@plays("message-long-subject")
def test_long_subject_comes_back_whole(seen: Seen) -> None:
    """No space is lost; lines have 998 octets and encoded words 75 at the most."""
    result = seen("message-long-subject")
    assert _field(result, "Subject") == JOBS["message-long-subject"]["subject"]
    head = _content(result).split(b"\r\n\r\n")[0]
    assert max(map(len, head.split(b"\r\n"))) <= 998
    assert max(map(len, re.findall(rb"=\?\S+\?=", head))) <= 75


@plays("message-name-of-elsewhere")
def test_address_is_never_encoded(seen: Seen) -> None:
    """It stands in the From line as it is, beside an encoded name."""
    result = seen("message-name-of-elsewhere")
    assert b"<team@example.org>" in _content(result)
    assert _mail(result)["From"].addresses[0].display_name == "刘瑞"


@plays("message-controls-in-text", "message-8bit", "message-long-line", "message-two-texts")
def test_what_leaves_is_seven_bit_in_short_lines(seen: Seen) -> None:
    """Whatever the text: no control, no octet beyond 126, no line over 998, and it comes back as it was."""
    for name in ("message-controls-in-text", "message-8bit", "message-long-line", "message-two-texts"):
        result, job = seen(name), JOBS[name]
        assert re.fullmatch(rb"[\t\r\n -~]*", _content(result))
        assert max(map(len, _content(result).split(b"\r\n"))) <= 998
        for kind, asked in (("plain", job["text"]), ("html", job.get("html"))):
            part = _mail(result).get_body((kind,))
            assert (None if part is None else _text(part).rstrip("\n")) == (asked and asked.rstrip("\n"))
    assert b"Content-Transfer-Encoding: base64" in _content(seen("message-controls-in-text"))


@plays("message-dots", "message-dot-between-bare-line-ends")
def test_dots_arrive_as_they_were_and_end_nothing(seen: Seen) -> None:
    """Lines of dots keep them; no bare line end leaves, so none can end the mail."""
    assert _text(_mail(seen("message-dots"))) == ".\n..\n.x\n"
    smuggled = seen("message-dot-between-bare-line-ends")
    assert smuggled.relays[0].violations == []
    assert len(smuggled.relays[0].messages) == 1
    assert _text(_mail(smuggled)) == "a\n.\nMAIL FROM:<eve@example.net>\n.\nb\n.\nc\n"


@plays("message-two-texts", "message-html-alone")
def test_plain_text_comes_first(seen: Seen) -> None:
    """multipart/alternative, plain before HTML; HTML alone gets a text of its own."""
    for name in ("message-two-texts", "message-html-alone"):
        mail = _mail(seen(name))
        assert mail.get_content_type() == "multipart/alternative"
        assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]


@plays("message-inline-image")
def test_picture_belongs_to_the_html(seen: Seen) -> None:
    """multipart/related inside alternative, a Content-ID, disposition inline."""
    mail = _mail(seen("message-inline-image"))
    plain, related = mail.iter_parts()
    html, image = related.iter_parts()
    kinds = [part.get_content_type() for part in (mail, plain, related, html, image)]
    assert kinds == ["multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png"]
    assert (image["Content-ID"], image.get_content_disposition()) == ("<logo@example.org>", "inline")


@plays("message-attachment", "message-attachment-elsewhere")
def test_file_names_keep_their_letters_and_lose_their_folders(seen: Seen) -> None:
    """Both parsers read the name; of a path its last part is left."""
    (attached,) = _mail(seen("message-attachment")).iter_attachments()
    assert attached.get_filename() == "Übersicht für März.pdf"
    (attached,) = _mail(seen("message-attachment-elsewhere")).iter_attachments()
    assert attached.get_filename() == "passwd"


@plays("message-unsubscribe-signed")
def test_signature_covers_the_button_and_what_must_not_be_added(seen: Seen) -> None:
    """Its h= has both unsubscribe fields, and from, to and subject once more than they are there."""
    signature = str(_mail(seen("message-unsubscribe-signed"))["DKIM-Signature"])
    found = re.search(r"\bh=([^;]+);", signature)
    assert found is not None
    signed = [name.strip().lower() for name in found[1].split(":")]
    assert {"list-unsubscribe", "list-unsubscribe-post"} <= set(signed)
    assert [signed.count(name) for name in ("from", "to", "subject")] == [2, 2, 2]


@plays("message-automatic", "relay-name-of-ours")
def test_mail_says_that_a_machine_wrote_it_and_where_bounces_go(seen: Seen) -> None:
    """Auto-Submitted, X-Auto-Response-Suppress, a bounce address of ours; EHLO says a full name."""
    result = seen("message-automatic")
    assert (_field(result, "Auto-Submitted"), _field(result, "X-Auto-Response-Suppress")) == ("auto-generated", "All")
    assert result.relays[0].messages[0].sender == "bounces@example.org"
    assert _lines(seen("relay-name-of-ours"), "ehlo")[0] == "EHLO client.example.org"


@plays("template-missing-variable", "template-hostile-name")
def test_template_names_what_is_missing_and_escapes_in_html_alone(seen: Seen) -> None:
    """The reason has the variable's name; markup in a name is markup in no part."""
    row = seen("template-missing-variable").jobs[0].row
    assert row is not None
    assert "link" in row["reply"]
    mail = _mail(seen("template-hostile-name"))
    html, plain = mail.get_body(("html",)), mail.get_body(("plain",))
    assert html is not None
    assert plain is not None
    assert "<script>" not in html.get_content()
    assert "&lt;script&gt;" in html.get_content()
    assert "<script>x</script>" in plain.get_content()
    assert "\n" not in str(mail["Subject"])
