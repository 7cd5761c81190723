"""The recorder: an outcome is written until it is answered, and one that can't be written stops no other."""

from __future__ import annotations

import pytest

from daemon import recorder as module
from daemon.batch import LARGEST, Turn
from daemon.core.errors import StoreRefused, StoreUnavailable
from daemon.core.outcome import Conclusion, Record, Release
from daemon.recorder import UNANSWERED_S, Recorder
from daemon.store import Ending, Written
from tests.worker.fakes import Clock, FakeLog, FakeStore, made, ports, running, turns

SENT = Record("sent", "sent", reason="accepted", relay="r1", reply="250 ok", recipients='{"a": {}}', accepted=("a",))
LATER = Record("later", None, 60.0, reason="deferred")
BACK = Release("draining", 1.0, "r1", "451 busy")
DONE = Written("done", "sent")
READY = Written("done", None)


class Bench:
    """A recorder between a test and its store."""

    def __init__(self, log: FakeLog) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.log = log
        self.recorder = Recorder(self.store, ports(self.clock), Turn(), reconnect_max_s=0.001)  # type: ignore[arg-type]


def ending(conclusion: Conclusion = SENT) -> Ending:
    """Return a conclusion about a job of its own."""
    return Ending(made(), conclusion)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a recorder that logs into a list."""
    log = FakeLog()
    monkeypatch.setattr(module, "log", log)
    return Bench(log)


async def test_conclusions_that_are_ready_together_share_their_statements(bench: Bench) -> None:
    """Records in one, releases in another, and each caller gets the answer about its own job."""
    endings = [ending(SENT), ending(BACK), ending(LATER), ending(BACK)]
    async with running(*(bench.recorder.write(one) for one in endings), bench.recorder.run()) as tasks:
        records = await bench.store.next("record")
        assert records.arguments == ([endings[0], endings[2]],)
        records.answer([DONE, READY])
        releases = await bench.store.next("release")
        assert releases.arguments == ([endings[1], endings[3]],)
        releases.answer([READY, Written("lost", None)])
        assert [await task for task in tasks[:4]] == [DONE, READY, READY, Written("lost", None)]


async def test_a_write_without_an_answer_is_repeated_until_there_is_one(bench: Bench) -> None:
    """The same conclusions under the same tokens, however often; one line says that it began and one that it is over."""
    endings = [ending(), ending(BACK)]
    async with running(*(bench.recorder.write(one) for one in endings), bench.recorder.run()) as tasks:
        for _ in range(3):
            question = await bench.store.next("record")
            assert question.arguments == ([endings[0]],)
            question.fail(StoreUnavailable("away"))
            await turns()
            assert bench.recorder.sick
        (await bench.store.next("record")).answer([DONE])
        (await bench.store.next("release")).fail(StoreUnavailable("away again"))
        (await bench.store.next("record")).answer([DONE])
        (await bench.store.next("release")).answer([READY])
        assert [await task for task in tasks[:2]] == [DONE, READY]
    assert not bench.recorder.sick
    assert bench.log.events == [("warning", "outcome.unrecorded"), ("info", "outcome.recorded_again")]


async def test_those_who_come_during_an_outage_are_written_after_it(bench: Bench) -> None:
    """First those who waited longest."""
    first, second = ending(), ending()
    async with running(bench.recorder.run(), bench.recorder.write(first)) as (_, waits):
        question = await bench.store.next("record")
        async with running(bench.recorder.write(second)) as (later,):
            question.fail(StoreUnavailable("away"))
            question = await bench.store.next("record")
            assert question.arguments == ([first, second],)
            question.answer([DONE, DONE])
            assert [await waits, await later] == [DONE, DONE]


async def test_a_record_that_isnt_answered_for_two_seconds_counts_as_failing(bench: Bench) -> None:
    """No new dot is written meanwhile: each would be one more doubt if we died now."""
    async with running(bench.recorder.run(), bench.recorder.write(ending())) as (_, one):
        question = await bench.store.next("record")
        sick = [bench.recorder.sick]
        for seconds in (UNANSWERED_S, 0.001):
            bench.clock.pass_s(seconds)
            sick.append(bench.recorder.sick)
        question.answer([DONE])
        await one
        assert [*sick, bench.recorder.sick] == [False, False, True, False]


async def test_a_busy_row_is_asked_for_again_and_holds_up_nobody(bench: Bench) -> None:
    """Somebody's open transaction has it; that isn't an outage."""
    busy, free = ending(LATER), ending()
    async with running(bench.recorder.write(busy), bench.recorder.write(free), bench.recorder.run()) as (waits, done, _):
        (await bench.store.next("record")).answer([Written("busy", None), DONE])
        assert await done == DONE
        assert not bench.recorder.sick
        assert not waits.done()
        again = await bench.store.next("record")
        assert again.arguments == ([busy],)
        again.answer([READY])
        assert await waits == READY
    assert bench.log.events == []


async def test_a_refused_batch_is_split_and_the_refused_one_is_written_without_its_texts(bench: Bench) -> None:
    """What a relay wrote may be what the database won't store; the outcome itself is stored."""
    endings = [ending(), ending(), ending()]
    async with running(*(bench.recorder.write(one) for one in endings), bench.recorder.run()) as tasks:
        (await bench.store.next("record")).fail(StoreRefused("a NUL", "22021"))
        for one in endings:
            question = await bench.store.next("record")
            assert question.arguments == ([one],)
            if one is not endings[1]:
                question.answer([DONE])
                continue
            question.fail(StoreRefused("a NUL", "22021"))
            bare = await bench.store.next("record")
            ((found,),) = bare.arguments
            assert found.job == one.job
            expected = Record("sent", "sent", reason="unstorable", recipients='{"a": {}}', accepted=("a",))
            assert found.conclusion == expected
            bare.answer([DONE])
        assert [await task for task in tasks[:3]] == [DONE] * 3
    assert bench.log.events == [("error", "outcome.refused")]


