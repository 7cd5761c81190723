"""How long does it take to make a mail? Ours, and the standard library's for the same mail, in one run.

    python tests/bench/message.py [--json] [--seconds S]

Prints microseconds for one mail, of the average and of the fastest batch, and how many times as long the standard library takes.
Both sides alternate batch by batch, so that whatever else the machine does meanwhile slows both. The average is what this machine
gives; the fastest batch comes close to what an idle core would. Ours includes reading the JSON and proving the finished bytes;
the standard library's is building an EmailMessage from values and flattening it, with no proof. Not a test: times decide nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[2]))

from daemon.core import settings
from daemon.core.message import Message, compose

UID = UUID("0f5e7a52-9c1d-4d53-8a39-6f0f6c1f2b3d")
AT = datetime(2026, 12, 1, 7, 30, tzinfo=UTC)
DEFAULTS = settings.Mail(from_="Example Team <team@example.org>")
BATCH = 20
TO = "Ann Example <ann@example.org>"

LINE = "Hello Ann, here is the plan for the week that you asked for:\n"
SHORT = LINE * 15 + "https://example.org/i/abcdefgh\n"
"""About 1 kB."""
TEXT = LINE * 32 + "https://example.org/i/abcdefgh\n"
"""About 2 kB."""
ROW = '<tr><td class="a"><p style="color:red">Hello <b>Ann</b>, see <a href="https://example.org/i/a">this</a></p></td></tr>\n'
MAILS: dict[str, dict[str, str]] = {
    "plain text, 1 kB": {"subject": "You are invited", "text": SHORT},
    "plain text, 2 kB": {"subject": "You are invited", "text": TEXT},
    "text and HTML, 2 x 1 kB": {"subject": "You are invited", "text": SHORT, "html": f"<html><p>{SHORT}</p></html>"},
    "HTML alone, much markup": {"subject": "You are invited", "html": f"<html><table>{ROW * 20}</table></html>"},
    "text in German, 1 kB": {"subject": "You are invited", "text": SHORT.replace("plan", "Plänchen")},
    "subject in German": {"subject": "Sie sind zum Mittagessen am nächsten Dienstag eingeladen", "text": SHORT},
    "name with a comma": {"to": '"Example, Ann" <ann@example.org>', "subject": "You are invited", "text": SHORT},
    "all in Russian, 1 kB": {
        "to": "Анна Петрова <ann@example.org>",
        "subject": "Приглашение на встречу в следующую пятницу",
        "text": "Привет, Анна! Вот план на неделю, который ты хотела увидеть.\n" * 10,
    },
    "all in Chinese, 0.6 kB": {
        "to": "刘瑞 <liu@example.org>",
        "subject": "邀请您参加下周五的会议",
        "text": "您好。这是您要求的本周计划。\n" * 15,
    },
}


def ours(mail: dict[str, str]) -> Callable[[], bytes]:
    """Return a function that makes the mail our way."""
    # As jsonb is given out: nothing escaped that needn't be.
    payload = json.dumps({"to": TO, **mail}, ensure_ascii=False)

    def make() -> bytes:
        message = compose(payload, uid=UID, created_at=AT, defaults=DEFAULTS)
        assert isinstance(message, Message), message
        return message.content

    return make


def library(mail: dict[str, str]) -> Callable[[], bytes]:
    """Return a function that makes the mail as the standard library is meant to be used."""

    def make() -> bytes:
        message = EmailMessage(policy=SMTP)
        message["Date"] = format_datetime(AT)
        message["From"] = "Example Team <team@example.org>"
        message["To"] = mail.get("to", TO)
        message["Subject"] = mail["subject"]
        message["Message-ID"] = f"<{UID}@example.org>"
        message["X-Job-ID"] = str(UID)
        message["Auto-Submitted"] = "auto-generated"
        message["X-Auto-Response-Suppress"] = "All"
        if "text" in mail:
            message.set_content(mail["text"])
        if "html" in mail:
            (message.add_alternative if "text" in mail else message.set_content)(mail["html"], subtype="html")
        return message.as_bytes()

    return make


@dataclass
class Series:
    """Seconds for one mail, by batch."""

    batches: list[float] = field(default_factory=list)

    def run(self, make: Callable[[], bytes]) -> None:
        """Time one batch."""
        begun = time.perf_counter()
        for _ in range(BATCH):
            make()
        self.batches.append((time.perf_counter() - begun) / BATCH)

    @property
    def average_us(self) -> float:
        """Return the average, in microseconds."""
        return sum(self.batches) / len(self.batches) * 1e6

    @property
    def fastest_us(self) -> float:
        """Return the fastest batch, in microseconds."""
        return min(self.batches) * 1e6


def measured(mail: dict[str, str], seconds: float) -> dict[str, float | int]:
    """Return what was measured about one mail."""
    makers = {"ours": ours(mail), "library": library(mail)}
    series = {side: Series() for side in makers}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for side, make in makers.items():
            series[side].run(make)
    found = {
        f"{side}_{name}": round(getattr(each, name), 1) for side, each in series.items() for name in ("average_us", "fastest_us")
    }
    ratio = series["library"].average_us / series["ours"].average_us
    return {"bytes": len(makers["ours"]()), **found, "ratio": round(ratio, 1)}


def main() -> None:
    """Measure every mail, and print a line for each."""
    parser = argparse.ArgumentParser(description="Time how long it takes to make a mail, beside the standard library.")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each mail (default: %(default)s)")
    arguments = parser.parse_args()
    mails = {name: measured(mail, arguments.seconds) for name, mail in MAILS.items()}
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), "mails": mails}))
        return
    print(f"microseconds for one mail, on Python {platform.python_version()}")
    print(f"{'':26}{'bytes':>7}{'ours: average':>15}{'fastest':>9}{'library: average':>18}{'fastest':>9}{'ratio':>8}")
    for name, found in mails.items():
        numbers = f"{found['ours_average_us']:>15}{found['ours_fastest_us']:>9}{found['library_average_us']:>18}"
        print(f"{name:26}{found['bytes']:>7}{numbers}{found['library_fastest_us']:>9}{found['ratio']:>8}")


if __name__ == "__main__":
    main()
