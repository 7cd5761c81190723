"""The relay that the tests trust has to be trusted first."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from daemon.core.smtp import Reply, Stage
from daemon.smtp.connection import Connection
from daemon.smtp.opening import open_connection
from tests.support.exchange import ANN, BOB, CONTENT, opened, relay_settings, sent, up_to_the_dot
from tests.support.relay import ScriptedRelay

ROOT = Path(__file__).parents[2]


async def test_lists_go_on_over_connections_and_stay_at_their_end() -> None:
    """One step each time, whoever asks."""
    async with ScriptedRelay({"dot": ["450 one", "250 two"]}) as server:
        answers = []
        for _ in range(3):
            connection = await opened(server)
            answers.append(str(await sent(connection)))
            connection.abort()
        assert answers == ["450 one", "250 two", "250 two"]


async def test_connections_may_have_scripts_of_their_own() -> None:
    """The last one is for all that follow; their lists count for themselves."""
    script = {"connections": [{"dot": ["250 first", "250 again"]}, {"dot": "250 other"}]}
    async with ScriptedRelay(script) as server:
        answers = []
        for _ in range(3):
            connection = await opened(server)
            answers += [str(await sent(connection)), str(await sent(connection))]
            connection.abort()
        assert answers == ["250 first", "250 again", "250 other", "250 other", "250 other", "250 other"]


async def test_message_is_noted_before_it_is_accepted() -> None:
    """While the reply is held the message is there; so nobody can have an acceptance that the log doesn't have."""
    async with ScriptedRelay() as server:
        server.hold("stored")
        connection = await opened(server)
        await up_to_the_dot(connection)
        assert connection.write_dot()
        await server.events.wait(1, "stored", message_id="<one@example.org>")
        assert server.copies("<one@example.org>") == 1
        server.release("stored")
        assert isinstance(await connection.dot_reply(), Reply)
        connection.abort()


async def test_message_may_be_kept_without_an_answer_and_refused_for_one_recipient() -> None:
    """What makes doubt, and what makes one of three jobs wait."""
    script = {
        "dot": {"reply": None, "then": "close", "server_stores_message": True},
        "dot_by_rcpt": {BOB: "451 4.3.0 later"},
    }
    async with ScriptedRelay(script) as server:
        connection = await opened(server)
        assert str(await sent(connection, BOB)) == "451 4.3.0 later"
        await sent(connection, ANN)
        assert [message.recipients for message in server.messages] == [(ANN,)]


@pytest.mark.parametrize("stage", [Stage.EHLO, Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.BODY, Stage.DOT])
async def test_everybody_can_be_held_at_any_stage(stage: Stage) -> None:
    """Reached and held, then released; the message arrives."""
    async with ScriptedRelay() as server:
        server.hold(stage)

        async def send() -> None:
            connection = await opened(server)
            await sent(connection)
            connection.abort()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await server.reached(stage)
            assert server.messages == []
            server.release(stage)
        assert len(server.messages) == 1


async def test_bad_manners_are_noted() -> None:
    """A NOOP, MAIL inside a transaction, and a lone line feed in a body."""
    async with ScriptedRelay() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"EHLO x\r\nNOOP\r\nMAIL FROM:<a>\r\nMAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\nx\ny\r\n.\r\nQUIT\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        assert [entry["what"] for entry in server.violations] == ["NOOP", "MAIL inside a transaction", "CR or LF alone"]


async def test_relay_can_be_a_process_of_its_own(tmp_path: Path) -> None:
    """It prints its port, logs what it took on, obeys stdin, and ends when stdin does."""
    script, log = tmp_path / "script.json", tmp_path / "log.jsonl"
    script.write_text(json.dumps({"dot": "250 2.0.0 from a file"}))
    arguments = ["-m", "tests.support.relay", "--script", str(script), "--log", str(log), "--hold", "mail"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    relay = relay_settings(int(await process.stdout.readline()))
    process.stdin.write(b"hold dot\nrelease mail\nrelease dot\n")
    connection = await open_connection(relay, tls=None, ehlo_name="x.example")
    assert isinstance(connection, Connection)
    assert str(await sent(connection)) == "250 2.0.0 from a file"
    connection.abort()
    process.stdin.close()
    assert await process.wait() == 0
    stored = [json.loads(line) for line in log.read_text().splitlines() if '"stored"' in line]
    assert [(entry["message_id"], entry["recipients"], entry["bytes"]) for entry in stored] == [
        ("<one@example.org>", [ANN], len(CONTENT))
    ]
