"""Plays the project's cases, all that the chosen tests need, at the same time and once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.casefile import Case, read_all
from tests.conformance.judge import Judgement
from tests.conformance.result import Result
from tests.conformance.suite import judge_all
from tests.conformance.test_cases import CASES
from tests.support.database import Databases

Seen = Callable[[str], Result]


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "plays(*ids): the test looks at what was seen of these cases")


def _needed(request: pytest.FixtureRequest) -> set[str]:
    """Return the ids of the cases that the chosen tests are about: parameters, and what `plays` names."""
    needed: set[str] = set()
    for item in request.session.items:
        if isinstance(item, pytest.Function):
            needed.update(str(value) for value in (getattr(item, "callspec", None) and item.callspec.params.values()) or ())
            needed.update(str(name) for mark in item.iter_markers("plays") for name in mark.args)
    return needed


@pytest.fixture(scope="session")
async def judgements(request: pytest.FixtureRequest, databases: Databases) -> dict[str, Judgement]:
    """Return what came of every case that a chosen test needs."""
    needed = _needed(request)
    cases: list[Case] = [case for case in read_all([CASES]) if case.id in needed]
    return {judgement.case.id: judgement for judgement in await judge_all(cases, databases)}


@pytest.fixture
def seen(judgements: dict[str, Judgement]) -> Seen:
    """Return a function from a case's id to what was seen of it."""

    def of(name: str) -> Result:
        judgement = judgements[name]
        assert judgement.result is not None, judgement.differs
        return judgement.result

    return of
