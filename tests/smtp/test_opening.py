"""How a connection comes about, and at which stage and why it doesn't."""

from __future__ import annotations

import asyncio
import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from daemon.core import settings
from daemon.core.errors import ConfigError
from daemon.core.settings import Secret, Tls
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.smtp import opening as module
from daemon.smtp.connection import Connection
from daemon.smtp.opening import open_connection, own_name, tls_context
from tests.support.certificates import Authority
from tests.support.exchange import SHORT_S, failed, opened, opening, relay_settings, sent
from tests.support.loops import on_both_loops
from tests.support.relay import ScriptedRelay

LOGIN: dict[str, Any] = {"username": "maya", "password": Secret("s3cret")}
CLOSE: dict[str, Any] = {"reply": None, "then": "close"}
HANG: dict[str, Any] = {"reply": None, "then": "hang"}


async def test_connection_is_ready_for_its_first_mail() -> None:
    """Greeting and EHLO are done, with the name that was given; what is offered is known."""
    async with ScriptedRelay({"ehlo": ["SIZE 1000", "PIPELINING"]}) as server:
        connection = await opened(server, ehlo_name="client.example.org")
        assert connection.extensions == {"size": "1000", "pipelining": ""}
        assert server.events.of("command", stage="ehlo")[0]["line"] == "EHLO client.example.org"
        assert connection.reusable
        assert (connection.stage, connection.reused, connection.transactions) == (None, False, 0)
        connection.abort()


@on_both_loops
@pytest.mark.parametrize(
    ("script", "stage", "answer"),
    [
        ({"greeting": "421 4.3.2 busy"}, Stage.GREETING, Reply(421, "4.3.2", "busy")),
        ({"greeting": "554 5.7.1 go away"}, Stage.GREETING, Reply(554, "5.7.1", "go away")),
        ({"greeting": CLOSE}, Stage.GREETING, Fault.CLOSED),
        ({"greeting": "hello"}, Stage.GREETING, Fault.GARBAGE),
        ({"greeting": HANG}, Stage.GREETING, Fault.TIMEOUT),
        ({"refuse": True}, Stage.GREETING, Fault.CLOSED),
        ({"ehlo": "504 5.5.2 need a name"}, Stage.EHLO, Reply(504, "5.5.2", "need a name")),
        ({"ehlo": "421 4.3.2 busy"}, Stage.EHLO, Reply(421, "4.3.2", "busy")),
        ({"ehlo": "500 what?", "helo": "550 no"}, Stage.EHLO, Reply(550, None, "no")),
        ({"ehlo": CLOSE}, Stage.EHLO, Fault.CLOSED),
        ({"ehlo": "what?"}, Stage.EHLO, Fault.GARBAGE),
        ({"ehlo": HANG}, Stage.EHLO, Fault.TIMEOUT),
    ],
)
async def test_end_before_tls_is_reported_with_its_stage(script: dict[str, Any], stage: Stage, answer: Reply | Fault) -> None:
    """Whatever a relay does, it is a value with the right stage, and no socket stays open."""
    limit_s = 5 * SHORT_S if answer is Fault.TIMEOUT else 10.0
    async with ScriptedRelay(script) as server:
        assert await failed(server, connect_timeout_s=limit_s) == Report("relay", stage, answer)
        await server.events.wait(server.connections, "closed")


async def test_relay_without_ehlo_is_greeted_the_old_way() -> None:
    """500 to EHLO is answered by HELO where no extension is needed."""
    async with ScriptedRelay({"ehlo": "500 what?"}) as server:
        connection = await opened(server)
        assert connection.extensions == {}
        assert isinstance(await sent(connection), Reply)
        connection.abort()


async def test_old_greeting_is_no_way_around_what_is_required() -> None:
    """HELO offers neither STARTTLS nor AUTH, so it isn't tried where they are needed."""
    async with ScriptedRelay({"ehlo": "500 what?"}) as server:
        for values in (LOGIN, {"tls": Tls.STARTTLS}):
            assert await failed(server, **values) == Report("relay", Stage.EHLO, Reply(500, None, "what?"))
        assert len(server.events.of("command", stage="ehlo")) == 2


