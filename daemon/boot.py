"""Everything that must be true before the first claim, asked in order, with a sentence for whoever has to act.

An absent database is waited for (P5: an outage costs time, nothing else); a wrong one is refused at once and nothing is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import structlog

from daemon.core.errors import NO_PRIVILEGE, ConfigError, StoreRefused, StoreUnavailable
from daemon.core.retry import reconnect_s
from daemon.core.schema import disagreements, refusal, require_version
from daemon.core.settings import Problem, Settings
from daemon.ports import Ports
from daemon.store import Agreement, Server, Store

log = structlog.get_logger("mailslot.boot")


async def ready(store: Store, settings: Settings, ports: Ports, *, timeout_s: float) -> Agreement:
    """Wait for the database and check it; returns what its workers agreed on.

    `timeout_s` 0 waits for ever. Raises StoreUnavailable after it, StoreRefused for a wrong password or role, SchemaMismatch for
    another version, ConfigError for a server that can't keep the promises or settings that differ. Safe to cancel.
    """
    scope = asyncio.timeout(timeout_s or None)
    try:
        async with scope:
            server = await _answer(store, ports, settings.database.reconnect_max_s)
            _check_server(server)
            if not server.schema_exists:
                require_version(None)
            agreement = await store.agreement()
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StoreUnavailable(f"no database after {timeout_s:g} s; is [database] dsn right, and the server up?") from error
    require_version(agreement.schema_version)
    if not agreement.may_work:
        raise StoreRefused(refusal(agreement.user), NO_PRIVILEGE)
    problems = disagreements(settings.lease, asdict(agreement))
    if problems:
        raise ConfigError(problems)
    return agreement


async def _answer(store: Store, ports: Ports, reconnect_max_s: float) -> Server:
    failures = 0
    while True:
        try:
            server = await store.server()
        except StoreUnavailable as error:
            if failures == 0:
                log.warning("database.awaited", **{"error.message": str(error)})
            failures += 1
            await asyncio.sleep(reconnect_s(failures, reconnect_max_s, ports.number()))
            continue
        if not server.read_only:
            return server
        if failures == 0:
            log.warning("database.awaited", **{"error.message": "the server is read-only; waiting for the primary"})
        failures += 1
        store.expire()
        await asyncio.sleep(reconnect_s(failures, reconnect_max_s, ports.number()))


def _check_server(server: Server) -> None:
    problems = [
        Problem("database.dsn", f"the server runs with {name} = off: a crash would lose answered commits; turn it on there")
        for name, on in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes))
        if not on
    ]
    if problems:
        raise ConfigError(problems)
