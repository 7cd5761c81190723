"""A transaction, stage by stage, against a relay that does what a script says."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daemon.core.settings import Tls
from daemon.core.smtp import Fault, Reply, Stage
from daemon.smtp.connection import Connection, EnvelopeReport
from daemon.smtp.wire import Wire
from tests.support.certificates import Authority
from tests.support.exchange import (
    ANN,
    BOB,
    CLEO,
    CONTENT,
    ONE_BY_ONE,
    PIPELINING,
    SENDER,
    SHORT_S,
    opened,
    sent,
    up_to_the_dot,
)
from tests.support.relay import ScriptedRelay
from tests.support.relay_session import Script

MODES = {"one_by_one": ONE_BY_ONE, "pipelining": PIPELINING}
both_modes = pytest.mark.parametrize("ehlo", MODES.values(), ids=list(MODES))

ENDS: dict[str, Any] = {
    "close": {"reply": None, "then": "close"},
    "reset": {"reply": None, "then": "rst"},
    "hang": {"reply": None, "then": "hang"},
    "garbage": "what?",
    "closing": "421 4.3.2 shutting down",
}
ANSWERS: dict[str, Any] = {
    "close": Fault.CLOSED,
    "reset": Fault.CLOSED,
    "hang": Fault.TIMEOUT,
    "garbage": Fault.GARBAGE,
    "closing": Reply(421, "4.3.2", "shutting down"),
}
BEFORE = {Stage.MAIL: {Stage.MAIL}, Stage.RCPT: {Stage.MAIL, Stage.RCPT}, Stage.DATA: {Stage.MAIL, Stage.RCPT, Stage.DATA}}


@asynccontextmanager
async def connected(script: Script, **values: Any) -> AsyncIterator[tuple[ScriptedRelay, Connection]]:  # noqa: ANN401 - settings
    """Open a connection to a relay with this script; nobody may have broken the protocol in the end."""
    async with ScriptedRelay(script) as server:
        connection = await opened(server, **values)
        yield server, connection
        connection.abort()
        assert server.violations == []


async def envelope(connection: Connection, *recipients: str) -> EnvelopeReport:
    """Send an envelope of usual size."""
    return await connection.envelope(SENDER, recipients or (ANN,), size=len(CONTENT), smtputf8=False)


def script_at(stage: Stage, step: Any, ehlo: list[str]) -> Script:  # noqa: ANN401 - a script's value
    """Return a script that has the step at the stage."""
    return {"ehlo": ehlo, stage.value: {"*": step} if stage is Stage.RCPT else step}


@both_modes
async def test_message_arrives_as_it_was(ehlo: list[str]) -> None:
    """Dots and lines come out as they went in, with sender and recipients."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        assert await sent(connection, ANN, BOB) == Reply(250, "2.0.0", "ok: queued")
        (message,) = server.messages
        assert (message.sender, message.recipients, message.content) == (SENDER, (ANN, BOB), CONTENT)
        assert connection.reusable


@both_modes
async def test_one_connection_carries_many_messages(ehlo: list[str]) -> None:
    """After a 250 the next MAIL follows at once, without RSET or NOOP."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        for _ in range(3):
            await sent(connection)
        assert (len(server.messages), server.connections) == (3, 1)
        assert server.events.of("command", stage="rset") == []


@both_modes
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA])
async def test_end_inside_the_envelope_is_reported_with_its_stage(stage: Stage, end: str, ehlo: list[str]) -> None:
    """Close, reset, silence, nonsense and 421: the report says where and what, and the connection is done with."""
    limit_s = SHORT_S if end == "hang" else 10.0
    async with connected(script_at(stage, ENDS[end], ehlo), command_timeout_s=limit_s, data_timeout_s=limit_s) as (
        server,
        connection,
    ):
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.answer == ANSWERS[end]
        # A close on pipelined commands that weren't read yet is a reset, which may overtake the replies before it.
        assert report.failure.stage in (BEFORE[stage] if ehlo is PIPELINING else {stage})
        assert not connection.reusable
        assert not connection.write_dot()
        await server.events.wait(1, "closed")
        assert server.messages == []


@both_modes
@pytest.mark.parametrize("reply", ["450 4.3.0 later", "550 5.3.0 never"])
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.RCPT, Stage.DATA])
async def test_refusal_inside_the_envelope_leaves_the_connection_good(stage: Stage, reply: str, ehlo: list[str]) -> None:
    """A refused transaction is over; after RSET the same connection carries the next one."""
    fine = {Stage.MAIL: "250 ok", Stage.RCPT: "250 ok", Stage.DATA: "354 go"}[stage]
    async with connected(script_at(stage, [reply, fine], ehlo)) as (server, connection):
        report = await envelope(connection)
        assert report.failure is not None
        assert (report.failure.stage, str(report.failure.answer)) == (stage, reply)
        assert report.all_refused is (stage is Stage.RCPT)
        assert connection.reusable
        assert await sent(connection) == Reply(250, "2.0.0", "ok: queued")
        assert (server.connections, len(server.events.of("command", stage="rset"))) == (1, 1)


@both_modes
async def test_each_recipient_has_an_answer_of_its_own(ehlo: list[str]) -> None:
    """Two are refused, one gets the mail; 252 is as good as 250."""
    steps = {ANN: "252 2.1.5 will try", BOB: "450 4.2.0 greylisted", CLEO: "550 5.1.1 unknown"}
    async with connected({"ehlo": ehlo, "rcpt": steps}) as (server, connection):
        report = await envelope(connection, ANN, BOB, CLEO)
        assert report.ready
        assert report.accepted == (ANN,)
        assert {address: reply.code for address, reply in report.replies.items()} == {ANN: 252, BOB: 450, CLEO: 550}
        connection.send_body(CONTENT)
        assert await connection.drained() is None
        assert connection.write_dot()
        assert isinstance(await connection.dot_reply(), Reply)
        assert server.messages[0].recipients == (ANN,)


@both_modes
async def test_answers_before_a_421_are_kept(ehlo: list[str]) -> None:
    """The first recipient's refusal stands; the report tells why the others have no answer."""
    steps = {ANN: "550 5.1.1 unknown", BOB: "421 4.7.0 enough"}
    async with connected({"ehlo": ehlo, "rcpt": steps}) as (_, connection):
        report = await envelope(connection, ANN, BOB, CLEO)
        assert list(report.replies) == [ANN]
        assert report.failure is not None
        assert (report.failure.stage, str(report.failure.answer)) == (Stage.RCPT, "421 4.7.0 enough")
        assert not report.all_refused
        assert not connection.alive