@on_both_loops
async def test_nobody_listens() -> None:
    """A refused connection is told as such."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        relay = relay_settings(unused.getsockname()[1], host="127.0.0.1")
        report = await open_connection(relay, tls=None, ehlo_name="x.example")
    assert report == Report("relay", Stage.CONNECT, Fault.REFUSED)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "again"), Fault.NAME_UNAVAILABLE),
        (socket.gaierror(socket.EAI_NONAME, "no name"), Fault.NAME_UNKNOWN),
        (socket.gaierror(socket.EAI_NODATA, "no data"), Fault.NAME_UNKNOWN),
    ],
)
async def test_names_that_fail_are_told_apart(monkeypatch: pytest.MonkeyPatch, error: OSError, fault: Fault) -> None:
    """A name server that is away isn't a name that doesn't exist."""

    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    report = await open_connection(relay_settings(25, host="mail.example.org"), tls=None, ehlo_name="x.example")
    assert report == Report("relay", Stage.CONNECT, fault)


@on_both_loops
async def test_impossible_name_is_unknown() -> None:
    """A label that no name server could ever know doesn't raise."""
    report = await open_connection(relay_settings(25, host=f"{'x' * 70}.example.org"), tls=None, ehlo_name="x.example")
    assert report == Report("relay", Stage.CONNECT, Fault.NAME_UNKNOWN)


async def test_connect_that_hangs_is_told_from_a_greeting_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer from the name server or the network is the stage before the greeting."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    relay = relay_settings(25, host="mail.example.org", connect_timeout_s=5 * SHORT_S)
    report = await open_connection(relay, tls=None, ehlo_name="x.example")
    assert report == Report("relay", Stage.CONNECT, Fault.TIMEOUT)


@on_both_loops
async def test_one_limit_covers_all_stages() -> None:
    """Each stage in time and all of them late: the time is up."""
    slow = {"greeting": {"reply": "220 hello", "delay_s": 0.2}, "ehlo": {"reply": "250 relay.test", "delay_s": 0.2}}
    async with ScriptedRelay(slow) as server:
        assert await failed(server, connect_timeout_s=0.3) == Report("relay", Stage.EHLO, Fault.TIMEOUT)


async def test_limit_that_passes_while_the_relay_greets_is_the_greetings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow name server leaves less time for the greeting; the stage is still the right one."""
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def slow(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - asyncio's signature
        await asyncio.sleep(0.2)
        return await real(*arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", slow)
    async with ScriptedRelay({"greeting": HANG}) as server:
        assert await failed(server, connect_timeout_s=0.3) == Report("relay", Stage.GREETING, Fault.TIMEOUT)


@on_both_loops
async def test_cancelled_opening_leaves_no_socket() -> None:
    """Who gives up while the relay greets leaves nothing behind."""
    async with ScriptedRelay({"ehlo": HANG}) as server:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(opening(server))
            await server.reached("ehlo")
            task.cancel()
        assert task.cancelled()
    assert server.open_connections == 0


@on_both_loops
@pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.IMPLICIT])
async def test_encrypted_connection_carries_a_message(tls: Tls, authority: Authority) -> None:
    """With the right certificate both ways of TLS work, and what was offered in clear is asked for again."""
    async with ScriptedRelay({"ehlo": ["STARTTLS"]}, tls=authority.server(), implicit_tls=tls is Tls.IMPLICIT) as server:
        connection = await opened(server, tls=tls, ca_file=authority.ca_file)
        assert isinstance(await sent(connection), Reply)
        assert len(server.events.of("command", stage="ehlo")) == (2 if tls is Tls.STARTTLS else 1)
        connection.quit()
        await server.events.wait(1, "closed")


@pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.IMPLICIT])
async def test_certificate_for_another_name_is_refused(tls: Tls, authority: Authority) -> None:
    """The relay at localhost that shows somebody else's certificate gets nothing from us."""
    shown = authority.server("other.example.net")
    async with ScriptedRelay({"ehlo": ["STARTTLS"]}, tls=shown, implicit_tls=tls is Tls.IMPLICIT) as server:
        report = await failed(server, tls=tls, ca_file=authority.ca_file, **LOGIN)
        assert report == Report("relay", Stage.TLS, Fault.TLS_FAILED)
        assert "other.example.net" in report.detail or "Hostname mismatch" in report.detail
        assert (server.log_ins, server.events.of("command", stage="mail")) == (0, [])


