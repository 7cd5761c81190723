"""A transaction, stage by stage, against a relay that does what a script says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from daemon.core.smtp import Fault, Reply, Stage
from tests.support.exchange import (
    ANN,
    BOB,
    CLEO,
    CONTENT,
    ONE_BY_ONE,
    PIPELINING,
    SENDER,
    SHORT_S,
    connected,
    envelope,
    sent,
)
from tests.support.loops import on_both_loops
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


def script_at(stage: Stage, step: Any, ehlo: list[str]) -> Script:  # noqa: ANN401 - a script's value
    """Return a script that has the step at the stage."""
    return {"ehlo": ehlo, stage.value: {"*": step} if stage is Stage.RCPT else step}


@on_both_loops
@both_modes
async def test_message_arrives_as_it_was(ehlo: list[str]) -> None:
    """Dots and lines come out as they went in, with sender and recipients."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        assert await sent(connection, ANN, BOB) == Reply(250, "2.0.0", "ok: queued")
        (message,) = server.messages
        assert (message.sender, message.recipients, message.content) == (SENDER, (ANN, BOB), CONTENT)
        assert connection.reusable


@on_both_loops
@both_modes
async def test_one_connection_carries_many_messages(ehlo: list[str]) -> None:
    """After a 250 the next MAIL follows at once, without RSET or NOOP."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        for _ in range(3):
            await sent(connection)
        assert (len(server.messages), server.connections) == (3, 1)
        assert server.events.of("command", stage="rset") == []


@on_both_loops
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


@on_both_loops
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


@on_both_loops
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


@on_both_loops
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


@on_both_loops
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


@on_both_loops
@pytest.mark.parametrize("stage", [Stage.MAIL, Stage.DATA])
async def test_each_command_has_its_own_limit_though_all_are_waited_for_together(stage: Stage) -> None:
    """Whichever is the shorter one: a relay that answers all but this command is given up when its time is over."""
    limits = {"command_timeout_s": 60.0, "data_timeout_s": 60.0}
    limits["data_timeout_s" if stage is Stage.DATA else "command_timeout_s"] = SHORT_S
    async with connected(script_at(stage, ENDS["hang"], PIPELINING), **limits) as (_, connection), asyncio.timeout(30.0):
        failure = (await envelope(connection)).failure
        assert failure is not None
        assert (failure.stage, failure.answer) == (stage, Fault.TIMEOUT)


@on_both_loops
async def test_nobody_accepted_sends_no_data_where_commands_go_one_by_one() -> None:
    """Without pipelining DATA isn't even asked for."""
    async with connected({"ehlo": ONE_BY_ONE, "rcpt": {"*": "550 5.1.1 unknown"}}) as (server, connection):
        assert (await envelope(connection)).all_refused
        assert server.events.of("command", stage="data") == []


@on_both_loops
async def test_positive_answer_to_data_spends_the_connection() -> None:
    """A 250 where 354 belongs means that replies and commands no longer match."""
    async with connected({"data": "250 ok"}) as (_, connection):
        report = await envelope(connection)
        assert report.failure is not None
        assert report.failure.stage is Stage.DATA
        assert not connection.alive


@on_both_loops
async def test_message_over_the_offered_size_is_not_tried() -> None:
    """The limit of EHLO is compared here; no MAIL leaves, and the connection stays good."""
    async with connected({"ehlo": ["SIZE 1000"]}) as (server, connection):
        report = await connection.envelope(SENDER, [ANN], size=1001, smtputf8=False)
        assert report.failure is not None
        assert report.failure.answer is Fault.TOO_LARGE
        assert (await connection.envelope(SENDER, [ANN], size=1000, smtputf8=False)).ready
        (mail,) = server.events.of("command", stage="mail")
        assert mail["line"] == f"MAIL FROM:<{SENDER}> SIZE=1000"


@on_both_loops
@pytest.mark.parametrize("size", ["SIZE", "SIZE 0", "SIZE x", "SIZE 99999999999999999999999"])
async def test_size_without_a_limit_refuses_nothing(size: str) -> None:
    """RFC 1870: no number or 0 means no fixed limit; nonsense means none either."""
    async with connected({"ehlo": [size]}) as (_, connection):
        assert (await envelope(connection)).ready


@on_both_loops
async def test_parameters_are_used_only_where_offered() -> None:
    """A relay that offers nothing gets a plain MAIL."""
    async with connected({"ehlo": ["HELP"]}) as (server, connection):
        assert (await envelope(connection)).ready
        assert server.events.of("command", stage="mail")[0]["line"] == f"MAIL FROM:<{SENDER}>"


@on_both_loops
async def test_smtputf8_needs_the_offer() -> None:
    """Addresses beyond ASCII go only to a relay that can take them."""
    async with connected({"ehlo": ["HELP"]}) as (_, connection):
        report = await connection.envelope(SENDER, ["jörg@example.org"], size=1, smtputf8=True)
        assert report.failure is not None
        assert report.failure.answer is Fault.SMTPUTF8_NOT_OFFERED
    async with connected({"ehlo": ["SMTPUTF8", "8BITMIME"]}) as (server, connection):
        assert (await connection.envelope("", ["jörg@example.org"], size=1, smtputf8=True)).accepted == ("jörg@example.org",)
        assert server.events.of("command", stage="mail")[0]["line"] == "MAIL FROM:<> BODY=8BITMIME SMTPUTF8"


@on_both_loops
@pytest.mark.parametrize("address", ["a@x.org>\r\nDATA", "a@x.org> SIZE=1", "a b@x.org", "a\x00@x.org", "<a@x.org"])
async def test_address_that_breaks_the_command_is_our_mistake(address: str) -> None:
    """Such a message should never have been built; nothing is written."""
    async with connected({}) as (server, connection):
        with pytest.raises(ValueError, match="address"):
            await connection.envelope(SENDER, [ANN, address], size=1, smtputf8=False)
        with pytest.raises(ValueError, match="address"):
            await connection.envelope(address, [ANN], size=1, smtputf8=False)
        assert server.events.of("command", stage="mail") == []


@on_both_loops
async def test_quoted_local_part_stays_quoted() -> None:
    """The mail goes to who is named, not to the host inside the quotes."""
    async with connected({}) as (server, connection):
        odd = '"a@evil.example x"@example.org'
        await sent(connection, odd)
        assert server.messages[0].recipients == (odd,)
