"""What is said about the other queues: exact versions, and settings that they accept. How fast they are is no test."""

from __future__ import annotations

import pytest

from tests.bench.peers.catalogue import PEERS, PICKUP, SCENES, Peer, pgqueuer, procrastinate, title_of
from tests.bench.peers.environment import clean, last_line

ALL = (*SCENES, PICKUP)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_each_package_of_a_peer_has_an_exact_version(peer: Peer) -> None:
    """Else the same command measures something else next month."""
    lines = peer.requirements.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#") and line.count("==") != 1] == []
    assert peer.title.startswith(f"{peer.name} ")
    assert {"aiosmtplib", "uvloop"} <= {line.partition("==")[0] for line in lines}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_each_peer_has_a_script(peer: Peer) -> None:
    """It is found by the peer's name, at run time."""
    assert (peer.requirements.parents[1] / "scripts" / f"peer_{peer.name}.py").is_file()


def test_title_takes_the_version_from_the_requirements() -> None:
    """Not that of a package whose name merely begins alike."""
    assert title_of("oban", "# oban==9\noban-extras==2.0\noban==0.7.0\n") == "oban 0.7.0"


def test_pgqueuer_accepts_its_batches() -> None:
    """It refuses to start when a batch is more than half of its tasks."""
    limited = [pgqueuer(scene).settings for scene in ALL if scene.concurrency is not None]
    assert [settings for settings in limited if not 0 < settings["batch"] * 2 <= settings["limit"]] == []


def test_procrastinate_has_all_the_slots_that_a_scene_allows() -> None:
    """Several workers share them; none may get lost in the division."""
    ways = [(scene, procrastinate(scene).settings) for scene in ALL if scene.concurrency is not None]
    assert [scene for scene, settings in ways if settings["workers"] * settings["slots"] < (scene.concurrency or 0)] == []


def test_the_reason_is_the_last_line_that_says_something() -> None:
    """What pip adds about itself is no reason."""
    assert last_line("Traceback:\n  File x\nOSError: no network\n\n[notice] a new release of pip\n") == "OSError: no network"
    assert last_line("WARNING: retrying\n") == ""


def test_a_peer_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its Python imports our packages, or its driver goes to another server."""
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("PGHOST", "elsewhere")
    assert not {"PYTHONPATH", "PGHOST"} & clean().keys()
    assert "PATH" in clean()
