"""Parameters of MAIL and RCPT on the wire: used where they are offered, and left out for a relay that then refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from daemon.core.smtp import Fault, Reply, Stage
from daemon.smtp.commands import Notify, Offer
from daemon.smtp.connection import Connection, EnvelopeReport
from tests.support.exchange import ANN, BOB, CONTENT, SENDER, connected
from tests.support.relay import ScriptedRelay

NOTIFY = Notify("failure,delay", "7d8f")
OFFERS = ["SIZE 1000", "DSN", "8BITMIME", "SMTPUTF8"]
both_modes = pytest.mark.parametrize("ehlo", [OFFERS, [*OFFERS, "PIPELINING"]], ids=["one-by-one", "pipelined"])


def lines(server: ScriptedRelay, stage: Stage) -> list[str]:
    """Return the commands of a stage as the relay saw them."""
    return [event["line"] for event in server.events.of("command", stage=str(stage))]


async def envelope(connection: Connection, *recipients: str, **options: Any) -> EnvelopeReport:  # noqa: ANN401 - arguments
    """Send an envelope that asks for reports."""
    wishes: dict[str, Any] = {"size": 100, "smtputf8": False, "notify": NOTIFY, **options}
    return await connection.envelope(SENDER, recipients or (ANN,), **wishes)


async def delivered(connection: Connection) -> None:
    """Finish the transaction."""
    connection.send_body(CONTENT)
    assert await connection.drained() is None
    assert connection.write_dot()
    assert isinstance(await connection.dot_reply(), Reply)


@both_modes
async def test_reports_are_asked_for_where_they_are_offered(ehlo: list[str]) -> None:
    """RET and ENVID with MAIL, NOTIFY with each RCPT (RFC 3461)."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        assert (await envelope(connection, ANN, BOB)).ready
        assert lines(server, Stage.MAIL) == [f"MAIL FROM:<{SENDER}> SIZE=100 RET=HDRS ENVID=7d8f"]
        assert lines(server, Stage.RCPT) == [f"RCPT TO:<{ANN}> NOTIFY=FAILURE,DELAY", f"RCPT TO:<{BOB}> NOTIFY=FAILURE,DELAY"]


@pytest.mark.parametrize(("ehlo", "notify"), [(["SIZE 1000"], NOTIFY), (OFFERS, None)], ids=["not offered", "not wished"])
async def test_reports_are_not_asked_for_otherwise(ehlo: list[str], notify: Notify | None) -> None:
    """A relay that doesn't know DSN would refuse the command."""
    async with connected({"ehlo": ehlo}) as (server, connection):
        assert (await envelope(connection, notify=notify)).ready
        assert lines(server, Stage.MAIL) == [f"MAIL FROM:<{SENDER}> SIZE=100"]
        assert lines(server, Stage.RCPT) == [f"RCPT TO:<{ANN}>"]


@both_modes
@pytest.mark.parametrize("refusal", ["555 5.5.4 unsupported option", "504 5.5.4 not implemented"])
async def test_parameter_that_mail_refuses_is_left_out_the_second_time(refusal: str, ehlo: list[str]) -> None:
    """On the same connection, and in all its later transactions from the start."""
    async with connected({"ehlo": ehlo, "mail": [refusal, "250 ok"]}) as (server, connection):
        for _ in range(2):
            assert (await envelope(connection)).ready
            await delivered(connection)
        bare = f"MAIL FROM:<{SENDER}>"
        assert lines(server, Stage.MAIL) == [f"{bare} SIZE=100 RET=HDRS ENVID=7d8f", bare, bare]
        assert set(lines(server, Stage.RCPT)[-2:]) == {f"RCPT TO:<{ANN}>"}
        assert (len(server.messages), server.connections) == (2, 1)


@both_modes
async def test_second_refusal_is_the_answer(ehlo: list[str]) -> None:
    """There is no third try."""
    async with connected({"ehlo": ehlo, "mail": ["555 5.5.4 no", "555 5.5.4 not even so"]}) as (server, connection):
        report = await envelope(connection)
        assert report.failure is not None
        assert (report.failure.stage, str(report.failure.answer)) == (Stage.MAIL, "555 5.5.4 not even so")
        assert len(lines(server, Stage.MAIL)) == 2


@both_modes
async def test_parameter_that_every_recipient_refuses_is_left_out_the_second_time(ehlo: list[str]) -> None:
    """It is the parameter's fault and none of theirs."""
    steps = {ANN: ["555 5.5.4 no", "250 ok"], BOB: ["504 5.5.4 no", "550 5.1.1 unknown"]}
    async with connected({"ehlo": ehlo, "rcpt": steps}) as (server, connection):
        report = await envelope(connection, ANN, BOB)
        assert report.accepted == (ANN,)
        assert report.replies[BOB].code == 550
        assert lines(server, Stage.RCPT)[-2:] == [f"RCPT TO:<{ANN}>", f"RCPT TO:<{BOB}>"]
        await delivered(connection)


@both_modes
async def test_one_recipients_refusal_is_its_own(ehlo: list[str]) -> None:
    """Who was accepted with the parameter shows that it isn't the parameter."""
    steps = {ANN: "555 5.5.4 syntax error", BOB: "250 ok"}
    async with connected({"ehlo": ehlo, "rcpt": steps}) as (server, connection):
        report = await envelope(connection, ANN, BOB)
        assert (report.ready, report.accepted, report.replies[ANN].code) == (True, (BOB,), 555)
        assert len(lines(server, Stage.MAIL)) == 1


async def test_what_has_nothing_to_leave_out_is_not_tried_again() -> None:
    """The same command would get the same answer."""
    async with connected({"ehlo": [], "mail": "555 5.5.4 no"}) as (server, connection):
        assert not (await envelope(connection)).ready
        assert lines(server, Stage.MAIL) == [f"MAIL FROM:<{SENDER}>"]


def test_size_with_thousands_of_digits_is_no_limit() -> None:
    """RFC 1870 allows twenty; what is longer is nonsense, and nonsense must not keep a connection from opening."""
    assert Offer({"size": "9" * 5000}).refusal(1, smtputf8=False) is None
    assert Offer({"size": "9" * 20}).refusal(10**21, smtputf8=False) is Fault.TOO_LARGE


async def test_other_refusals_are_not_about_parameters() -> None:
    """501, 550 and 452 stand."""
    for refusal in ("501 5.1.7 bad sender", "550 5.7.1 no", "452 4.3.1 later"):
        async with connected({"ehlo": OFFERS, "mail": refusal}) as (server, connection):
            assert not (await envelope(connection)).ready
            assert len(lines(server, Stage.MAIL)) == 1


async def test_what_the_message_needs_is_never_left_out() -> None:
    """Without SMTPUTF8 the address would mean nothing."""
    async with connected({"ehlo": OFFERS, "mail": ["555 5.5.4 no", "250 ok"]}) as (server, connection):
        assert (await envelope(connection, "jörg@example.org", smtputf8=True)).ready
        assert lines(server, Stage.MAIL)[-1] == f"MAIL FROM:<{SENDER}> BODY=8BITMIME SMTPUTF8"
