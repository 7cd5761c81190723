"""`mailslot enqueue`: one job from flags, many from lines, and nothing half-done."""

from __future__ import annotations

import asyncio
import base64
import json
import pty
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from os import environ, read
from pathlib import Path
from typing import Any

import pytest

from daemon.cli import enqueue
from daemon.cli.mailflags import mailboxes
from daemon.cli.newjob import DEFAULTS, Columns, Flaw, NewJob, columns_of
from daemon.cli.newjob import read as read_line
from daemon.cli.session import Row, Session
from tests.cli.conftest import Mailslot
from tests.support.database import Database
from tests.support.process import ROOT

NOW = datetime(2026, 12, 1, tzinfo=UTC)
PARTY = {"to": ["maya@example.org"], "subject": "Party", "text": "Come."}

UNSENDABLE = [
    (["--subject", "x", "--text", "x"], "to"),
    (["--to", "maya", "--text", "x"], "to[0]"),
    (["--to", "a@example.org, b@", "--text", "x"], "to[1]"),
    (["--to", "a@example.org", "--text", "x", "--header", "Bcc: b@example.org"], "headers.Bcc"),
    (["--to", "a@example.org", "--text", "x", "--queue", "a b"], "queue"),
    (["--to", "a@example.org", "--text", "x", "--relay", "a b"], "relay"),
    (["--to", "a@example.org", "--text", "x", "--key", ""], "idempotency_key"),
    (["--to", "a@example.org", "--text", "x", "--max-attempts", "10001"], "max_attempts"),
    (["--to", "a@example.org", "--text", "x", "--traceparent", "00"], "traceparent"),
    (["--to", "a@example.org", "--text", "x", "--at", "+2d", "--expires", "+1d"], "expires_at"),
    (["--to", "a@example.org", "--text", "x", "--at", "1999-01-01T00:00Z"], "available_at"),
    (["--to", "a@example.org", "--text", "x", "--expires", "+999999d"], "expires_at"),
    (["--kind", "report", "--payload", "[]"], "payload"),
    (["--payload", '{"to": "a@example.org", "text": "x", "sbuject": "x"}'], "sbuject"),
]


def lines(*values: object) -> bytes:
    """Return JSON lines; text and bytes are taken as they are."""
    raw = [v if isinstance(v, bytes) else (v if isinstance(v, str) else json.dumps(v)).encode() for v in values]
    return b"".join(line + b"\n" for line in raw)


async def only_job(database: Database) -> dict[str, Any]:
    """Return the one job that there is."""
    (row,) = await database.fetch("SELECT * FROM mailslot.jobs")
    return {**row, "payload": json.loads(row["payload"])}


async def count(database: Database) -> int:
    """Return how many jobs there are."""
    return int(await database.fetchval("SELECT count(*) FROM mailslot.jobs"))