@pytest.mark.parametrize("data", ["354 go ahead", ["354 go ahead", "354 go ahead"]])
async def test_nobody_accepted_but_go_ahead_ends_the_connection(data: Any) -> None:  # noqa: ANN401 - a script's value
    """A relay that waits for a body for nobody gets none, no empty dot either."""
    script = {"ehlo": PIPELINING, "rcpt": {"*": "550 5.1.1 unknown"}, "connections": [{"data": data}]}
    async with connected(script) as (server, connection):
        report = await envelope(connection, ANN, BOB)
        assert report.all_refused
        assert not connection.alive
        assert not connection.write_dot()
        await server.events.wait(1, "closed")
        assert server.events.of("command", stage="dot") == []


async def test_nobody_accepted_sends_no_data_where_commands_go_one_by_one() -> None:
    """Without pipelining DATA isn't even asked for."""
    async with connected({"ehlo": ONE_BY_ONE, "rcpt": {"*": "550 5.1.1 unknown"}}) as (server, connection):
        assert (await envelope(connection)).all_refused
        assert server.events.of("command", stage="data") == []


async def test_positive_answer_to_data_spends_the_connection() -> None:
    """A 250 where 354 belongs means that replies and commands no longer match."""
    async with connected({"data": "250 ok"}) as (_, connection):
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.stage is Stage.DATA
        assert not connection.alive


async def test_message_over_the_offered_size_is_not_tried() -> None:
    """The limit of EHLO is compared here; no MAIL leaves, and the connection stays good."""
    async with connected({"ehlo": ["SIZE 1000"]}) as (server, connection):
        report = await connection.envelope(SENDER, [ANN], size=1001, smtputf8=False)
        assert report.failure is not None
        assert report.failure.answer is Fault.TOO_LARGE
        assert (await connection.envelope(SENDER, [ANN], size=1000, smtputf8=False)).ready
        (mail,) = server.events.of("command", stage="mail")
        assert mail["line"] == f"MAIL FROM:<{SENDER}> SIZE=1000"


@pytest.mark.parametrize("size", ["SIZE", "SIZE 0", "SIZE x", "SIZE 99999999999999999999999"])
async def test_size_without_a_limit_refuses_nothing(size: str) -> None:
    """RFC 1870: no number or 0 means no fixed limit; nonsense means none either."""
    async with connected({"ehlo": [size]}) as (_, connection):
        assert (await envelope(connection)).ready


async def test_parameters_are_used_only_where_offered() -> None:
    """A relay that offers nothing gets a plain MAIL."""
    async with connected({"ehlo": ["HELP"]}) as (server, connection):
        assert (await envelope(connection)).ready
        assert server.events.of("command", stage="mail")[0]["line"] == f"MAIL FROM:<{SENDER}>"


async def test_smtputf8_needs_the_offer() -> None:
    """Addresses beyond ASCII go only to a relay that can take them."""
    async with connected({"ehlo": ["HELP"]}) as (_, connection):
        report = await connection.envelope(SENDER, ["jörg@example.org"], size=1, smtputf8=True)
        assert report.failure is not None
        assert report.failure.answer is Fault.SMTPUTF8_NOT_OFFERED
    async with connected({"ehlo": ["SMTPUTF8", "8BITMIME"]}) as (server, connection):
        assert (await connection.envelope("", ["jörg@example.org"], size=1, smtputf8=True)).accepted == ("jörg@example.org",)
        assert server.events.of("command", stage="mail")[0]["line"] == "MAIL FROM:<> BODY=8BITMIME SMTPUTF8"


