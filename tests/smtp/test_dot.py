"""The body, the dot, and the answer to it: where sent, not sent and nobody knows are told apart."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from daemon.core.settings import Tls
from daemon.core.smtp import Fault, Reply, Stage
from daemon.smtp.wire import Wire
from tests.support.certificates import Authority
from tests.support.exchange import ANN, ONE_BY_ONE, PIPELINING, SHORT_S, connected, envelope, opened, sent, up_to_the_dot
from tests.support.loops import on_both_loops
from tests.support.relay import ScriptedRelay
from tests.support.relay_session import Script


@on_both_loops
@pytest.mark.parametrize(
    ("event", "answers"),
    [
        ({"then": "close"}, {Fault.CLOSED}),
        ({"then": "rst"}, {Fault.CLOSED}),
        ({"then": "stall"}, {Fault.TIMEOUT}),
        ({"reply": "552 5.3.4 too big", "then": "hang"}, {Reply(552, "5.3.4", "too big")}),
        ({"reply": "421 4.4.2 enough", "then": "hang"}, {Reply(421, "4.4.2", "enough")}),
        ({"reply": "421 4.4.2 enough", "then": "close"}, {Reply(421, "4.4.2", "enough"), Fault.CLOSED}),
        ({"reply": "what?", "then": "hang"}, {Fault.GARBAGE}),
    ],
)
async def test_end_inside_the_body_withholds_the_dot(event: Script, answers: set[Reply | Fault]) -> None:
    """Whatever ends the body, it is told as such and the dot can't be written any more: nothing was sent."""
    async with connected({"during_body": {"after_bytes": 1000, **event}}, body_timeout_s=SHORT_S) as (server, connection):
        assert (await envelope(connection)).ready
        connection.send_body(b"x" * 70 + b"\r\n" * 2**22)
        assert await connection.drained() in answers
        assert connection.stage is Stage.BODY
        assert not connection.write_dot()
        assert not connection.reusable
        assert server.messages == []


@on_both_loops
async def test_dot_waits_for_the_whole_body() -> None:
    """While a part of the body hasn't left there is no dot; and a refused dot ends the connection."""
    async with connected({"during_body": {"after_bytes": 1, "then": "stall"}}) as (server, connection):
        assert (await envelope(connection)).ready
        connection.send_body(b"x\r\n" * 2**22)
        assert not connection.write_dot()
        assert not connection.alive
        assert server.messages == []


@on_both_loops
async def test_dot_needs_a_body_stage() -> None:
    """No dot without an envelope, none after the dot."""
    async with connected({}) as (server, connection):
        await up_to_the_dot(connection)
        assert connection.write_dot()
        assert connection.stage is Stage.DOT
        assert not connection.write_dot()
        await connection.dot_reply()
        assert len(server.events.of("command", stage="dot")) == 1
    async with connected({}) as (_, connection):
        assert not connection.write_dot()


@on_both_loops
async def test_aborted_connection_sends_no_message() -> None:
    """Abort before the dot is the proof that nothing was sent."""
    async with connected({}) as (server, connection):
        await up_to_the_dot(connection)
        connection.abort()
        assert not connection.write_dot()
        connection.abort()
        await server.events.wait(1, "closed")
        assert server.messages == []


DOTS: list[tuple[Any, Reply | Fault]] = [
    ("250 2.0.0 ok: queued as 4F1", Reply(250, "2.0.0", "ok: queued as 4F1")),
    ("200 ok", Reply(200, None, "ok")),
    ("451 4.3.0 later", Reply(451, "4.3.0", "later")),
    ("554 5.7.1 no", Reply(554, "5.7.1", "no")),
    ("421 4.3.2 bye", Reply(421, "4.3.2", "bye")),
    ({"reply": "250 2.0.0 ok", "then": "close"}, Reply(250, "2.0.0", "ok")),
    ({"reply": "250-2.0.0 ok\r\n250 2.0.0 bye", "split": True}, Reply(250, "2.0.0", "ok bye")),
    ({"reply": None, "then": "close"}, Fault.CLOSED),
    ({"reply": None, "then": "rst"}, Fault.CLOSED),
    ({"reply": "250-2.0.0 not all", "then": "close"}, Fault.CLOSED),
    ("xyz ok", Fault.GARBAGE),
    ("250-ok\r\n550 no", Fault.GARBAGE),
    ("250-more\r\n" * 300, Fault.GARBAGE),
    ("2" * 10_000, Fault.GARBAGE),
]


@on_both_loops
@pytest.mark.parametrize(("step", "answer"), DOTS)
async def test_answer_to_the_dot_is_what_the_relay_said(step: Any, answer: Reply | Fault) -> None:  # noqa: ANN401 - a script's value
    """A whole reply, even if the relay is gone right after it; else the fault that leaves everybody in doubt."""
    async with connected({"dot": step}) as (_, connection):
        assert await sent(connection) == answer
        assert connection.stage is None
        if isinstance(answer, Fault) or answer.code == 421:
            assert not connection.reusable


@on_both_loops
@pytest.mark.parametrize("step", ["451 4.3.0 later", "554 5.7.1 no"])
async def test_refusal_after_the_dot_leaves_the_connection_good(step: str) -> None:
    """The next message goes through on the same connection, after RSET."""
    async with connected({"dot": [step, "250 ok"]}) as (server, connection):
        await sent(connection)
        assert await sent(connection) == Reply(250, None, "ok")
        assert (server.connections, len(server.events.of("command", stage="rset"))) == (1, 1)


