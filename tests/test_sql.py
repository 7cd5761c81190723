"""Each statement of `sql/`: it explains itself, PostgreSQL takes it, and it says what it returns."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import takewhile
from pathlib import Path

import asyncpg
import pytest

from daemon.core.job import Job
from daemon.database import statement
from daemon.store import Agreement, Server, Swept, Taken
from tests.support.database import Databases

FOLDER = Path(__file__).parents[1] / "daemon" / "sql"
NAMES = sorted(path.stem for path in FOLDER.glob("*.sql"))
RESULTS = {"agreement": Agreement, "claim": Job, "server": Server, "sweep": Swept, "take": Taken}
HELD = ("extend", "mark", "record", "release", "payload", "abandon")
TYPES = {"bigint": "int8", "integer": "int4", "smallint": "int2", "boolean": "bool"}
PARAMETER = re.compile(r"\$(\d+)")
TYPED = re.compile(r"((?:\$\d+, )*\$\d+) (bigint|integer|smallint|boolean|float8|text|uuid|timestamptz|jsonb)(\[\])?")
RESULT = re.compile(r"Result:(?: one row| a row)? \(([^()]*)\)")

every = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
async def connection(databases: Databases) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection to a database with the schema."""
    async with databases.fresh() as database:
        yield await database.connect()


def header(name: str) -> str:
    """Return the comment at the top of a statement, as one line."""
    lines = takewhile(lambda line: line.startswith("--"), statement(name).splitlines())
    return " ".join(line.removeprefix("--").strip() for line in lines)


def body(name: str) -> str:
    """Return the statement without its comments."""
    return "\n".join(line.partition("--")[0] for line in statement(name).splitlines())


def documented(name: str) -> dict[int, str]:
    """Return the types that a header gives its parameters, as PostgreSQL calls them."""
    found = {}
    for numbers, kind, array in TYPED.findall(header(name)):
        for number in PARAMETER.findall(numbers):
            found[int(number)] = TYPES.get(kind, kind) + array
    return found


@every
def test_a_statement_says_what_it_does_what_it_locks_and_what_it_returns(name: str) -> None:
    """In a header: a sentence, its locks, its result."""
    text = header(name)
    assert re.match(r"[A-Z][^.]*[.:]", text), "a sentence first"
    assert re.search(r"[Ll]ock", text) or "No parameters" in text
    assert "Result" in text


@every
def test_a_file_holds_one_statement(name: str) -> None:
    """It is prepared as a whole, so nothing can be appended to it."""
    assert ";" not in body(name)


@every
async def test_a_statement_is_one_that_the_server_takes(connection: asyncpg.Connection, name: str) -> None:
    """Against schema.sql as it is; its columns have names, each once."""
    prepared = await connection.prepare(statement(name))
    columns = [attribute.name for attribute in prepared.get_attributes()]
    assert len(columns) == len(set(columns)) or name == "session", "nobody reads what was set"
    assert "?column?" not in columns


@every
async def test_every_parameter_is_explained(connection: asyncpg.Connection, name: str) -> None:
    """From $1 on without a gap, in the header as in the statement, and where a type is given it is the server's."""
    parameters = (await connection.prepare(statement(name))).get_parameters()
    numbers = {int(number) for number in PARAMETER.findall(body(name))}
    assert numbers == set(range(1, len(parameters) + 1))
    explained = {int(number) for number in PARAMETER.findall(header(name))}
    for first, last in re.findall(r"\$(\d+) to \$(\d+)", header(name)):
        explained |= set(range(int(first), int(last) + 1))
    assert explained == numbers
    kinds = {n: p.name if p.name.endswith("[]") or p.kind != "array" else p.name + "[]" for n, p in enumerate(parameters, 1)}
    assert {n: kinds[n] for n in documented(name)} == documented(name)


@every
async def test_a_result_has_the_columns_that_the_header_names(connection: asyncpg.Connection, name: str) -> None:
    """Where it names them."""
    named = RESULT.search(header(name))
    if named is None:
        return
    attributes = (await connection.prepare(statement(name))).get_attributes()
    said = [re.split(r"[ :]", column.strip())[0] for column in named[1].split(",")]
    assert set(said) == {attribute.name for attribute in attributes}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_row_fits_the_value_that_is_made_of_it(connection: asyncpg.Connection, name: str) -> None:
    """Column by column."""
    attributes = (await connection.prepare(statement(name))).get_attributes()
    assert [attribute.name for attribute in attributes] == list(RESULTS[name].__annotations__)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if re.search(r"\$\d+ ?(?:uuid|, \$\d+ uuid)|--  +id, token", header(name))]
)
def test_a_statement_that_is_given_a_token_names_its_fence(name: str) -> None:
    """And uses it."""
    assert "ence" in header(name)
    assert "lease_token" in body(name)


@pytest.mark.parametrize("name", HELD)
def test_a_holders_statement_is_fenced_by_token_and_unfinished(name: str) -> None:
    """Wherever it writes or reads for the holder; ids alone are never enough."""
    text = body(name)
    assert "lease_token" in text
    assert "outcome IS NULL" in text or "completed_at IS NULL" in text
    for update in re.findall(r"UPDATE mailslot\.jobs.*?RETURNING", text, re.DOTALL):
        where = update.rpartition("WHERE")[2]
        assert "lease_token" in where
        assert re.search(r"outcome IS NULL|completed_at IS NULL", where)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "UPDATE mailslot.jobs" in statement(name) and not name.startswith("job_")]
)
def test_all_but_the_claim_commit_durably(name: str) -> None:
    """Whatever the server's default: a mark or an outcome that is answered is on disk."""
    text = body(name)
    assert ("mailslot.commit_durably()" in text) is (name != "claim")
    assert ("durable.yes" in text) is (name != "claim"), "a CTE that nobody reads isn't run"