async def test_a_mail_from_flags_is_saved_as_an_application_would(mailslot: Mailslot, database: Database, tmp_path: Path) -> None:
    """Every flag is one key of the payload or one argument of mailslot.enqueue()."""
    attachment = tmp_path / "plan.pdf"
    attachment.write_bytes(b"%PDF-")
    ran = await mailslot(
        *("enqueue", "--to", '"Ray, Maya" <maya@example.org>, sam@example.org', "--to", "zoe@example.org"),
        *("--cc", "c@example.org", "--bcc", "b@example.org", "--reply-to", "r@example.org", "--from", "f@example.org"),
        *("--subject", "Party", "--text", "Come.", "--html", "<p>Come.</p>", "--attach", str(attachment)),
        *(
            "--header",
            "X-Campaign: winter",
            "--queue",
            "invitations",
            "--key",
            "invitation:42",
            "--at",
            "+1h",
            "--expires",
            "+2d",
        ),
        *("--priority", "0", "--on-doubt", "hold", "--max-attempts", "7", "--relay", "second"),
        *("--traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    )
    assert (ran.code, ran.out, ran.err) == (0, "job 1 saved\n", "")
    job = await only_job(database)
    assert job["payload"] == {
        "to": ['"Ray, Maya" <maya@example.org>', "sam@example.org", "zoe@example.org"],
        "cc": ["c@example.org"],
        "bcc": ["b@example.org"],
        "reply_to": ["r@example.org"],
        "from": "f@example.org",
        "subject": "Party",
        "text": "Come.",
        "html": "<p>Come.</p>",
        "headers": {"X-Campaign": "winter"},
        "attachments": [
            {"filename": "plan.pdf", "content_type": "application/pdf", "content_b64": base64.b64encode(b"%PDF-").decode()}
        ],
    }
    assert (job["queue"], job["kind"], job["idempotency_key"]) == ("invitations", "email", "invitation:42")
    assert (job["priority"], job["on_doubt"], job["max_attempts"], job["relay_wanted"]) == (0, "hold", 7, "second")
    assert job["traceparent"].startswith("00-0af7")
    # The job's own created_at is the transaction's now(), from which relative times count: the database's clock, not ours.
    assert job["available_at"] - job["created_at"] == timedelta(hours=1)
    assert job["expires_at"] - job["created_at"] == timedelta(days=2)


async def test_bodies_are_read_from_files_and_standard_input(mailslot: Mailslot, database: Database, tmp_path: Path) -> None:
    """--text-file and --html-file take UTF-8, as it is."""
    html = tmp_path / "body.html"
    html.write_text("<p>Grüße</p>", "utf-8")
    ran = await mailslot(
        "enqueue", "--to", "a@example.org", "--text-file", "-", "--html-file", str(html), stdin="Grüße\n".encode()
    )
    assert ran.code == 0
    payload = (await only_job(database))["payload"]
    assert (payload["text"], payload["html"]) == ("Grüße\n", "<p>Grüße</p>")


async def test_a_body_that_is_no_utf8_is_a_usage_error(mailslot: Mailslot, database: Database) -> None:
    """What can't be text isn't guessed at."""
    ran = await mailslot("enqueue", "--to", "a@example.org", "--text-file", "-", stdin=b"\xff")
    assert ran.code == 64
    assert await count(database) == 0


async def test_another_kinds_payload_is_saved_as_it_is(mailslot: Mailslot, database: Database) -> None:
    """What it means is its handler's business."""
    ran = await mailslot("enqueue", "--kind", "report.build", "--payload", '{"month": "2026-11", "n": 1.50}')
    assert ran.code == 0
    row = await database.fetchrow("SELECT kind, payload FROM mailslot.jobs")
    assert row is not None
    assert (row["kind"], row["payload"]) == ("report.build", '{"n": 1.50, "month": "2026-11"}')


async def test_a_known_key_is_said_and_saves_nothing(mailslot: Mailslot, database: Database) -> None:
    """The same command twice is one job; JSON has what mailslot.enqueue() returned."""
    command = ("enqueue", "--to", "a@example.org", "--text", "x", "--key", "k")
    first = await mailslot(*command, "--output", "json")
    second = await mailslot(*command, "--output", "json")
    third = await mailslot(*command)
    assert first.json == {"id": 1, "is_new": True, "outcome": None}
    assert second.json == {"id": 1, "is_new": False, "outcome": None}
    assert third.out == "job 1 is known already by this key (unfinished)\n"
    assert await count(database) == 1


async def test_what_could_never_be_sent_is_65_and_names_the_field(mailslot: Mailslot, database: Database) -> None:
    """The one who wrote it hears it now, and nothing is saved."""
    for flags, field in UNSENDABLE:
        ran = await mailslot("enqueue", *flags)
        assert (ran.code, ran.out) == (65, ""), flags
        assert ran.err.startswith(f"mailslot: {field}: "), ran.err
    assert await count(database) == 0


async def test_the_size_of_a_payload_is_its_bytes(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker counts them so, and would call it dead."""
    monkeypatch.setenv("MAILSLOT_MAIL__MAX_PAYLOAD_BYTES", "1500")
    payload = {"text": "ü" * 1000}
    ran = await mailslot("enqueue", "--kind", "report", "--payload", json.dumps(payload, ensure_ascii=False))
    assert (ran.code, await count(database)) == (65, 0)
    assert "payload: is longer than the 1500 bytes" in ran.err
    payload = {"text": "u" * 1000}
    assert (await mailslot("enqueue", "--kind", "report", "--payload", json.dumps(payload))).code == 0


async def test_lines_are_payloads_or_envelopes(mailslot: Mailslot, database: Database) -> None:
    """Both forms in one file, in order; empty lines are nothing; the summary is one JSON object."""
    envelope = {"payload": PARTY, "queue": "bulk", "idempotency_key": "k", "available_at": "+1d", "expires_at": "+2d",
                "priority": 3, "on_doubt": "hold", "kind": "email", "max_attempts": 3, "relay": "second",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}  # fmt: skip
    ran = await mailslot("enqueue", "--json", "-", stdin=lines(PARTY, b"", envelope, envelope))
    assert (ran.code, ran.err) == (0, "")
    assert ran.json == {"lines": 3, "new": 2, "known": 1}
    first, second = await database.fetch("SELECT * FROM mailslot.jobs ORDER BY id")
    assert (first["queue"], first["priority"], first["on_doubt"], first["max_attempts"]) == ("default", 1, "resend", 100)
    assert first["expires_at"] - first["available_at"] == timedelta(days=3)
    assert (second["queue"], second["priority"], second["on_doubt"], second["max_attempts"]) == ("bulk", 3, "hold", 3)
    assert second["available_at"] - second["created_at"] == timedelta(days=1)
    assert (first["relay_wanted"], second["relay_wanted"]) == (None, "second")
    assert json.loads(second["payload"]) == PARTY


async def test_lines_are_read_from_a_file_and_summed_up_in_words(mailslot: Mailslot, tmp_path: Path) -> None:
    """--output text is for people; a last line needs no newline."""
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines(PARTY, PARTY).rstrip(b"\n"))
    ran = await mailslot("enqueue", "--json", str(file), "--output", "text")
    assert (ran.code, ran.out) == (0, "2 jobs: 2 saved, 0 known already\n")


async def test_every_bad_line_is_named_and_nothing_is_saved(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good lines before and after the bad ones, in other batches too, are not saved either."""
    monkeypatch.setattr(enqueue, "BATCH", 2)
    bad = {
        3: (b"nope", "not a line of JSON"),
        4: (b"[1]", "Expected `object`"),
        5: ({**PARTY, "to": []}, "to: "),
        6: ({"payload": PARTY, "priority": "urgent"}, "priority: "),
        7: ({"payload": PARTY, "priorty": 1}, "priorty"),
        8: ({"payload": PARTY, "on_doubt": "perhaps"}, "on_doubt: "),
        9: ({"payload": PARTY, "available_at": "tomorrow"}, "available_at: "),
        10: ({"payload": PARTY, "idempotency_key": "a\0"}, "idempotency_key: "),
        11: ({"payload": None}, "payload"),
        12: (b'{"payload": {"to": "\xff"}}', ""),
        13: (b"[" * 100_000, ""),
    }
    ran = await mailslot("enqueue", "--json", "-", stdin=lines(PARTY, PARTY, *(line for line, _ in bad.values()), PARTY))
    assert (ran.code, ran.out) == (65, "")
    *named, last = ran.err.splitlines()
    assert last == "mailslot: 11 of 14 lines are bad; nothing was saved"
    assert [line.partition(":")[0] for line in named] == [f"line {number}" for number in bad]
    for line, (_, words) in zip(named, bad.values(), strict=True):
        assert words in line
    assert await count(database) == 0


async def test_lines_that_only_the_database_refuses_are_named_too(mailslot: Mailslot, database: Database) -> None:
    """The type jsonb knows no NUL and no lone surrogate; the batch is halved until the lines stand alone."""
    other = {"kind": "report", "payload": {"n": 1}}
    nul = b'{"kind": "report", "payload": {"n": "\\u0000"}}'
    huge = b'{"kind": "report", "payload": {"n": 1e999999}}'
    ran = await mailslot("enqueue", "--json", "-", stdin=lines(other, nul, other, other, huge, other))
    assert ran.code == 65
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == ["line 2", "line 5", "mailslot"]
    assert await count(database) == 0


async def test_a_payloads_numbers_are_kept_as_they_were_written(mailslot: Mailslot, database: Database) -> None:
    """No parser of ours rounds what an application gave."""
    text = '{"a": 12345678901234567890123, "b": 0.10000000000000000000001}'
    assert (await mailslot("enqueue", "--kind", "report", "--payload", text)).code == 0
    assert await database.fetchval("SELECT payload::text FROM mailslot.jobs") == text


async def test_a_thousand_lines_are_one_round_trip(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,500 lines are three statements in one transaction, so a second holds thousands."""
    asked: list[str] = []
    rows = Session.rows

    async def recorded(session: Session, name: str, *arguments: object) -> list[Row]:
        asked.append(name)
        return await rows(session, name, *arguments)

    monkeypatch.setattr(Session, "rows", recorded)
    ran = await mailslot("enqueue", "--json", "-", stdin=lines({"kind": "report", "payload": {}}) * 2500)
    assert ran.json == {"lines": 2500, "new": 2500, "known": 0}
    assert asked == ["job_begin", "job_enqueue_many", "job_enqueue_many", "job_enqueue_many"]
    assert await database.fetchval("SELECT count(DISTINCT created_at) FROM mailslot.jobs") == 1


async def test_the_next_lines_are_judged_while_a_batch_is_on_its_way(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database doesn't answer before a line of the next batch was read, and all is saved."""
    monkeypatch.setattr(enqueue, "BATCH", 2)
    rows = Session.rows
    seen: list[bytes] = []
    third = asyncio.Event()

    def noted(line: bytes) -> NewJob | Flaw:
        seen.append(line)
        if len(seen) == 3:
            third.set()
        return read_line(line)

    async def slow(session: Session, name: str, *arguments: object) -> list[Row]:
        if name == "job_enqueue_many":
            async with asyncio.timeout(30):
                await third.wait()
        return await rows(session, name, *arguments)

    monkeypatch.setattr(enqueue, "read", noted)
    monkeypatch.setattr(Session, "rows", slow)
    ran = await mailslot("enqueue", "--json", "-", stdin=lines(PARTY) * 4)
    assert ran.json == {"lines": 4, "new": 4, "known": 0}
    assert await count(database) == 4


async def test_bad_lines_are_named_in_order_whoever_found_them(
    mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's refusal of one batch comes before what was seen in the next meanwhile, and nothing is sent after it."""
    monkeypatch.setattr(enqueue, "BATCH", 2)
    nul = b'{"kind": "report", "payload": {"n": "\\u0000"}}'
    ran = await mailslot("enqueue", "--json", "-", stdin=lines(PARTY, PARTY, PARTY, nul, b"nope", PARTY, nul, PARTY))
    assert ran.code == 65
    assert [line.partition(":")[0] for line in ran.err.splitlines()] == ["line 4", "line 5", "mailslot"]
    assert await count(database) == 0


def test_a_column_of_defaults_isnt_sent() -> None:
    """Ten arrays of a thousand equal values cost as much as reading the lines; one value that differs, and all are sent."""
    common = DEFAULTS._replace(payload="{}")
    assert columns_of([common, common]) == [["{}", "{}"], *[None] * 10]
    special = Columns("{}", "q", "k", NOW, NOW, 0, "hold", "k", 1, "t", "r")
    assert columns_of([common, special])[1:] == [list(pair) for pair in zip(DEFAULTS[1:], special[1:], strict=True)]


def test_batches_end_at_their_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large payloads are a batch of their own, or one statement would carry gigabytes."""
    monkeypatch.setattr(enqueue, "BATCH_BYTES", 10)
    batches = list(
        enqueue._batches(  # noqa: SLF001 - sizes that no test wants to send
            [b"12345", b"12345", b"1", b"12345678901", b"1"]
        )
    )
    assert [[number for number, _ in batch] for batch in batches] == [[1, 2], [3, 4], [5]]


async def test_the_commit_is_durable_whatever_the_servers_default(mailslot: Mailslot, database: Database) -> None:
    """With synchronous_commit off by default, and an insert that looks, the transaction has it on."""
    await database.execute(f"ALTER DATABASE {database.name} SET synchronous_commit = off")
    await database.execute("""
        CREATE TABLE public.seen (setting text);
        CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        CREATE TRIGGER look AFTER INSERT ON mailslot.jobs EXECUTE FUNCTION public.look();
    """)
    assert (await mailslot("enqueue", "--to", "a@example.org", "--text", "x")).code == 0
    assert (await mailslot("enqueue", "--json", "-", stdin=lines(PARTY))).code == 0
    assert await database.fetchval("SELECT array_agg(DISTINCT setting) FROM public.seen") == ["on"]


async def test_a_producer_needs_no_other_role(mailslot: Mailslot, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of saving work with EXECUTE on mailslot.enqueue() and nothing else."""
    monkeypatch.setenv("MAILSLOT_DATABASE__DSN", f"{database.dsn}{'&' if '?' in database.dsn else '?'}role=mailslot_producer")
    assert (await mailslot("enqueue", "--to", "a@example.org", "--text", "x")).code == 0
    assert (await mailslot("enqueue", "--json", "-", stdin=lines(PARTY))).code == 0
    assert await count(database) == 2


async def test_defaults_are_those_of_the_function(mailslot: Mailslot, database: Database) -> None:
    """A line without a key means what mailslot.enqueue() means without the argument."""
    await database.execute("SELECT mailslot.enqueue($1::text::jsonb)", json.dumps(PARTY))
    assert (await mailslot("enqueue", "--json", "-", stdin=lines(PARTY))).code == 0
    by_sql, by_line = [dict(row) for row in await database.fetch("SELECT * FROM mailslot.jobs ORDER BY id")]
    for row in (by_sql, by_line):
        assert row["available_at"] == row["created_at"]
        assert row["expires_at"] - row["available_at"] == timedelta(days=3)
        for name in ("id", "uid", "created_at", "available_at", "expires_at"):
            del row[name]
    assert by_sql == by_line


def test_a_terminal_gets_a_progress_bar_and_a_pipe_does_not(database: Database, tmp_path: Path) -> None:
    """The bar is on standard error, so that the summary can be piped on."""
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(lines(PARTY))
    empty = tmp_path / "empty.toml"
    empty.touch()
    environment = {**environ, "MAILSLOT_DATABASE__DSN": database.dsn, "MAILSLOT_MAIL__FROM": "a@example.org"}
    command = [sys.executable, "-m", "daemon", "enqueue", "--config", str(empty), "--json", str(file)]
    main_end, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with_terminal = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=terminal, check=True)
    assert b"100%" in read(main_end, 65536)
    assert json.loads(with_terminal.stdout)["new"] == 1
    without = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert without.stderr == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a@example.org,b@example.org", ["a@example.org", "b@example.org"]),
        ('"Ray, Maya" <m@example.org>', ['"Ray, Maya" <m@example.org>']),
        ('"a\\"b, c" <m@example.org>, d@example.org', ['"a\\"b, c" <m@example.org>', "d@example.org"]),
        (" , ,a@example.org,", ["a@example.org"]),
        ("", []),
    ],
)
def test_a_comma_in_quotes_separates_nobody(text: str, expected: list[str]) -> None:
    """A display name with a comma is one mailbox."""
    assert mailboxes([text]) == expected
