"""The project's own cases, each played through the real daemon on real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.casefile import read_all
from tests.conformance.judge import Judgement

CASES = Path(__file__).parent / "cases"
IDS = [case.id for case in read_all([CASES])]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case_id", IDS)
def test_case_ends_as_expected(case_id: str, judgements: dict[str, Judgement]) -> None:
    """Outcome, recipients, attempts used up, connection, and what the relay took on are what the case says."""
    judgement = judgements[case_id]
    assert judgement.ok, f"expected {judgement.expected}, got {judgement.got}: {judgement.differs}"


def test_every_case_has_an_id_of_its_own() -> None:
    """Two cases of one id would hide one another."""
    assert len(set(IDS)) == len(IDS)
