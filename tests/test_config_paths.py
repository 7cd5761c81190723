"""Paths in the configuration: relative to the file in which they stand, wherever the daemon was started."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import config
from daemon.core.errors import ConfigError


def test_a_relative_path_is_relative_to_its_file(tmp_path: Path) -> None:
    """An absolute one stays, and so does none."""
    file = tmp_path / "config.toml"
    file.write_text(
        "[templates]\ndir = 'templates'\n[dkim]\nprivate_key_file = '/etc/key.pem'\n"
        "[[relay]]\nname = 'a'\nhost = 'a'\nca_file = '/etc/ca.pem'\n[[relay]]\nname = 'b'\nhost = 'b'\nca_file = 'ca.pem'\n"
    )
    settings = config.load(file, {}, {})
    assert [relay.ca_file for relay in settings.relay] == ["/etc/ca.pem", str(tmp_path / "ca.pem")]
    assert settings.templates.dir == str(tmp_path / "templates")
    assert settings.dkim.private_key_file == "/etc/key.pem"
    file.write_text("[templates]\ndir = ''\n")
    assert config.load(file, {}, {}).templates.dir == ""


def test_a_path_in_a_variable_is_relative_to_where_the_daemon_was_started(tmp_path: Path) -> None:
    """As paths on a command line are, whatever the file says."""
    file = tmp_path / "config.toml"
    file.write_text("[templates]\ndir = 'templates'\n")
    assert config.load(file, {"MAILSLOT_TEMPLATES__DIR": "here"}, {}).templates.dir == "here"


@pytest.mark.parametrize("value", ["1", "[]", "true"])
def test_a_path_that_is_no_text_is_a_problem(tmp_path: Path, value: str) -> None:
    """And nothing worse."""
    file = tmp_path / "config.toml"
    file.write_text(f"[templates]\ndir = {value}\n")
    with pytest.raises(ConfigError, match=r"templates\.dir: must be text in quotes"):
        config.load(file, {}, {})
