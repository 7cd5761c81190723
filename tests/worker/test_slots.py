"""What a process holds: leases, until when they are believed, and who may still interrupt them."""

from __future__ import annotations

from math import inf

import pytest

from daemon.core.smtp import Stage
from daemon.slots import DRAINING, LOST, Held, Lease
from tests.worker.fakes import made


def rung(lease: Lease) -> list[str]:
    """Count how often the lease's slot is told of a change."""
    calls: list[str] = []
    lease.rearm = lambda: calls.append("rearm")
    return calls


def test_an_extension_lengthens_and_never_shortens() -> None:
    """An answer that comes late was asked for early."""
    lease = Lease(made(), 100.0)
    calls = rung(lease)
    lease.extend(120.0)
    lease.extend(110.0)
    assert lease.until_mono == 120.0
    assert calls == []  # whoever set a timer looks again when it rings


def test_the_jobs_own_end_outlasts_every_extension() -> None:
    """Never sent after expires_at: a heartbeat between mark and dot doesn't lift what the mark's answer said."""
    lease = Lease(made(), 100.0)
    calls = rung(lease)
    lease.expire(105.0)
    assert lease.until_mono == 100.0
    lease.extend(500.0)
    assert lease.until_mono == 105.0
    assert calls == []
    lease.expire(90.0)
    assert calls == ["rearm"]  # earlier than the timer knows


def test_giving_up_is_told_at_once_and_the_first_reason_stays() -> None:
    """Whoever asks first has the word."""
    lease = Lease(made(), 100.0)
    calls = rung(lease)
    lease.give_up(DRAINING)
    lease.give_up(LOST)
    assert lease.given_up == DRAINING
    assert calls


@pytest.mark.parametrize("reason", [DRAINING, LOST])
def test_past_the_dot_giving_up_changes_nothing(reason: str) -> None:
    """Only the answer ends the attempt."""
    lease = Lease(made(), 100.0)
    assert not lease.past_dot
    lease.begin(inf)
    calls = rung(lease)
    lease.give_up(reason)
    assert (lease.given_up, lease.past_dot, lease.stage, calls) == (None, True, Stage.DOT, [])


def test_a_lease_begins_before_everything() -> None:
    """At the first stage, unmarked, wanted, and nobody's to interrupt."""
    lease = Lease(made(), 100.0)
    assert (lease.stage, lease.past_dot, lease.given_up, lease.recording, lease.rearm) == (Stage.BUILD, False, None, False, None)
    lease.extend(101.0)


def test_held_leases_are_told_apart_by_their_token() -> None:
    """One process may hold one job twice after a stall; dropping one leaves the other."""
    held = Held(3)
    stale, present = Lease(made(7), 1.0), Lease(made(7), 2.0)
    held.take(stale)
    held.take(present)
    assert len(held) == 2
    held.drop(stale)
    held.drop(stale)
    assert list(held) == [present]


def test_a_lease_whose_record_is_on_its_way_isnt_extended_any_more() -> None:
    """But it is still held."""
    held = Held(3)
    leases = [Lease(made(), 1.0) for _ in range(3)]
    for lease in leases:
        held.take(lease)
    leases[1].recording = True
    assert held.to_extend() == [leases[0], leases[2]]
    assert len(held) == 3


def test_leases_may_go_while_somebody_looks_at_them() -> None:
    """The drain asks each in turn, and each may leave at once."""
    held = Held(3)
    for _ in range(3):
        held.take(Lease(made(), 1.0))
    for lease in held:
        held.drop(lease)
    assert len(held) == 0
