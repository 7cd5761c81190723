"""What arrives in a mailbox behind a real mail server is what was saved, once for each recipient."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

import pytest

from tests.mta.conftest import StartPost
from tests.mta.exim import Delivered
from tests.mta.post import Post

EVERY_OCTET = bytes(range(256)) * 40
TEXT = "Liebe Zoë,\n\n.\n..\n.Punkt\nFrom hier an: 8 € ≠ 東京 🎉\n\tTab, und Leerzeichen am Ende  \n" + "lang " * 400 + "\nEnde"
HTML = '<!doctype html>\n<p>Liebe Zoë,</p>\n<p>.</p>\n.\n<img src="cid:logo@example.org">\n' + "<b>€</b>" * 300
SUBJECT = "Einladung: Grüße aus 東京, =?utf-8?q?nicht=20das?= 🎉 und noch viel mehr Wörter, damit eine Zeile nicht reicht"
MAIL: Mapping[str, Any] = {
    "from": {"name": "Müller, Jörg (Büro)", "email": "joerg@büro.example.org"},
    "to": [{"name": "Zoë Ångström, Dr.", "email": "zoe@example.org"}, "Bob <bob@example.org>"],
    "cc": ['"O\'Neil, \\"Pat\\"" <pat@example.org>'],
    "bcc": ["secret@example.org"],
    "reply_to": ["Réponses <reply@example.org>"],
    "subject": SUBJECT,
    "text": TEXT,
    "html": HTML,
    "headers": {"X-Campaign": "Frühling, весна", "List-Unsubscribe": f"<https://example.org/u/{'x' * 120}>"},
    "attachments": [
        {"filename": "Übersicht 東京.bin", "content_b64": base64.b64encode(EVERY_OCTET).decode()},
        {
            "filename": "plan.csv",
            "content_type": "text/csv; charset=utf-8",
            "content_b64": base64.b64encode(b"a;\xc3\xa4\r\n.\r\n").decode(),
        },
        {
            "filename": "logo.png",
            "content_type": "image/png",
            "cid": "logo@example.org",
            "inline": True,
            "content_b64": "iVBORw0KGgo=",
        },
    ],
}
EVERYBODY = ["bob@example.org", "pat@example.org", "secret@example.org", "zoe@example.org"]


def mailboxes(message: EmailMessage, name: str) -> list[tuple[str, str]]:
    """Return a header's mailboxes as names and addresses."""
    return [(address.display_name, address.addr_spec) for address in message[name].addresses]


def text(message: EmailMessage, kind: str) -> str:
    """Return the body of this kind, as a reader would show it."""
    part = message.get_body((kind,))
    assert isinstance(part, EmailMessage)
    content = part.get_content()
    assert isinstance(content, str)
    return content.replace("\r\n", "\n").removesuffix("\n")


def octets(message: EmailMessage) -> dict[str | None, bytes]:
    """Return what is attached or inline, by file name."""
    found: dict[str | None, bytes] = {}
    for part in message.walk():
        if part.get_filename():
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            found[part.get_filename()] = payload
    return found


def assert_is_the_mail(copy: Delivered, job: Mapping[str, Any]) -> None:
    """Compare a copy with what was saved."""
    message = copy.message
    assert str(message["Subject"]) == SUBJECT
    assert mailboxes(message, "From") == [("Müller, Jörg (Büro)", "joerg@xn--bro-hoa.example.org")]
    assert mailboxes(message, "To") == [("Zoë Ångström, Dr.", "zoe@example.org"), ("Bob", "bob@example.org")]
    assert mailboxes(message, "Cc") == [('O\'Neil, "Pat"', "pat@example.org")]
    assert mailboxes(message, "Reply-To") == [("Réponses", "reply@example.org")]
    assert message["Bcc"] is None
    assert b"secret@" not in copy.content.partition(b"Date:")[2]
    assert str(message["X-Campaign"]) == "Frühling, весна"
    assert str(message["List-Unsubscribe"]) == f"<https://example.org/u/{'x' * 120}>"
    assert (message["X-Job-ID"], str(job["uid"]) in message["Message-ID"]) == (str(job["uid"]), True)
    assert message["Return-path"] == "<bounces@example.org>"
    assert (text(message, "plain"), text(message, "html")) == (TEXT, HTML)
    assert octets(message) == {
        "Übersicht 東京.bin": EVERY_OCTET,
        "plan.csv": b"a;\xc3\xa4\r\n.\r\n",
        "logo.png": base64.b64decode("iVBORw0KGgo="),
    }
    assert message.defects == []


