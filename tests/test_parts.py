"""What a worker is made of: every problem at once, and the same ones for the check and for the start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import handlers, parts
from daemon.core.errors import ConfigError
from daemon.core.settings import Problem, Settings, Templates
from tests.support.process import ROOT
from tests.test_dkim import KEY, pem

WRONG = """
[mail]
from = "team@example.org"
[templates]
dir = "nowhere"
[dkim]
domain = "example.org"
selector = "mail"
private_key_file = "no.pem"
[handlers]
"a" = "nosuch_module:build"
[[relay]]
name = "first"
host = "127.0.0.1"
port = 0
[[relay]]
name = "second"
host = "127.0.0.1"
ca_file = "config.toml"
"""
KEYS = ["relay[0].port", "templates.dir", "dkim.private_key_file", 'handlers."a"', "relay[1].ca_file"]
BROKEN = {
    "syntax": "def build(:",
    "name": "build = nobody",
    "environment": "import os\nos.environ['MAILSLOT_TEST_NOBODY_SETS_THIS']",
    "arithmetic": "1 / 0",
    "type": "len(1)",
    "value": "int('x')",
    "assertion": "assert False",
    "runtime": "raise RuntimeError('half installed')",
    "file": "open('/no/such/file')",
    "exit": "import sys\nsys.exit(3)",
    "recursion": "def f(): f()\nf()",
    "attribute": "other = 1",
}


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `mailslot run` with the folder's configuration, which must end by itself."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAILSLOT_")}
    command = [sys.executable, "-m", "daemon", "run", "--config", str(folder / "config.toml"), *flags]
    environ |= {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)


def keys(text: str) -> list[str]:
    """Return the keys of the problems, in order."""
    return re.findall(r"^(?:mailslot: )?(\S+): ", text, re.MULTILINE)


@pytest.mark.parametrize("flags", [(), ("--check-config",)], ids=["start", "check"])
def test_every_problem_is_said_at_once_by_the_check_and_by_the_start(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Settings, templates, key, functions and certificates: no kind hides another, and both say 78."""
    (tmp_path / "config.toml").write_text(WRONG)
    ran = run(tmp_path, *flags)
    assert (ran.returncode, ran.stdout) == (78, "")
    assert keys(ran.stderr) == KEYS


def test_a_warning_does_not_mix_with_the_answer(tmp_path: Path) -> None:
    """Standard output is for whoever parses it; here everybody may read the key."""
    file = tmp_path / "key.pem"
    file.write_text(pem(KEY))
    file.chmod(0o644)
    dkim = '[dkim]\ndomain = "example.org"\nselector = "mail"\nprivate_key_file = "key.pem"\n'
    (tmp_path / "config.toml").write_text(f'{dkim}[[relay]]\nname = "a"\nhost = "127.0.0.1"\n')
    ran = run(tmp_path, "--check-config", "--json")
    assert json.loads(ran.stdout) == {"ok": True, "problems": []}
    assert json.loads(ran.stderr)["event"] == "dkim.key_exposed"


def test_a_key_that_is_wrong_already_is_not_named_twice(tmp_path: Path) -> None:
    """Its default stands in its place, and what is wrong with that is nobody's mistake."""
    settings = Settings(templates=Templates(dir=str(tmp_path / "nowhere")))
    known = Problem("templates.dir", "must be text in quotes")
    with pytest.raises(ConfigError) as caught:
        parts.load(settings, {}, [known])
    assert caught.value.problems == (known,)


def test_nothing_configured_is_nothing_wrong() -> None:
    """No template, no signer, no function."""
    made_of = parts.load(Settings(), {})
    assert (dict(made_of.library.current), made_of.signer, made_of.functions) == ({}, None, {})


@pytest.mark.parametrize("kind", BROKEN)
def test_a_module_that_breaks_when_it_is_imported_is_a_problem_of_its_key(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the operator's code: a start that can't help must not be tried again, as after a bug."""
    (tmp_path / f"broken_{kind}.py").write_text(BROKEN[kind])
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        handlers.load({"report": f"broken_{kind}:build", "other": "json:dumps_nobody"})
    assert [problem.path for problem in caught.value.problems] == ['handlers."report"', 'handlers."other"']
    assert f"can't import broken_{kind}:build: " in caught.value.problems[0].message


def plain(_job: object) -> None:
    """Do nothing, at once: no function that a worker can await."""


def test_a_function_that_is_not_async_is_refused() -> None:
    """It would do its work, fail to be awaited, and do it again with each attempt."""
    with pytest.raises(ConfigError) as caught:
        handlers.load({"report": f"{__name__}:plain"})
    assert "async def" in caught.value.problems[0].message