@pytest.mark.parametrize("address", ["a@x.org>\r\nDATA", "a@x.org> SIZE=1", "a b@x.org", "a\x00@x.org", "<a@x.org"])
async def test_address_that_breaks_the_command_is_our_mistake(address: str) -> None:
    """Such a message should never have been built; nothing is written."""
    async with connected({}) as (server, connection):
        with pytest.raises(ValueError, match="address"):
            await connection.envelope(SENDER, [ANN, address], size=1, smtputf8=False)
        with pytest.raises(ValueError, match="address"):
            await connection.envelope(address, [ANN], size=1, smtputf8=False)
        assert server.events.of("command", stage="mail") == []


async def test_quoted_local_part_stays_quoted() -> None:
    """The mail goes to who is named, not to the host inside the quotes."""
    async with connected({}) as (server, connection):
        odd = '"a@evil.example x"@example.org'
        await sent(connection, odd)
        assert server.messages[0].recipients == (odd,)


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


async def test_dot_waits_for_the_whole_body() -> None:
    """While a part of the body hasn't left there is no dot; and a refused dot ends the connection."""
    async with connected({"during_body": {"after_bytes": 1, "then": "stall"}}) as (server, connection):
        assert (await envelope(connection)).ready
        connection.send_body(b"x\r\n" * 2**22)
        assert not connection.write_dot()
        assert not connection.alive
        assert server.messages == []


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


@pytest.mark.parametrize(("step", "answer"), DOTS)
async def test_answer_to_the_dot_is_what_the_relay_said(step: Any, answer: Reply | Fault) -> None:  # noqa: ANN401 - a script's value
    """A whole reply, even if the relay is gone right after it; else the fault that leaves everybody in doubt."""
    async with connected({"dot": step}) as (_, connection):
        assert await sent(connection) == answer
        assert connection.stage is None
        if isinstance(answer, Fault) or answer.code == 421:
            assert not connection.reusable


@pytest.mark.parametrize("step", ["451 4.3.0 later", "554 5.7.1 no"])
async def test_refusal_after_the_dot_leaves_the_connection_good(step: str) -> None:
    """The next message goes through on the same connection, after RSET."""
    async with connected({"dot": [step, "250 ok"]}) as (server, connection):
        await sent(connection)
        assert await sent(connection) == Reply(250, None, "ok")
        assert (server.connections, len(server.events.of("command", stage="rset"))) == (1, 1)


async def test_silence_after_the_dot_ends_with_the_limit() -> None:
    """No answer in time is a time-out, the same one however often it is asked for, and the connection is done with."""
    async with connected({"dot": {"reply": None}}, dot_timeout_s=SHORT_S) as (_, connection):
        assert await sent(connection) is Fault.TIMEOUT
        assert await connection.dot_reply() is Fault.TIMEOUT
        assert not connection.alive


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


async def test_hanging_up_ends_the_wait_for_the_dot() -> None:
    """Abort while waiting is no answer: closed, so in doubt."""
    async with connected({"dot": {"reply": None}}) as (_, connection):
        await up_to_the_dot(connection)
        assert connection.write_dot()
        connection.abort()
        assert await connection.dot_reply() is Fault.CLOSED


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


@pytest.mark.parametrize("unasked", ["421 4.4.2 idle too long", "250 hello again", "25", "what?"])
async def test_unasked_data_between_transactions_spends_the_connection(unasked: str) -> None:
    """A reply to nothing would be taken for the answer to the next MAIL."""
    async with connected({"dot": "250 2.0.0 ok\r\n" + unasked}) as (_, connection):
        assert await sent(connection) == Reply(250, "2.0.0", "ok")
        assert not connection.reusable
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.stage is Stage.MAIL
        assert report.failure.answer in {Fault.CLOSED, Fault.GARBAGE}


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


async def test_report_tells_a_reused_connection() -> None:
    """Who sees a failure can tell whether age may explain it."""
    async with connected({"mail": "421 4.4.2 too old"}) as (_, connection):
        connection.reused = True
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.reused


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


async def test_quit_is_said_and_not_waited_for() -> None:
    """The goodbye leaves, and the connection is closed whatever the answer."""
    async with connected({"quit": {"reply": None, "then": "hang"}}, quit_timeout_s=SHORT_S) as (server, connection):
        await sent(connection)
        connection.quit()
        assert not connection.alive
        await server.reached("quit")


async def test_goodbye_inside_a_transaction_is_an_abort() -> None:
    """A QUIT there would be a line of the message."""
    async with connected({}) as (server, connection):
        assert (await envelope(connection)).ready
        connection.quit()
        await server.events.wait(1, "closed")
        assert server.events.of("command", stage="quit") == []
        assert server.events.of("command", stage="body") == []


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
