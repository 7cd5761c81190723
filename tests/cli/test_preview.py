"""`mailslot preview`: the files are what would be sent, and nothing else happens."""

from __future__ import annotations

import json
from os import scandir
from pathlib import Path
from stat import S_IMODE

import pytest

from tests.cli.conftest import Mailslot
from tests.support.database import Database

TEMPLATES = {
    "invite.subject.txt": "Come, {{ name }}\n",
    "invite.txt": "Dear {{ name }}\n",
    "invite.html": "<style>p{color:red}</style><p>Dear {{ name }}</p>\n",
}


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the template `invite`, which is configured."""
    folder = tmp_path / "templates"
    folder.mkdir()
    for name, text in TEMPLATES.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("MAILSLOT_TEMPLATES__DIR", str(folder))
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a folder that isn't there yet."""
    return tmp_path / "out" / "previews"


def files_in(folder: Path) -> list[str]:
    """Return the names of a folder's files; none if there is no folder."""
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def occupy(folder: Path, elsewhere: Path) -> None:
    """Make a folder in which a file for everybody, a link and a folder have the names of the files of `invite`."""
    folder.mkdir(parents=True)
    (folder / "invite.txt").touch(mode=0o644)
    (folder / "invite.html").symlink_to(elsewhere)
    (folder / "invite.eml").mkdir()


async def enqueue(database: Database, payload: object, kind: str = "email") -> int:
    """Save a job as an application does, and return its id."""
    query = "SELECT id FROM mailslot.enqueue(payload => $1, kind => $2)"
    return int(await database.fetchval(query, json.dumps(payload), kind))


async def test_the_mail_of_a_job_is_written_as_it_would_be_sent(mailslot: Mailslot, database: Database, out: Path) -> None:
    """The job's own Message-ID and date; who is in bcc is named on the terminal and in no file."""
    payload = {"to": ["Ann <ann@example.org>"], "bcc": ["boss@example.org"], "subject": "Grüße", "html": "<p>Hällo</p>"}
    job_id = await enqueue(database, payload)
    before = await database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job_id)
    assert before is not None
    ran = await mailslot("preview", str(job_id), "--out", str(out), "--json")
    assert (ran.code, ran.err) == (0, "")
    files = [out / f"job-{job_id}.{ending}" for ending in ("eml", "html", "txt")]
    content = files[0].read_bytes()
    assert ran.json == {
        "message_id": f"<{before['uid']}@example.org>",
        "from": "team@example.org",
        "to": ["ann@example.org", "boss@example.org"],
        "subject": "Grüße",
        "bytes": len(content),
        "files": [str(file) for file in files],
    }
    assert f"Date: {before['created_at']:%a, %d %b %Y %H:%M:%S} +0000\r\n".encode() in content
    assert f"Message-ID: <{before['uid']}@example.org>\r\n".encode() in content
    assert b"boss@" not in content
    assert (files[1].read_text(), files[2].read_text()) == ("<p>Hällo</p>\n", "Hällo\n")
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert dict(before) == dict(await database.fetchrow("SELECT * FROM mailslot.jobs WHERE id = $1", job_id) or {})
    assert await database.fetchval("SELECT count(*) FROM mailslot.audit") == 0


async def test_a_template_is_shown_without_job_or_database(run: Mailslot, templates: Path, out: Path) -> None:
    """With data from a file, for an invented recipient, in files that are named after it; a second time over the first."""
    data = templates / "data.json"
    for name in ("Ann & Bo", "Cy"):
        data.write_text(json.dumps({"name": name}))
        ran = await run("preview", "--template", "invite", "--data", str(data), "--out", str(out))
        assert (ran.code, ran.err) == (0, "")
        assert f"subject     Come, {name}" in ran.out
        assert "recipient@example.com" in ran.out
        assert str(out / "invite.html") in ran.out
        assert (out / "invite.txt").read_text() == f"Dear {name}\n"
        assert (out / "invite.html").read_text() == f'<p style="color: red;">Dear {name.replace("&", "&amp;")}</p>\n'
    assert files_in(out) == ["invite.eml", "invite.html", "invite.txt"]


