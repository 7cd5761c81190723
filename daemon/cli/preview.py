"""`mailslot preview`: the mail as it would be sent, in files to look at.

Goes the worker's own way from payload to bytes, templates, proof and all, and stops there: nothing is sent, and nothing in the
database is changed. What is missing in the files is only what is made at the time of sending: a signature (DKIM), and a job's
number where there is no job yet. The HTML and the text are read back out of the mail's bytes, as a reader would read them.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from tempfile import mkstemp
from uuid import UUID

import msgspec

from daemon import dkim
from daemon.cli.exits import BadDataError, Exit, UsageError
from daemon.cli.options import settings_of
from daemon.cli.render import as_json, listing, printable
from daemon.cli.session import opened
from daemon.core.message import Message, Unbuildable, compose
from daemon.core.settings import Settings
from daemon.templates import Library

MAIL = "email"
NO_UID = UUID(int=0)
STAND_IN = "recipient@example.com"


class Source(msgspec.Struct, frozen=True):
    """What is composed: a payload, whose it is, and what its files are called."""

    payload: str
    uid: UUID
    created_at: datetime
    name: str


def run(arguments: Namespace) -> int:
    """Write the files and say what they are; raises BadDataError if there can't be such a mail, and then nothing was written."""
    if (arguments.id is None) == (arguments.template is None):
        raise UsageError("name either a job or --template")
    if arguments.template is None and (arguments.data or arguments.to):
        raise UsageError("--data and --to go with --template; a job has its own")
    settings = settings_of(arguments)
    source = _of_template(arguments) if arguments.id is None else asyncio.run(_of_job(settings, arguments.id))
    if source is None:
        print(f"there is no job {arguments.id}", file=sys.stderr)
        return Exit.NOTHING_DONE
    message = composed(settings, source)
    files = _written(message, arguments.out, source.name)
    to, paths = list(message.recipients), [str(file) for file in files]
    told = {
        "message_id": message.message_id,
        "from": message.envelope_from,
        "to": to,
        "subject": message.subject,
        "bytes": len(message.content),
        "files": paths,
    }
    print(as_json(told) if arguments.json else listing(told | {"to": ", ".join(to), "files": " ".join(paths)}))
    return Exit.DONE


def composed(settings: Settings, source: Source) -> Message:
    """Return the mail as a worker with these settings would send it; raises BadDataError with the reason why it wouldn't."""
    templates = Library(settings.templates.dir).current
    message = compose(source.payload, uid=source.uid, created_at=source.created_at, defaults=settings.mail, templates=templates)
    if isinstance(message, Message) and settings.dkim.domain:
        message = dkim.misaligned(message, settings.dkim.domain) or message
    if isinstance(message, Unbuildable):
        raise BadDataError(f"this mail would not be sent: {printable(message)}")
    return message


async def _of_job(settings: Settings, job_id: int) -> Source | None:
    async with opened(settings.database) as session:
        row = await session.row("job_payload", job_id)
    if row is None:
        return None
    if row["kind"] != MAIL:
        raise UsageError(f"job {job_id} is of kind {printable(row['kind'])}, which is no mail")
    return Source(row["payload"], row["uid"], row["created_at"], f"job-{job_id}")


def _of_template(arguments: Namespace) -> Source:
    try:
        data = msgspec.json.decode(_read(arguments.data), type=dict[str, object]) if arguments.data else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadDataError(f"{arguments.data}: must hold one JSON object, the template's data: {error}") from error
    payload = {"to": arguments.to or [STAND_IN], "template": arguments.template, "data": data}
    return Source(msgspec.json.encode(payload).decode(), NO_UID, datetime.now(UTC), arguments.template)


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from error


def _written(message: Message, folder: Path, name: str) -> list[Path]:
    """Write the mail and its bodies, each as a new file in the place of what has its name, and never through a link.

    Who may read them is only who wrote them, for an invitation's link is as good as a key.
    """
    mail = message_from_bytes(message.content, policy=policy.default)
    octets = {"eml": message.content}
    for kind, ending in (("html", "html"), ("plain", "txt")):
        body = mail.get_body((kind,)) if isinstance(mail, EmailMessage) else None
        octets_of_body = body.get_payload(decode=True) if body is not None else None
        if isinstance(octets_of_body, bytes):
            octets[ending] = octets_of_body
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in octets.items():
            files.append(folder / f"{name}.{ending}")
            _put(files[-1], content)
    except OSError as error:
        raise UsageError(f"{error.filename2 or error.filename or folder}: {error.strerror}") from error
    return files


def _put(file: Path, content: bytes) -> None:
    descriptor, name = mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(descriptor, "wb") as new:  # noqa: PTH123 - a descriptor has no path
            new.write(content)
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
