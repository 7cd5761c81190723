"""What can be typed after `mailslot`: every command, its flags, their meaning and units.

Each command names its function as `module:function`, so that `mailslot --help` loads none of them. A usage error is exit 64, not
argparse's 2.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter, _SubParsersAction
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from daemon import __version__
from daemon.cli import times
from daemon.cli.exits import Exit

EXITS = """\
exit codes
  0   done                              69  the database is unavailable: try again later
  1   nothing was done, or a bug        75  stopped with unfinished sends
  64  usage                             77  not permitted
  65  what was to be saved is bad       78  configuration, schema or settings
"""
STATES = ("ready", "leased", "marked", "sent", "dead", "in_doubt", "cancelled")


STAGES = ("connect", "greeting", "ehlo", "tls", "auth", "mail", "rcpt", "data", "body", "dot")
CLASSIFY = """\
examples
  mailslot classify '454 Throttling failure: Maximum sending rate exceeded.'
  mailslot classify --stage rcpt '450-4.2.0 Greylisted\\n450 4.2.0 try again in 5 minutes'
  mailslot classify --stage body connection_closed

The configuration's own rules ([[rule]]) are asked first, as in the daemon. Nothing is connected to and nothing changed.
"""
ON_DOUBT = ("resend", "hold", "assume_sent")
PREVIEW = """\
examples
  mailslot preview 42 --out /tmp/previews
  mailslot preview --template invite --data invite.json
  echo '{"name": "Maya"}' | mailslot preview --template invite --data -

Writes NAME.eml, and NAME.html and NAME.txt as far as the mail has them, over those of an earlier preview. They say what would be
sent with this configuration, but for the signature (DKIM). Exit 65 if the mail would not be sent, with the reason.
"""
ENQUEUE = """\
examples
  mailslot enqueue --to maya@example.org --subject Welcome --text 'Come in.' --key invitation:42
  mailslot enqueue --to '"Ray, Maya" <maya@example.org>, sam@example.org' --text-file letter.txt --expires +3d
  mailslot enqueue --kind report.build --payload '{"month": "2026-11"}' --at 2026-12-01T06:00:00+01:00
  generate | mailslot enqueue --json -

Each line of --json is a payload, {"to": [..], "subject": .., "text": ..}, or an envelope around one: {"payload": {..}, "queue",
"idempotency_key", "available_at", "expires_at", "priority", "on_doubt", "kind", "max_attempts", "relay", "traceparent"}.
All of it is saved in one transaction. Every bad line is named on standard error with its number, and then nothing is saved (65).
A summary, one JSON object, is printed when the database has everything on disk.