@pytest.mark.parametrize("pipelining", ["*", ""], ids=["pipelining", "one_by_one"])
async def test_mail_arrives_as_it_was_saved(start_post: StartPost, pipelining: str) -> None:
    """Names, subject, text, HTML and files survive STARTTLS, login and a mailbox; each recipient has one copy, in 7 bits."""
    post = start_post(pipelining_advertise_hosts=pipelining)
    await post.worker(mail={"envelope_from": "bounces@example.org"})
    job_id = await post.enqueue(MAIL)
    job = await post.finished(job_id)
    assert (job["outcome"], job["attempt"], job["doubts"]) == ("sent", 1, 0)
    assert await post.copies(job_id) == EVERYBODY
    for copy in post.exim.delivered:
        assert_is_the_mail(copy, job)
        assert copy.content.isascii()
    found = re.search(r"id=([\w-]+)", job["reply"])
    assert found is not None
    [accepted] = post.exim.logged(f"{found[1]} <=")
    assert "P=esmtpsa X=TLS1.3" in accepted
    assert "A=plain:mailslot" in accepted


async def test_mail_goes_over_tls_from_the_first_byte(post: Post) -> None:
    """A relay with implicit TLS, as on port 465."""
    await post.worker(relay={"tls": "implicit", "port": post.exim.tls_port})
    job_id = await post.enqueue()
    assert (await post.finished(job_id))["outcome"] == "sent"
    assert await post.copies(job_id) == ["ann@example.org"]
    [accepted] = post.exim.logged(" <= ")
    assert "P=esmtpsa" in accepted
    assert await post.workers[0].stop() == 0


HOSTILE = {
    "dot alone": ".",
    "dots": "..\n.\n...\n. \n.\n",
    "dot after a long line": "x" * 997 + "\n.\n",
    "end of data inside": "one\r\n.\r\nMAIL FROM:<evil@example.org>\r\nRCPT TO:<ann@example.org>\r\nDATA\r\n\r\n.\r\n",
    "bare line ends": "one\n.\ntwo\r.\rthree\r\n.\r\n",
    "8 bits": "äöü €uro 東京 🎉 ÿ",
    "very long line": "ä" * 5_000 + "x" * 5_000,
    "spaces at line ends": "one \ntwo\t\n \n",
    "looks like a mailbox file": "From ann\n>From bob\n",
    "looks encoded": "=3D =\n=?utf-8?q?x?= a=20b",
    "control characters": "bell \x07 and escape \x1b[0m",
}


async def test_no_text_is_changed_on_the_way(post: Post) -> None:
    """Dots, long lines, 8 bits, blanks and what looks like commands come back as they were; line ends count as line ends."""
    await post.worker()
    jobs = {name: await post.enqueue(text=body) for name, body in HOSTILE.items()}
    await post.all_finished()
    rows = {name: await post.job(job_id) for name, job_id in jobs.items()}
    assert {name: row["reason"] for name, row in rows.items() if row["outcome"] != "sent"} == {}
    copies = {copy.job_uid: copy for copy in await post.exim.settled()}
    assert len(copies) == len(post.exim.delivered) == len(jobs)
    for name, row in rows.items():
        asked = HOSTILE[name].replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
        assert (name, text(copies[str(row["uid"])].message, "plain")) == (name, asked)


async def test_non_ascii_mailbox_needs_a_server_that_takes_it(start_post: StartPost) -> None:
    """With SMTPUTF8 the mail arrives, its address in UTF-8; without, it is dead, and nothing was begun."""
    able, unable = start_post(), start_post(smtputf8_advertise_hosts="")
    payload = {"to": [{"name": "Jörg", "email": "jörg@example.org"}]}
    worker = await able.worker()
    job_id = await able.enqueue(payload)
    assert (await able.finished(job_id))["outcome"] == "sent"
    [copy] = await able.exim.settled()
    assert "<jörg@example.org>\n".encode() in copy.content
    assert await worker.stop() == 0
    await unable.worker()
    job = await unable.finished(await unable.enqueue(payload))
    assert (job["outcome"], job["reason"]) == ("dead", "smtputf8_not_offered")
    assert unable.exim.logged(" <= ") == []


async def test_report_comes_back_to_the_envelope_sender_and_names_the_job(start_post: StartPost) -> None:
    """Asked to report success, Exim reports both recipients, under the job's uid as the envelope's name."""
    post = start_post(dsn_advertise_hosts="*")
    await post.worker(mail={"envelope_from": "bounces@example.org", "dsn_notify": "success,failure"})
    job = await post.finished(await post.enqueue(to=["ann@example.org", "bob@example.org"]))
    assert job["outcome"] == "sent"
    [report] = [copy.content.decode() for copy in await post.exim.settled() if copy.recipient == "bounces@example.org"]
    assert f"Original-Envelope-ID: {job['uid']}\n" in report
    assert sorted(re.findall("^Final-Recipient: rfc822; ?(.+)$", report, re.MULTILINE)) == ["ann@example.org", "bob@example.org"]
    assert report.count("Action: delivered") == 2