@on_both_loops
async def test_certificate_of_an_unknown_authority_is_refused(authority: Authority) -> None:
    """Without `ca_file` only the system's authorities count."""
    async with ScriptedRelay({}, tls=authority.server(), implicit_tls=True) as server:
        report = await failed(server, tls=Tls.IMPLICIT)
        assert report == Report("relay", Stage.TLS, Fault.TLS_FAILED)
        assert "issuer" in report.detail or "self" in report.detail


async def test_stripped_starttls_is_no_way_to_clear_text() -> None:
    """A relay, or somebody between, that doesn't offer STARTTLS gets neither password nor mail."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"]}) as server:
        report = await failed(server, tls=Tls.STARTTLS, **LOGIN)
        assert report == Report("relay", Stage.TLS, Fault.TLS_NOT_OFFERED)
        assert {event["stage"] for event in server.events.of("command")} == {"greeting", "ehlo"}


@on_both_loops
@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("454 4.7.0 not now", Reply(454, "4.7.0", "not now")),
        ("501 5.5.4 no", Reply(501, "5.5.4", "no")),
        (CLOSE, Fault.CLOSED),
        (HANG, Fault.TIMEOUT),
        ({"reply": "220 go", "then": "close"}, Fault.CLOSED),
        ({"reply": "220 go", "then": "hang"}, Fault.TIMEOUT),
    ],
)
async def test_end_inside_starttls_is_reported(step: Any, answer: Reply | Fault, authority: Authority) -> None:  # noqa: ANN401 - a script's value
    """A refusal, a close and silence, before and inside the handshake."""
    limit_s = 5 * SHORT_S if answer is Fault.TIMEOUT else 10.0
    async with ScriptedRelay({"ehlo": ["STARTTLS"], "starttls": step}, tls=authority.server()) as server:
        report = await failed(server, tls=Tls.STARTTLS, ca_file=authority.ca_file, connect_timeout_s=limit_s)
        assert report == Report("relay", Stage.TLS, answer)


@on_both_loops
async def test_clear_text_behind_starttls_is_forgotten(authority: Authority) -> None:
    """What somebody put behind the 220 can't pass for the encrypted relay's answer to EHLO."""
    script = {"ehlo": ["STARTTLS"], "starttls": "220 go\r\n250-relay.test\r\n250 AUTH PLAIN"}
    async with ScriptedRelay(script, tls=authority.server()) as server:
        connection = await opened(server, tls=Tls.STARTTLS, ca_file=authority.ca_file)
        assert connection.extensions == {"starttls": ""}
        connection.abort()


@on_both_loops
async def test_clear_text_server_is_no_tls_server() -> None:
    """A greeting in clear where TLS is spoken from the first byte is a TLS failure, not a message's."""
    async with ScriptedRelay({}) as server:
        report = await failed(server, tls=Tls.IMPLICIT, connect_timeout_s=1.0)
        assert (report.stage, report.answer) in {(Stage.TLS, Fault.TLS_FAILED), (Stage.CONNECT, Fault.CLOSED)}


@pytest.mark.parametrize(
    ("offered", "command"),
    [("PLAIN LOGIN", "PLAIN"), ("CRAM-MD5 PLAIN LOGIN", "PLAIN"), ("LOGIN", "LOGIN"), ("XOAUTH2 LOGIN", "LOGIN")],
)
async def test_log_in_uses_one_mechanism(offered: str, command: str) -> None:
    """PLAIN if offered, else LOGIN."""
    async with ScriptedRelay({"ehlo": [f"AUTH {offered}"]}) as server:
        (await opened(server, **LOGIN)).abort()
        (auth,) = server.events.of("command", stage="auth")
        assert auth["words"] == ["AUTH", command]


