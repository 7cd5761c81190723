"""`run --once`: what has to be done before it ends, and what it doesn't wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.support.database import Database
from tests.support.relay import ScriptedRelay
from tests.worker.test_rates import enqueue
from tests.worker.test_relays import GREETS, at

MODULE = '''
"""A function of an operator; and little patience with relays, so that no test has to wait for half a minute."""

import daemon.watch

daemon.watch.ONCE_PATIENCE_S = 1.0


async def done(job):
    return None
'''


@pytest.fixture
def functions(tmp_path: Path) -> dict[str, str]:
    """Return the section that names the function, whose module lies where the daemon is started."""
    (tmp_path / "impatient.py").write_text(MODULE)
    return {"report.build": "impatient:done"}


@pytest.mark.parametrize("relays", [0, 1])
async def test_a_worker_without_a_relay_for_its_queue_runs_its_functions_and_ends(
    database: Database, start_daemon: StartDaemon, functions: dict[str, str], relays: int
) -> None:
    """Exit 0, and mail is left to other workers: none at all here, or one for another queue."""
    await enqueue(database, kind="report.build")
    (mail,) = await enqueue(database)
    elsewhere = [{"name": "news", "port": 25, "queues": ["news"]}][:relays]
    daemon = await start_daemon(database, 0, "--once", relay=elsewhere, handlers=functions)
    assert await daemon.stopped() == 0
    rows = await database.fetch("SELECT id, outcome FROM mailslot.jobs ORDER BY id")
    assert [row["outcome"] for row in rows] == ["sent", None]
    assert rows[1]["id"] == mail


@pytest.mark.parametrize(("asks", "code"), [("away", 69), (None, 0)])
async def test_mail_that_asks_for_a_relay_that_is_away_is_not_done(
    database: Database, start_daemon: StartDaemon, functions: dict[str, str], asks: str | None, code: int
) -> None:
    """Exit 69 after the patience; where nobody asks for the one that is away, the other has done all there was."""
    async with ScriptedRelay(GREETS) as away, ScriptedRelay() as second:
        await enqueue(database, 2)
        if asks:
            await enqueue(database, relay=asks)
        relays = [at(away, "away"), at(second, "second")]
        daemon = await start_daemon(database, 0, "--once", relay=relays, handlers=functions)
        assert await daemon.stopped() == code
        assert len(second.messages) == 2


async def test_mail_of_a_queue_whose_relays_are_away_is_not_done(
    database: Database, start_daemon: StartDaemon, functions: dict[str, str]
) -> None:
    """Exit 69 after the patience, with the job as it was."""
    async with ScriptedRelay(GREETS) as away:
        await enqueue(database)
        daemon = await start_daemon(database, 0, "--once", relay=[at(away, "away")], handlers=functions)
        assert await daemon.stopped() == 69
        assert await database.fetchval("SELECT attempt FROM mailslot.jobs") == 0