async def test_a_refused_release_is_written_without_its_texts(bench: Bench) -> None:
    """The job must go back all the same."""
    one = ending(BACK)
    async with running(bench.recorder.write(one), bench.recorder.run()) as (waits, _):
        (await bench.store.next("release")).fail(StoreRefused("a NUL", "22021"))
        bare = await bench.store.next("release")
        assert bare.arguments == ([Ending(one.job, Release("unstorable", 1.0))],)
        bare.answer([READY])
        assert await waits == READY


@pytest.mark.parametrize("conclusion", [SENT, BACK])
async def test_what_is_refused_even_bare_is_said_aloud_and_frees_its_slot(bench: Bench, conclusion: Conclusion) -> None:
    """The row goes the way of a lost worker; nobody else is held up."""
    name = "record" if conclusion is SENT else "release"
    async with running(bench.recorder.write(ending(conclusion)), bench.recorder.run()) as (waits, _):
        (await bench.store.next(name)).fail(StoreRefused("no", "23514"))
        (await bench.store.next(name)).fail(StoreRefused("no", "23514"))
        assert await waits == Written("lost", None)
        async with running(bench.recorder.write(ending())) as (next_,):
            (await bench.store.next("record")).answer([DONE])
            assert await next_ == DONE
    assert bench.log.events == [("error", "outcome.refused"), ("error", "outcome.unrecordable")]
    assert not bench.recorder.sick


async def test_an_outage_in_the_middle_of_a_split_repeats_the_whole_batch(bench: Bench) -> None:
    """What was written already answers that it was."""
    endings = [ending(), ending()]
    async with running(*(bench.recorder.write(one) for one in endings), bench.recorder.run()) as tasks:
        (await bench.store.next("record")).fail(StoreRefused("no", "22021"))
        (await bench.store.next("record")).answer([DONE])
        (await bench.store.next("record")).fail(StoreUnavailable("away"))
        question = await bench.store.next("record")
        assert question.arguments == (endings,)
        question.answer([DONE, DONE])
        assert [await task for task in tasks[:2]] == [DONE, DONE]


async def test_a_caller_that_goes_away_leaves_its_conclusion_to_be_written(bench: Bench) -> None:
    """The outcome is the job's, not the slot's."""
    one = ending()
    async with running(bench.recorder.write(one)) as (gone,):
        await turns()
        gone.cancel()
        await turns()
    async with running(bench.recorder.run()):
        question = await bench.store.next("record")
        assert question.arguments == ([one],)
        question.answer([DONE])
        assert await bench.store.quiet()


async def test_a_statement_is_bounded_and_the_rest_follows(bench: Bench) -> None:
    """However many outcomes an outage has dammed up."""
    endings = [ending() for _ in range(LARGEST + 1)]
    async with running(*(bench.recorder.write(one) for one in endings), bench.recorder.run()):
        for size in (LARGEST, 1):
            question = await bench.store.next("record")
            (batch,) = question.arguments
            assert len(batch) == size
            question.answer([DONE] * size)