@pytest.mark.usefixtures("templates")
async def test_what_stands_in_a_files_place_gets_nothing_of_the_mail(run: Mailslot, out: Path, tmp_path: Path) -> None:
    """A file that everybody may read is replaced, and a link isn't followed; nothing else is left in the folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("somebody's")
    occupy(out, elsewhere)
    arguments = ("preview", "--template", "invite", "--data", "-", "--out", str(out))
    ran = await run(*arguments, stdin=b'{"name": "Ann"}')
    assert ran.code == 64
    assert f"{out / 'invite.eml'}: Is a directory" in ran.err
    (out / "invite.eml").rmdir()
    assert (await run(*arguments, stdin=b'{"name": "Ann"}')).code == 0
    assert files_in(out) == ["invite.eml", "invite.html", "invite.txt"]
    assert [S_IMODE(file.stat(follow_symlinks=False).st_mode) for file in scandir(out)] == [0o600] * 3
    assert not any(file.is_symlink() for file in scandir(out))
    assert elsewhere.read_text() == "somebody's"


@pytest.mark.usefixtures("templates")
async def test_data_come_from_standard_input_and_recipients_from_flags(run: Mailslot, out: Path) -> None:
    """As many as there are."""
    ran = await run(
        *("preview", "--template", "invite", "--data", "-", "--to", "a@example.org", "--to", "b@example.org"),
        *("--out", str(out), "--json"),
        stdin=b'{"name": "Ann"}',
    )
    assert (ran.code, ran.json["to"], ran.json["subject"]) == (0, ["a@example.org", "b@example.org"], "Come, Ann")


async def test_a_job_that_names_a_template_is_shown_with_it(
    mailslot: Mailslot, database: Database, templates: Path, out: Path
) -> None:
    """Also where the text has to be made of the HTML."""
    (templates / "invite.txt").unlink()
    job_id = await enqueue(database, {"to": ["ann@example.org"], "template": "invite", "data": {"name": "Ann"}})
    ran = await mailslot("preview", str(job_id), "--out", str(out), "--json")
    assert (ran.code, ran.json["subject"]) == (0, "Come, Ann")
    assert (out / f"job-{job_id}.txt").read_text() == "Dear Ann\n"


@pytest.mark.usefixtures("templates")
@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (["--template", "invite"], b"", (65, "template_variable_missing: data.name: invite.subject.txt needs it")),
        (["--template", "invite", "--data", "-"], b'{"name": null}', (65, "shows what is null: name")),
        (["--template", "invite", "--data", "-"], b'{"name": "a\\nb"}', (65, "header_control_char: subject")),
        (["--template", "invite", "--data", "-"], b"[]", (65, "must hold one JSON object")),
        (["--template", "invite", "--data", "-"], b"{", (65, "must hold one JSON object")),
        (["--template", "invite", "--data", "-"], b"[" * 100_000, (65, "must hold one JSON object")),
        (["--template", "../../etc/passwd"], b"", (65, "template_unknown")),
        (["--template", "invite", "--data", "/no/such/file"], b"", (64, "/no/such/file: No such file")),
        ([], b"", (64, "name either a job or --template")),
        (["1", "--template", "invite"], b"", (64, "name either a job or --template")),
        (["1", "--data", "-"], b"", (64, "--data and --to go with --template")),
        (["1", "--to", "a@example.org"], b"", (64, "--data and --to go with --template")),
    ],
)
async def test_what_would_not_be_sent_is_not_written(
    run: Mailslot, out: Path, arguments: list[str], stdin: bytes, expected: tuple[int, str]
) -> None:
    """The reason is said as it would be recorded."""
    ran = await run("preview", *arguments, "--out", str(out), stdin=stdin)
    assert (ran.code, ran.out) == (expected[0], "")
    assert expected[1] in ran.err
    assert files_in(out) == []


@pytest.mark.usefixtures("templates")
async def test_a_mail_that_would_not_be_signed_is_not_written(run: Mailslot, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is needed to see that From and the domain that signs don't fit."""
    monkeypatch.setenv("MAILSLOT_DKIM__DOMAIN", "example.net")
    monkeypatch.setenv("MAILSLOT_DKIM__SELECTOR", "mail")
    arguments = ("preview", "--template", "invite", "--data", "-", "--out", str(out))
    ran = await run(*arguments, stdin=b'{"name": "Ann"}')
    assert (ran.code, files_in(out)) == (65, [])
    assert "dkim_alignment: from: is not in example.net" in ran.err
    monkeypatch.setenv("MAILSLOT_DKIM__DOMAIN", "example.org")
    assert (await run(*arguments, stdin=b'{"name": "Ann"}')).code == 0
    assert b"DKIM-Signature" not in (out / "invite.eml").read_bytes()


