"""Fixtures for talking to scripted relays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority whose certificates the tests' relays show."""
    return Authority.made(Path(tmp_path_factory.mktemp("certificates")))
