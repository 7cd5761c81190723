"""Other queues beside ours: the same PostgreSQL, the same sink, the same mails, in the same run.

Each peer sends as its users write it, a connection for each mail, and with connections that it reuses; and runs a handler that
does nothing. Peers take turns within each repeat, so that what else the machine does meanwhile meets all of them. What can't be
measured is a row all the same, which says why.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.bench.bench import Bench
from tests.bench.peers.catalogue import PEERS, PICKUP, SCENES, Peer, Scene
from tests.bench.peers.environment import NotMeasuredError, environment_of
from tests.bench.peers.trial import Trial
from tests.bench.row import Figures, Row


@dataclass(slots=True)
class Contestant:
    """One peer in one scene, with one kind of handler."""

    peer: Peer
    scene: Scene
    mode: str
    how: str
    python: Path
    version: str
    repeats: list[Figures] = field(default_factory=list)
    trouble: str = ""

    async def run(self, bench: Bench) -> None:
        """Run one repeat, unless one has failed before: it would only take its time limit again."""
        if self.trouble:
            return
        bench.say(", ".join(part for part in (self.peer.title, self.scene.name, self.how) if part))
        trial = Trial(bench, self.peer, self.python, self.scene, mode=self.mode)
        try:
            self.repeats.append(await (trial.pickup() if self.scene is PICKUP else trial.throughput()))
        except (NotMeasuredError, asyncpg.PostgresError, OSError) as error:
            self.trouble = str(error) or type(error).__name__
            bench.say(f"{self.peer.title}: {self.trouble}")

    def row(self) -> Row:
        """Return what came of it."""
        if not self.repeats:
            return not_measured(self.scene, self.peer, self.trouble, self.how)
        note = self.peer.way(self.scene).words
        if self.version != platform.python_version():
            note += f", Python {self.version}"
        if self.trouble:
            note += f"; repeat {len(self.repeats) + 1} failed: {self.trouble}"
        return Row(self.scene.name, self.peer.title, self.repeats, how=self.how, note=note)


async def compare(bench: Bench) -> list[Row]:
    """Measure every peer in every scene that was asked for, and return the rows."""
    rows: list[Row] = []
    pythons: dict[str, tuple[Path, str]] = {}
    for scene in (*SCENES, PICKUP):
        contestants: list[Contestant] = []
        for peer in PEERS:
            if not (bench.wanted(scene.name) or bench.wanted(f"peer {peer.name} {scene.name}")):
                continue
            try:
                if peer.name not in pythons:
                    bench.say(f"{peer.title}: its environment")
                    pythons[peer.name] = await environment_of(peer, bench.keep / "peers")
            except NotMeasuredError as error:
                rows.append(not_measured(scene, peer, str(error)))
                continue
            contestants += [Contestant(peer, scene, mode, how, *pythons[peer.name]) for mode, how in scene.modes.items()]
        for _ in range(bench.repeats):
            for contestant in contestants:
                await contestant.run(bench)
        rows += [contestant.row() for contestant in contestants]
    return rows


def not_measured(scene: Scene, peer: Peer, reason: str, how: str = "") -> Row:
    """Return the row of a peer that couldn't be measured."""
    return Row(scene.name, peer.title, [{}], how=how, note=f"not measured: {reason}")