@pytest.mark.parametrize("offered", ["CRAM-MD5 PLAIN LOGIN", "LOGIN"])
@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("535 5.7.8 authentication failed", Reply(535, "5.7.8", "authentication failed")),
        ("454 4.7.0 Too many login attempts", Reply(454, "4.7.0", "Too many login attempts")),
        ("334 more", Reply(334, None, "more")),
        (CLOSE, Fault.CLOSED),
        ("what?", Fault.GARBAGE),
    ],
)
async def test_refused_log_in_is_tried_once(step: Any, answer: Reply | Fault, offered: str) -> None:  # noqa: ANN401 - a script's value
    """Three mechanisms in turn would be three wrong passwords: accounts are locked for less."""
    async with ScriptedRelay({"ehlo": [f"AUTH {offered}"], "auth": step}) as server:
        assert await failed(server, **LOGIN) == Report("relay", Stage.AUTH, answer)
        assert server.log_ins == 1


@pytest.mark.parametrize("extensions", [["SIZE 1000"], ["AUTH CRAM-MD5 XOAUTH2"]])
async def test_log_in_without_an_offer_is_reported(extensions: list[str]) -> None:
    """No AUTH, or none that we speak: told without a try."""
    async with ScriptedRelay({"ehlo": extensions}) as server:
        assert await failed(server, **LOGIN) == Report("relay", Stage.AUTH, Fault.AUTH_NOT_OFFERED)
        assert server.log_ins == 0


@pytest.mark.parametrize(("allowed", "log_ins"), [(False, 0), (True, 1)])
async def test_password_leaves_in_clear_only_if_allowed(monkeypatch: pytest.MonkeyPatch, allowed: bool, log_ins: int) -> None:  # noqa: FBT001 - a table
    """To another host the settings have to say so."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"]}) as server:
        real = asyncio.get_running_loop().getaddrinfo
        monkeypatch.setattr(
            asyncio.get_running_loop(), "getaddrinfo", lambda _host, port, **rest: real("127.0.0.1", port, **rest)
        )
        result = await opening(server, host="mail.example.org", allow_auth_without_tls=allowed, **LOGIN)
        assert server.log_ins == log_ins
        if isinstance(result, Connection):
            result.abort()
        else:
            assert result == Report("relay", Stage.AUTH, Fault.TLS_NOT_OFFERED)


async def test_password_is_sent_as_it_is() -> None:
    """User name and password reach the relay unchanged, beyond ASCII too (RFC 4616)."""
    async with ScriptedRelay({"ehlo": ["AUTH PLAIN"]}) as server:
        (await opened(server, username="maya", password=Secret("pässword"))).abort()
        assert server.passwords == [base64.b64encode("\0maya\0pässword".encode()).decode()]


def test_authority_file_without_certificates_stops_the_start(tmp_path: Path) -> None:
    """A missing file and one without certificates are configuration errors that name the key."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (tmp_path / "missing.pem", empty):
        with pytest.raises(ConfigError, match="ca_file"):
            tls_context(relay_settings(25, tls=Tls.STARTTLS, ca_file=str(path)))
    assert tls_context(relay_settings(25, ca_file="unused")) is None


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("mail.example.org", "mail.example.org"),
        ("localhost", "[127.0.0.1]"),
        ("localhost.localdomain", "[127.0.0.1]"),
        ("", "[127.0.0.1]"),
        ("bad name.example", "[127.0.0.1]"),
        ("bücher.example", "[127.0.0.1]"),
    ],
)
async def test_host_without_a_full_name_says_an_address_literal(monkeypatch: pytest.MonkeyPatch, name: str, used: str) -> None:
    """Relays refuse names without a dot (RFC 5321 4.1.1.1 asks for a full name or a literal)."""
    monkeypatch.setattr(socket, "getfqdn", lambda: name)
    assert await own_name() == used


async def test_resolver_that_hangs_costs_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name isn't worth waiting for."""

    async def hang(_: object) -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    monkeypatch.setattr(asyncio, "to_thread", hang)
    monkeypatch.setattr(module, "_NAME_TIMEOUT_S", SHORT_S)
    assert await own_name() == "[127.0.0.1]"


def test_settings_have_no_opportunistic_mode() -> None:
    """There is nothing between required and none."""
    assert set(settings.Tls) == {Tls.IMPLICIT, Tls.STARTTLS, Tls.NONE}
