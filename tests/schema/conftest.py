"""Connections under the roles of schema.sql."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from tests.support.database import Database

RoleConnection = Callable[[str], Awaitable[asyncpg.Connection]]


@pytest.fixture
def connect_as(database: Database) -> RoleConnection:
    """Return a function that opens a connection whose user is a role of the schema and nothing else."""

    async def connect(role: str) -> asyncpg.Connection:
        return await database.connect(server_settings={"role": role})

    return connect
