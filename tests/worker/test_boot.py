"""What must be true before the first claim."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from daemon import boot as module
from daemon.boot import ready
from daemon.cli.exits import Exit, meaning_of
from daemon.core.errors import ConfigError, MailslotError, SchemaMismatch, StoreRefused, StoreUnavailable
from daemon.core.schema import SCHEMA_VERSION
from daemon.core.settings import Database, Settings
from daemon.store import Agreement, Server
from tests.worker.fakes import Clock, FakeLog, FakeStore, ports, running

SERVER = Server(fsync=True, full_page_writes=True, read_only=False, schema_exists=True)
AGREED = Agreement(SCHEMA_VERSION, UUID(int=1), 30.0, 660.0, 1_200.0, 3, 2, "ann", may_work=True)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Keep what is logged."""
    kept = FakeLog()
    monkeypatch.setattr(module, "log", kept)
    return kept


async def asked(store: FakeStore, *, timeout_s: float = 0.0) -> Agreement | MailslotError:
    """Boot, and return what came of it."""
    settings = Settings(database=Database(reconnect_max_s=0.001))
    try:
        return await ready(store, settings, ports(Clock()), timeout_s=timeout_s)  # type: ignore[arg-type]
    except MailslotError as error:
        return error


async def booted(server: Server = SERVER, agreement: Agreement = AGREED) -> Agreement | MailslotError:
    """Boot against a server that answers."""
    store = FakeStore()
    async with running(asked(store)) as (boot,):
        (await store.next("server")).answer(server)
        if server.schema_exists and server.fsync and server.full_page_writes:
            (await store.next("agreement")).answer(agreement)
        return await boot  # type: ignore[no-any-return]


async def test_a_database_that_is_there_and_right_is_accepted() -> None:
    """And what its workers agreed on is returned."""
    assert await booted() == AGREED


async def test_an_absent_database_is_waited_for_and_said_once(log: FakeLog) -> None:
    """However often it doesn't answer."""
    store = FakeStore()
    async with running(asked(store)) as (boot,):
        for _ in range(4):
            (await store.next("server")).fail(StoreUnavailable("refused"))
        (await store.next("server")).answer(SERVER)
        (await store.next("agreement")).answer(AGREED)
        assert await boot == AGREED
    assert log.events == [("warning", "database.awaited")]


async def test_a_standby_is_left_and_the_primary_waited_for(log: FakeLog) -> None:
    """Each try on new connections: another server may be the primary by now."""
    store = FakeStore()
    async with running(asked(store)) as (boot,):
        for _ in range(3):
            (await store.next("server")).answer(replace(SERVER, read_only=True))
        (await store.next("server")).answer(SERVER)
        (await store.next("agreement")).answer(AGREED)
        assert await boot == AGREED
    assert store.notes == ["expire"] * 3
    assert log.events == [("warning", "database.awaited")]


async def test_waiting_has_an_end_if_one_is_set() -> None:
    """The sentence names the key and the time."""
    store = FakeStore()
    error = await asked(store, timeout_s=0.01)
    assert isinstance(error, StoreUnavailable)
    assert "0.01 s" in str(error)
    assert "dsn" in str(error)


async def test_a_wrong_password_is_no_outage() -> None:
    """Waiting can't help."""
    store = FakeStore()
    async with running(asked(store)) as (boot,):
        (await store.next("server")).fail(StoreRefused("password", "28P01"))
        assert isinstance(await boot, StoreRefused)


@pytest.mark.parametrize(
    ("server", "names"),
    [
        (replace(SERVER, fsync=False), ["fsync"]),
        (replace(SERVER, full_page_writes=False), ["full_page_writes"]),
        (replace(SERVER, fsync=False, full_page_writes=False), ["fsync", "full_page_writes"]),
    ],
)
async def test_a_server_that_would_lose_answered_commits_is_refused(server: Server, names: list[str]) -> None:
    """All that is wrong at once."""
    error = await booted(server)
    assert isinstance(error, ConfigError)
    assert [name in problem.message for name, problem in zip(names, error.problems, strict=True)] == [True] * len(names)


@pytest.mark.parametrize(
    ("server", "agreement", "words"),
    [
        (replace(SERVER, schema_exists=False), AGREED, "db migrate"),
        (SERVER, replace(AGREED, schema_version=SCHEMA_VERSION - 1), "db migrate"),
        (SERVER, replace(AGREED, schema_version=SCHEMA_VERSION + 1), "newer"),
    ],
)
async def test_another_schema_is_refused_with_a_sentence_that_says_what_to_do(
    server: Server, agreement: Agreement, words: str
) -> None:
    """Missing, older, newer."""
    error = await booted(server, agreement)
    assert isinstance(error, SchemaMismatch)
    assert words in str(error)


async def test_a_user_who_may_not_work_is_refused_with_what_to_grant() -> None:
    """A monitor may read all that is asked before, and its heartbeat would be refused for ever."""
    error = await booted(SERVER, replace(AGREED, may_work=False))
    assert isinstance(error, StoreRefused)
    assert meaning_of(error) == Exit.NOT_PERMITTED
    assert 'GRANT mailslot_worker TO "ann"' in str(error)


@pytest.mark.parametrize(
    "changes",
    [{"lease_s": 31.0}, {"in_doubt_delay_s": 1.0}, {"hard_cap_s": 5.0}, {"max_crashes": 9}, {"max_doubts": 0}],
)
async def test_settings_on_which_the_workers_disagree_are_refused(changes: dict[str, float]) -> None:
    """Each of them; leases of different lengths would take over from the living."""
    error = await booted(SERVER, replace(AGREED, **changes))  # type: ignore[arg-type]
    assert isinstance(error, ConfigError)
    assert len(error.problems) == 1