Times are ISO 8601 with a zone, or count from now: +90m, +3d, +1d12h (s, m, h, d, w).
"""


class Parser(ArgumentParser):
    """An ArgumentParser that leaves with 64 and never guesses what an abbreviated flag meant."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  what argparse itself hands to a parser below another
        super().__init__(**{"allow_abbrev": False, "formatter_class": RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how to find out more."""
        self.exit(Exit.USAGE, f"{self.prog}: {message}\ntry `{self.prog} --help`\n")


Commands: TypeAlias = "_SubParsersAction[Parser]"


def parser() -> Parser:
    """Return the parser of the whole command line."""
    root = Parser(prog="mailslot", description="Delivers the e-mail jobs of an application out of its PostgreSQL.", epilog=EXITS)
    root.add_argument("--version", action="version", version=f"mailslot {__version__}")
    commands = root.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands)
    _add_dev(commands)
    _add_db(_group(commands, "db", "create, migrate and check the schema"))
    _add_enqueue(commands)
    _add_preview(commands)
    _add_classify(commands)
    _add_jobs(_group(commands, "jobs", "look at jobs and decide about them"))
    return root


def _group(commands: Commands, name: str, about: str) -> Commands:
    group = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    return group.add_subparsers(metavar="COMMAND", required=True)


def _command(commands: Commands, name: str, target: str, about: str, examples: str = "") -> Parser:
    command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", epilog=examples)
    command.set_defaults(target=target)
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration (default: $MAILSLOT_CONFIG, else /etc/mailslot/config.toml if there is one)",
    )
    return command


def _add_json(command: Parser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _add_run(commands: Commands) -> None:
    run = _command(
        commands, "run", "daemon.cli.run:run", "run the daemon until SIGTERM or Ctrl-C; a second signal cuts the drain short",
        "examples\n  mailslot run --config config.toml\n  mailslot run --queue invitations --queue default --concurrency 20\n"
        "  mailslot run --check-config\n\n" + EXITS,
    )  # fmt: skip
    run.add_argument("--concurrency", type=_positive, metavar="N", help="jobs at the same time (worker.concurrency)")
    run.add_argument("--queue", action="append", metavar="NAME", help="take from this queue; repeatable (worker.queues)")
    run.add_argument("--once", action="store_true", help="leave when nothing is due and everything taken is finished")
    run.add_argument(
        "--check-config", action="store_true", help="print all problems of the configuration and its files, and leave"
    )
    run.add_argument("--json", action="store_true", help="with --check-config: print the problems as JSON")


def _add_dev(commands: Commands) -> None:
    dev = commands.add_parser(
        "dev",
        help="try it: a PostgreSQL and an inbox of its own, and one invitation on its way",
        description="Starts an embedded PostgreSQL, a local inbox and the real daemon, and shows one invitation on its way.",
    )
    dev.set_defaults(target="daemon.cli.run:dev")
    dev.add_argument("--once", action="store_true", help="leave when nothing is due, with nothing left running")
    dev.add_argument("--dir", type=Path, default=Path(".mailslot"), metavar="DIR", help="where its data lives (%(default)s)")
    dev.add_argument("--concurrency", type=_positive, metavar="N", help="jobs at the same time")


def _add_db(commands: Commands) -> None:
    migrate = _command(
        commands, "migrate", "daemon.cli.db:run_migrate",
        "create the schema, or bring an older one up to date, in one transaction",
        "A second run does nothing. A schema newer than this program is refused (78).\n"
        "Needs a user who may create schemas and, the first time, roles.",
    )  # fmt: skip
    check = _command(
        commands, "check", "daemon.cli.db:run_check",
        "check version, agreed settings, durability and what the user may do",
        "Exit 0 if a worker with this configuration and this user can start; 77 if only the user may not work, else 78.",
    )  # fmt: skip
    _command(commands, "schema", "daemon.cli.db:run_schema", "print schema.sql")
    settings = _command(
        commands, "settings", "daemon.cli.db:run_settings",
        "compare what all workers must agree on with the configuration's [lease]",
        "Exit 0 if they agree, else 78. Stop all workers before --write.",
    )  # fmt: skip
    settings.add_argument("--write", action="store_true", help="write the configuration's values into the database")
    for command in (migrate, check, settings):
        _add_json(command)


def _add_enqueue(commands: Commands) -> None:
    enqueue = _command(
        commands, "enqueue", "daemon.cli.enqueue:run", "save one job from flags, or many from lines of JSON", ENQUEUE,
    )  # fmt: skip
    mail = enqueue.add_argument_group("the mail")
    for flag, whom in {"to": "recipients", "cc": "copies", "bcc": "hidden copies", "reply-to": "where answers go"}.items():
        about = f"{whom}; repeatable, or with commas between"
        mail.add_argument(f"--{flag}", action="append", default=[], metavar="ADDRESS", help=about)
    mail.add_argument("--from", dest="from_", metavar="ADDRESS", help="the sender (default: mail.from)")
    mail.add_argument("--subject", metavar="TEXT")
    mail.add_argument("--text", metavar="TEXT", help="the plain body")
    mail.add_argument("--html", metavar="HTML", help="the HTML body")
    mail.add_argument("--text-file", metavar="FILE", help="the plain body, UTF-8; - is standard input")
    mail.add_argument("--html-file", metavar="FILE", help="the HTML body, UTF-8; - is standard input")
    mail.add_argument("--attach", action="append", default=[], metavar="FILE", help="a file to attach; repeatable")
    mail.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="one more header; repeatable")
    job = enqueue.add_argument_group("the job")
    job.add_argument("--queue", metavar="NAME", help="default: default")
    job.add_argument("--key", metavar="KEY", help="idempotency key: a second job with it in this queue is the first one")
    job.add_argument("--at", type=_time, metavar="TIME", help="not before (default: now)")
    job.add_argument("--expires", type=_time, metavar="TIME", help="not after (default: 3 days after --at)")
    job.add_argument("--priority", type=int, choices=range(4), help="0 urgent .. 3 bulk (default: 1)")
    job.add_argument("--on-doubt", choices=ON_DOUBT, help="if a relay's answer is lost (default: resend)")
    job.add_argument("--max-attempts", type=_positive, metavar="N", help="tries at the most (default: 100)")
    job.add_argument("--kind", metavar="KIND", help="the handler, with --payload (default: email)")
    job.add_argument("--payload", metavar="JSON", help="the whole payload instead of a mail's flags")
    job.add_argument("--relay", metavar="NAME", help="send it through this relay only (default: one that serves the queue)")
    job.add_argument("--traceparent", metavar="W3C", help="trace context to link the attempts to")
    many = enqueue.add_argument_group("many jobs, and output")
    many.add_argument("--json", dest="lines", metavar="FILE", help="read jobs from lines of JSON; - is standard input")
    many.add_argument("--output", choices=("text", "json"), help="how to say what was saved (default: text; json with --json)")


def _add_classify(commands: Commands) -> None:
    classify = _command(
        commands, "classify", "daemon.cli.classify:run", "say what a relay's reply would mean, and which rule decides", CLASSIFY,
    )  # fmt: skip
    classify.add_argument("answer", metavar="REPLY", help="the reply as the relay said it, or the name of a fault")
    stages = f"when it was said (default: %(default)s): {', '.join(STAGES)}"
    classify.add_argument("--stage", choices=STAGES, default="dot", metavar="STAGE", help=stages)
    classify.add_argument("--reused", action="store_true", help="on a connection that had carried a mail before")
    _add_json(classify)


def _add_preview(commands: Commands) -> None:
    preview = _command(
        commands, "preview", "daemon.cli.preview:run", "write a job's or a template's mail into files; nothing is sent", PREVIEW,
    )  # fmt: skip
    preview.add_argument("id", nargs="?", type=_positive, metavar="JOB", help="the job's id")
    preview.add_argument("--template", metavar="NAME", help="this template, without a job")
    preview.add_argument("--data", metavar="FILE", help="the template's data, a JSON object; - is standard input (default: none)")
    preview.add_argument("--to", action="append", metavar="ADDRESS", help="with --template: recipient (default: an invented one)")
    preview.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write them (default: here)")
    _add_json(preview)


def _add_jobs(commands: Commands) -> None:
    show = _on_job(commands, "show", "show a job, its recipients' verdicts, its attempts and what the relay answered")
    show.add_argument("--payload", action="store_true", help="also what is to be sent")
    listing = _command(
        commands, "list", "daemon.cli.jobs:run_list", "list jobs, newest first",
        "examples\n  mailslot jobs list --state dead --state in_doubt\n  mailslot jobs list --after 1200\n\n"
        "TRY is attempts/most, with a ? for each time that a relay's answer was lost. AGE and DUE count from now.",
    )  # fmt: skip
    states = f"only in this state; repeatable: {', '.join(STATES)}"
    listing.add_argument("--state", action="append", choices=STATES, metavar="STATE", help=states)
    listing.add_argument("--queue", metavar="NAME", help="only jobs of this queue")
    listing.add_argument("--limit", type=_positive, default=50, metavar="N", help="rows at the most (default: %(default)s)")
    listing.add_argument("--after", type=_positive, metavar="ID", help="go on below this id: the last one of the page before")
    _add_json(listing)
    retry = _on_job(commands, "retry", "make a dead, in_doubt or cancelled job ready again for those who don't have it")
    retry.add_argument("--expires", type=_time, metavar="TIME", help="not after (default: +3d)")
    retry.add_argument("--again", action="store_true", help="also set aside what late answers of relays have proven as sent")
    cancel = _on_job(commands, "cancel", "withdraw a job that isn't finished")
    resolve = _on_job(commands, "resolve", "end a job's doubt by what was found out")
    found = resolve.add_mutually_exclusive_group(required=True)
    found.add_argument("--sent", action="store_true", help="it was delivered")
    found.add_argument("--not-sent", action="store_true", help="it wasn't; the job is dead and may be retried")
    for command in (retry, cancel, resolve):
        command.add_argument("--why", metavar="TEXT", help="for the audit trail")


def _on_job(commands: Commands, name: str, about: str) -> Parser:
    command = _command(
        commands, name, f"daemon.cli.jobs:run_{name}", about, "Exit 1 if there is no such job, or nothing could be done."
    )
    command.add_argument("id", type=_positive, metavar="ID")
    _add_json(command)
    return command


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**63:
        raise ArgumentTypeError(f"{text!r} isn't a positive number")
    return int(text)


def _time(text: str) -> str:
    """Check a time now and keep its text: a relative one counts from the database's clock, which hasn't been asked yet."""
    try:
        times.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text