@on_both_loops
async def test_silence_after_the_dot_ends_with_the_limit() -> None:
    """No answer in time is a time-out, the same one however often it is asked for, and the connection is done with."""
    async with connected({"dot": {"reply": None}}, dot_timeout_s=SHORT_S) as (_, connection):
        assert await sent(connection) is Fault.TIMEOUT
        assert await connection.dot_reply() is Fault.TIMEOUT
        assert not connection.alive


@on_both_loops
async def test_cancelled_wait_for_the_dot_loses_no_reply() -> None:
    """Who is cancelled while waiting comes back and finds the answer; the relay has one message."""
    async with ScriptedRelay() as server:
        server.hold("dot")
        connection = await opened(server)
        await up_to_the_dot(connection)
        assert connection.write_dot()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SHORT_S):
                    await connection.dot_reply()
        server.release("dot")
        assert await connection.dot_reply() == Reply(250, "2.0.0", "ok: queued")
        assert connection.reusable
        assert len(server.messages) == 1
        connection.abort()


@on_both_loops
async def test_hanging_up_ends_the_wait_for_the_dot() -> None:
    """Abort while waiting is no answer: closed, so in doubt."""
    async with connected({"dot": {"reply": None}}) as (_, connection):
        await up_to_the_dot(connection)
        assert connection.write_dot()
        connection.abort()
        assert await connection.dot_reply() is Fault.CLOSED


@on_both_loops
async def test_cancelled_envelope_spends_the_connection() -> None:
    """The late reply of a cancelled RCPT can't be taken for the answer to the next job's."""
    async with ScriptedRelay({"rcpt": {ANN: "550 5.1.1 no ann", "*": "250 ok"}}) as server:
        server.hold("rcpt")
        connection = await opened(server)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await envelope(connection)
        assert not connection.reusable
        connection.abort()


@on_both_loops
@pytest.mark.parametrize("ehlo", [ONE_BY_ONE, PIPELINING], ids=["one-by-one", "pipelined"])
@pytest.mark.parametrize("unasked", ["421 4.4.2 idle too long", "250 hello again", "25", "what?"])
async def test_unasked_data_between_transactions_spends_the_connection(unasked: str, ehlo: list[str]) -> None:
    """A reply to nothing would be taken for the answer to the next MAIL."""
    async with connected({"ehlo": ehlo, "dot": "250 2.0.0 ok\r\n" + unasked}) as (_, connection):
        assert await sent(connection) == Reply(250, "2.0.0", "ok")
        assert not connection.reusable
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.stage is Stage.MAIL
        assert report.failure.answer in {Fault.CLOSED, Fault.GARBAGE}


@on_both_loops
async def test_failed_reset_is_reported_before_any_mail() -> None:
    """A relay that refuses RSET isn't in step; the report says so at MAIL and nothing was sent."""
    script = {"mail": ["450 4.3.0 later", "250 ok"], "rset": "502 5.5.1 not implemented"}
    async with connected(script) as (server, connection):
        await envelope(connection)
        report = await envelope(connection)
        assert report.failure is not None
        assert (report.failure.stage, str(report.failure.answer)) == (Stage.MAIL, "502 5.5.1 not implemented")
        assert not connection.alive
        assert len(server.events.of("command", stage="mail")) == 1


@on_both_loops
async def test_report_tells_a_reused_connection() -> None:
    """Who sees a failure can tell whether age may explain it."""
    async with connected({"mail": "421 4.4.2 too old"}) as (_, connection):
        connection.reused = True
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.reused


@on_both_loops
@pytest.mark.parametrize("tls", [Tls.NONE, Tls.STARTTLS, Tls.IMPLICIT])
async def test_large_message_arrives_whole(tls: Tls, authority: Authority) -> None:
    """Twelve megabytes, in clear and encrypted, drained before the dot."""
    content = b"".join(hashlib.sha256(b"%d" % i).hexdigest().encode() + b"\r\n" for i in range(2**17))
    extensions = [*PIPELINING[1:], *(["STARTTLS"] if tls is Tls.STARTTLS else [])]
    async with ScriptedRelay({"ehlo": extensions}, tls=authority.server(), implicit_tls=tls is Tls.IMPLICIT) as server:
        connection = await opened(server, tls=tls, ca_file=authority.ca_file)
        assert isinstance(await sent(connection, content=content), Reply)
        assert server.messages[0].content == content
        connection.abort()


@on_both_loops
async def test_quit_is_said_and_not_waited_for() -> None:
    """The goodbye leaves, and the connection is closed whatever the answer."""
    async with connected({"quit": {"reply": None, "then": "hang"}}, quit_timeout_s=SHORT_S) as (server, connection):
        await sent(connection)
        connection.quit()
        assert not connection.alive
        await server.reached("quit")


@on_both_loops
async def test_goodbye_inside_a_transaction_is_an_abort() -> None:
    """A QUIT there would be a line of the message."""
    async with connected({}) as (server, connection):
        assert (await envelope(connection)).ready
        connection.quit()
        await server.events.wait(1, "closed")
        assert server.events.of("command", stage="quit") == []
        assert server.events.of("command", stage="body") == []


@on_both_loops
async def test_goodbye_to_a_relay_that_reads_nothing_ends_in_time(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    """Closing an encrypted connection waits for the other side; the time limit of the goodbye ends that."""
    gone = asyncio.Event()
    monkeypatch.setattr(Wire, "connection_lost", lambda *_: gone.set())
    async with ScriptedRelay({"dot": {"reply": "250 ok", "then": "stall"}}, tls=authority.server(), implicit_tls=True) as server:
        values = {"tls": Tls.IMPLICIT, "ca_file": authority.ca_file, "quit_timeout_s": SHORT_S}
        connection = await opened(server, **values)
        await sent(connection)
        connection.quit()
        await gone.wait()