async def test_a_job_that_is_not_there_and_one_that_is_no_mail(mailslot: Mailslot, database: Database, out: Path) -> None:
    """Nothing to show."""
    ran = await mailslot("preview", "999", "--out", str(out))
    assert (ran.code, ran.err) == (1, "there is no job 999\n")
    job_id = await enqueue(database, {"month": "2026-11"}, "report.build")
    ran = await mailslot("preview", str(job_id), "--out", str(out))
    assert (ran.code, files_in(out)) == (64, [])
    assert f"job {job_id} is of kind report.build, which is no mail" in ran.err


async def test_a_folder_that_cannot_be_written_is_named(run: Mailslot, templates: Path) -> None:
    """Here a file stands in its place."""
    ran = await run(
        "preview", "--template", "invite", "--data", "-", "--out", str(templates / "invite.txt"), stdin=b'{"name": "A"}'
    )
    assert ran.code == 64
    assert "invite.txt: File exists" in ran.err


async def test_templates_with_faults_are_named(
    run: Mailslot, templates: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the daemon's start."""
    (templates / "invite.txt").write_text("{% if %}")
    ran = await run("preview", "--template", "invite", "--out", str(out))
    assert (ran.code, files_in(out)) == (78, [])
    assert "templates.dir: invite.txt, line 1: " in ran.err
    variables = {"RELAY__0__NAME": "a", "RELAY__0__HOST": "127.0.0.1", "DKIM__DOMAIN": "example.org", "DKIM__SELECTOR": "a"}
    for variable, value in variables.items():
        monkeypatch.setenv(f"MAILSLOT_{variable}", value)
    checked = await run("run", "--check-config", "--json")
    both = ["templates.dir", "dkim.private_key_file"]
    assert (checked.code, [problem["key"] for problem in checked.json["problems"]]) == (78, both)
    (templates / "invite.txt").write_text("x")
    checked = await run("run", "--check-config", "--json")
    assert (checked.code, [problem["key"] for problem in checked.json["problems"]]) == (78, ["dkim.private_key_file"])


@pytest.mark.usefixtures("templates")
async def test_enqueue_fills_templates_in_to_find_what_is_missing(mailslot: Mailslot, database: Database) -> None:
    """Whoever saves the job learns of it, not who reads dead letters."""
    lines = [{"to": ["a@example.org"], "template": "invite", "data": data} for data in ({"name": "Ann"}, {})]
    ran = await mailslot("enqueue", "--json", "-", stdin="\n".join(map(json.dumps, lines)).encode())
    assert ran.code == 65
    assert "line 2: data.name: invite.subject.txt needs it" in ran.err
    ran = await mailslot("enqueue", "--json", "-", stdin=json.dumps(lines[0]).encode())
    assert (ran.code, ran.json["new"]) == (0, 1)
    assert await database.fetchval("SELECT payload ->> 'template' FROM mailslot.jobs") == "invite"
