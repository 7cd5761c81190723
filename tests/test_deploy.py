"""What is shipped for operators, checked by the programs that will read it.

systemd-analyze must be there: without it these tests fail, for a unit that nobody checked is worth nothing. rsyslogd is asked
where it is installed; `.ci/run` installs both.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from daemon.core.settings import Worker

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PROGRAM = "/opt/mailslot/bin/mailslot"
UNITS = {"mailslot.service": "mailslot.service", "mailslot@.service": "mailslot@a.service"}
"""Each unit, and the name under which it is started."""
EXPOSURE = 11
"""Ten times the highest exposure that is accepted."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze, which needs no running systemd for what is asked here."""
    program = shutil.which("systemd-analyze")
    assert program is not None, "systemd-analyze is missing: apt-get install systemd"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def installed(name: str, folder: Path, **replaced: str) -> Path:
    """Write a unit as it would be installed, with a program that exists, and with some settings replaced."""
    text = (DEPLOY / name).read_text().replace(PROGRAM, shutil.which("true") or "")
    for setting, value in replaced.items():
        line = next(line for line in text.splitlines() if line.startswith(f"{setting}="))
        text = text.replace(line, f"{setting}={value}" if value else "")
    path = folder / UNITS[name]
    path.write_text(text)
    return path


def settings_of(name: str) -> dict[str, list[str]]:
    """Return a unit's settings; one that is written several times has several values."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_systemd_has_nothing_to_say_about_a_unit(name: str, tmp_path: Path) -> None:
    """Exit code 0 isn't enough: a setting that systemd ignores is only written to standard error."""
    checked = analyze("verify", "--man=no", str(installed(name, tmp_path)))
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_setting_that_systemd_ignores_is_noticed(tmp_path: Path) -> None:
    """The check above goes red for what Debian 12 doesn't know."""
    checked = analyze("verify", "--man=no", str(installed("mailslot.service", tmp_path, Type="notify-reload")))
    assert checked.stderr != ""


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_exposes_little(name: str, tmp_path: Path) -> None:
    """As systemd rates it, where 0 is nothing and 10 is everything."""
    unit = installed(name, tmp_path)
    checked = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(unit))
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("setting", ["SystemCallFilter", "CapabilityBoundingSet", "RestrictAddressFamilies", "PrivateUsers"])
def test_a_protection_that_is_taken_away_is_noticed(setting: str, tmp_path: Path) -> None:
    """The limit leaves no room for one less."""
    weakened = installed("mailslot.service", tmp_path)
    lines = [line for line in weakened.read_text().splitlines() if not line.startswith(f"{setting}=")]
    weakened.write_text("\n".join(lines))
    assert analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(weakened)).returncode == 1


@pytest.mark.parametrize("name", UNITS)
def test_systemd_waits_longer_than_a_drain_may_take(name: str) -> None:
    """Else a mail whose answer is on its way is killed into doubt."""
    worker = Worker()
    (limit,) = settings_of(name)["TimeoutStopSec"]
    assert int(limit) > worker.drain_timeout_s + worker.reply_grace_s


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_says_what_the_worker_counts_on(name: str) -> None:
    """Its notifications, its exit codes, its reload, its state directory, its secrets, its last lines."""
    found = settings_of(name)
    expected = {
        "Type": ["notify"],
        "NotifyAccess": ["main"],
        "WatchdogSec": ["30"],
        "RestartPreventExitStatus": ["64 77 78"],
        "Restart": ["on-failure"],
        "KillMode": ["mixed"],
        "DynamicUser": ["yes"],
        "LogRateLimitIntervalSec": ["0"],
        "StateDirectory": ["mailslot/%i" if "@" in name else "mailslot"],
    }
    assert {key: found[key] for key in expected} == expected
    assert [credential.partition(":")[0] for credential in found["LoadCredential"]] == [
        "db_password",
        "smtp_password",
        "dkim_private_key",
    ]
    assert found["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    configuration = "/etc/mailslot/%i.toml" if "@" in name else "/etc/mailslot/config.toml"
    assert found["ExecStart"] == [f"{PROGRAM} run --config {configuration}"]


def test_both_units_differ_only_in_what_belongs_to_an_instance() -> None:
    """A protection that is added to one is added to the other."""
    one, template = settings_of("mailslot.service"), settings_of("mailslot@.service")
    assert {key for key in one | template if one.get(key) != template.get(key)} == {
        "Description",
        "ExecStart",
        "LoadCredential",
        "StateDirectory",
        "RuntimeDirectory",
    }


def test_rsyslog_understands_its_configuration(tmp_path: Path) -> None:
    """Asked of rsyslogd itself; where it isn't installed, at least the line that matters most is there."""
    text = (DEPLOY / "rsyslog.conf").read_text()
    assert 'type="mmjsonparse" cookie=""' in text
    if (program := shutil.which("rsyslogd", path="/usr/sbin:/usr/bin")) is None:
        return
    whole = tmp_path / "rsyslog.conf"
    whole.write_text(f'module(load="imuxsock")\nglobal(workDirectory="{tmp_path}")\n{text}')
    checked = subprocess.run([program, "-N1", "-f", str(whole)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    complaints = [line for line in checked.stderr.splitlines() if "config validation run" not in line]
    assert complaints == []


def test_the_collectors_pipeline_is_made_of_what_is_declared() -> None:
    """Receivers, processors and exporters that are named exist, and each that exists is used."""
    collector = yaml.safe_load((DEPLOY / "otel-collector.yaml").read_text())
    (pipeline,) = collector["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert sorted(pipeline[kind]) == sorted(collector[kind])
    identifiers = collector["receivers"]["journald"]["identifiers"]
    for name in UNITS:
        assert settings_of(name)["SyslogIdentifier"] == identifiers
    assert json.dumps(collector)
