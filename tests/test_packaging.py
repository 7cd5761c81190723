"""The wheel: what is inside, and that it works where nothing else of the repository is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with what is installed here, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("mailslot-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own, and return its folder of programs.

    Its dependencies are those of this environment: their folder is named in a .pth file, which comes last on the path and whose
    own .pth files (this repository's, installed editable) aren't followed.
    """
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps", "--quiet", str(wheel)]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    return folder / "bin"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder to stand in; what a demo has put elsewhere on its behalf is removed."""
    folder = tmp_path / "empty"
    folder.mkdir()
    yield folder
    data = folder / ".mailslot" / "postgres"
    if data.is_symlink() and data.resolve().is_relative_to("/var/tmp"):  # noqa: S108  where the demo's server keeps data for root
        shutil.rmtree(data.resolve())


def run(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the installed environment in a folder, with as little around it as possible."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PG_BIN", "SUDO_USER") if name in os.environ}
    return subprocess.run([program, *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_file_that_is_read_while_running(wheel: Path) -> None:
    """The schema, the configuration and each statement, as they are here; and nothing of the tests."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        statements = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daemon").rglob("*.sql")}
        assert "daemon/sql/claim.sql" in statements
        assert held >= statements | {"daemon/schema.sql", "daemon/config.toml"}
        assert not {name for name in held if name.split("/")[0] != "daemon" and ".dist-info/" not in name}
        for name in ("schema.sql", "config.toml"):
            assert archive.read(f"daemon/{name}") == (ROOT / name).read_bytes()


def test_an_installed_wheel_finds_its_own_files(installed: Path, empty: Path) -> None:
    """Those inside the package, and none of this repository."""
    script = "import daemon; from daemon import resources as r; print(daemon.__file__); print(r.text('schema.sql'), end='')"
    found = run(installed / "python", "-I", "-c", script, folder=empty)
    assert found.returncode == 0, found.stderr
    place, _, schema = found.stdout.partition("\n")
    assert Path(place).is_relative_to(installed.parent)
    assert schema == (ROOT / "schema.sql").read_text("utf-8")


def test_every_module_of_an_installed_wheel_can_be_imported(installed: Path, empty: Path) -> None:
    """With a warning as an error, from an empty folder."""
    script = (
        "import pkgutil, daemon\n"
        "for module in pkgutil.walk_packages(daemon.__path__, 'daemon.'):\n"
        "    if module.name not in {'daemon.__main__', 'daemon.dev.keeper'}:\n"
        "        __import__(module.name)\n"
    )
    imported = run(installed / "python", "-I", "-W", "error", "-c", script, folder=empty)
    assert (imported.returncode, imported.stderr) == (0, "")


def test_the_installed_program_explains_itself(installed: Path, empty: Path) -> None:
    """`mailslot --help` from an empty folder."""
    helped = run(installed / "mailslot", "--help", folder=empty)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "mailslot" in helped.stdout


def test_the_installed_program_checks_the_shipped_configuration(installed: Path, empty: Path) -> None:
    """config.toml can be started with as it is; a mistake in it ends with 78."""
    shutil.copy(ROOT / "config.toml", empty)
    checked = run(installed / "mailslot", "run", "--config", "config.toml", "--check-config", folder=empty)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with (empty / "config.toml").open("a") as file:
        file.write("colour = 'red'\n")
    refused = run(installed / "mailslot", "run", "--config", "config.toml", "--check-config", folder=empty)
    assert refused.returncode == 78
    assert "log.colour" in refused.stdout + refused.stderr


def test_the_installed_program_shows_itself_at_work(installed: Path, empty: Path) -> None:
    """`mailslot dev --once` from an empty folder: a database, an inbox, a worker, one mail, and then it ends."""
    shown = run(installed / "mailslot", "dev", "--once", folder=empty)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert list(empty.rglob("*.eml")), shown.stdout
