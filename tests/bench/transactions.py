"""The limit by SMTP: the daemon's own transactions without its queue: `python -m tests.bench.transactions --config F ..`.

Some coroutines send the same finished bytes over and over, over the daemon's own connections, on its own event loop. What is left
out: the job and everything that is done for it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from daemon import config
from daemon.core.message import Message, compose
from daemon.core.settings import Settings
from daemon.loop import new_event_loop
from daemon.ports import Ports
from daemon.smtp.connection import Connection
from daemon.smtp.relays import Relays
from tests.bench import work
from tests.bench.message import AT, UID


class Senders:
    """Coroutines that share a number of mails."""

    def __init__(self, settings: Settings, mails: int) -> None:
        ports = Ports()
        composed = compose(json.dumps(work.payload(1)), uid=UID, created_at=AT, defaults=settings.mail)
        assert isinstance(composed, Message), composed
        self._message = composed
        self._left = mails
        self._relays = Relays(settings.relay, boottime_s=ports.boottime_s, chance=ports.number)

    async def run(self, coroutines: int) -> None:
        """Send all mails."""
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(self._relays.run())
            async with asyncio.TaskGroup() as senders:
                for _ in range(coroutines):
                    senders.create_task(self._send_all())
            keeping.cancel()
        self._relays.close()

    async def _send_all(self) -> None:
        while self._left > 0:
            self._left -= 1
            connection = await self._relays.check_out(work.QUEUE)
            assert isinstance(connection, Connection), connection
            await self._send(connection)
            self._relays.check_in(connection)

    async def _send(self, connection: Connection) -> None:
        message = self._message
        envelope = await connection.envelope(
            message.envelope_from, message.recipients, size=len(message.content), smtputf8=message.needs_smtputf8
        )
        assert envelope.ready, envelope
        connection.send_body(message.content)
        early = await connection.drained()
        assert early is None, early
        assert connection.write_dot()
        reply = await connection.dot_reply()
        assert not isinstance(reply, str), reply


async def measure(settings: Settings, coroutines: int, mails: int) -> dict[str, float]:
    """Send the mails, and return the seconds that passed and those of CPU."""
    senders = Senders(settings, mails)
    begun, used = time.perf_counter(), time.process_time()
    await senders.run(coroutines)
    return {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - used}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Send mails by the daemon's own SMTP code, without its queue.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--coroutines", type=int, required=True)
    parser.add_argument("--mails", type=int, required=True)
    arguments = parser.parse_args()
    settings = config.load(arguments.config, {}, {}, sends=True)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(measure(settings, arguments.coroutines, arguments.mails))))


if __name__ == "__main__":
    main()
