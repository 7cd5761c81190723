"""Files that travel with the program, found in a checkout; test_packaging finds them in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import resources

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "path"), [("schema.sql", "schema.sql"), ("config.toml", "config.toml"), ("sql/claim.sql", "daemon/sql/claim.sql")]
)
def test_a_checkouts_files_are_found(name: str, path: str) -> None:
    """At the top of the repository, or inside the package."""
    assert resources.text(name) == (ROOT / path).read_text("utf-8")


def test_a_file_that_isnt_there_is_said_so() -> None:
    """A misspelt name is a bug, and isn't answered with nothing."""
    with pytest.raises(FileNotFoundError):
        resources.text("sql/no_such_statement.sql")


def test_steps_come_in_the_order_of_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files in their folder aren't steps."""
    folder = tmp_path / "sql" / "steps"
    folder.mkdir(parents=True)
    for name in ("0010_ten.sql", "0002_two_things.sql", "README.md", "3_three.sql", "0004_Four.sql"):
        (folder / name).write_text(f"-- {name}")
    monkeypatch.setattr(resources, "files", lambda _package: tmp_path)
    assert resources.steps() == [(2, "two_things", "-- 0002_two_things.sql"), (10, "ten", "-- 0010_ten.sql")]


def test_without_a_folder_of_steps_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first version has only schema.sql."""
    monkeypatch.setattr(resources, "files", lambda _package: tmp_path)
    assert resources.steps() == []
