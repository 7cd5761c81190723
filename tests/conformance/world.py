"""What surrounds a case: its relays as a daemon can reach them, keys and certificates, and the daemon's configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.conformance import limits
from tests.conformance.behaviour import Plan, RelayPlan
from tests.conformance.casefile import CannotExpressError
from tests.conformance.jobs import USERNAME, Work
from tests.support.certificates import Authority
from tests.support.relay import ScriptedRelay

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
SELECTOR = "conformance"


@dataclass
class Keys:
    """Certificates and keys, made once for all cases."""

    folder: Path

    @cached_property
    def authority(self) -> Authority:
        """The authority that every daemon trusts."""
        return Authority.made(self.folder)

    @cached_property
    def dkim_file(self) -> Path:
        """A private key that signs mail."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        file = self.folder / "dkim.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        file.chmod(0o600)
        return file

    def server(self, certificate: str) -> ssl.SSLContext:
        """Return what a relay shows: by the words of the case, the right certificate or a wrong one."""
        words = certificate.lower()
        named = re.search(r"\bfor (\S+)", words)
        if "expired" in words:
            return self.authority.server(named[1] if named else "localhost", expired=True)
        if re.search("self.?signed|unknown|untrusted", words):
            stranger = self.folder / "stranger"
            stranger.mkdir(exist_ok=True)
            return Authority.made(stranger).server()
        if named:
            return self.authority.server(named[1])
        if words in {"", "valid", "good"}:
            return self.authority.server()
        raise CannotExpressError(f"smtp_behaviour.certificate: {certificate}")


@dataclass
class Place:
    """Where one relay is."""

    plan: RelayPlan
    relay: ScriptedRelay
    name: str
    comes_up: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def host(self) -> str:
        """The name that the daemon knows it by."""
        return f"{self.name}.conformance.test" if self.plan.dns else "localhost"


@contextlib.asynccontextmanager
async def placed(plan: RelayPlan, name: str, tls: ssl.SSLContext | None, tasks: asyncio.TaskGroup) -> AsyncIterator[Place]:
    """Hold a place with its relay: listening, or not yet, or never."""
    relay = ScriptedRelay(plan.script, tls=tls, implicit_tls=plan.tls == "implicit", narrow=plan.narrow)
    place = Place(plan, relay, name)
    async with contextlib.AsyncExitStack() as stack:
        if plan.blackhole:
            relay.port = stack.enter_context(_blackhole())
        elif plan.refuses_for_s is None:
            relay.port = stack.enter_context(_taken_port())[1]
        elif plan.refuses_for_s:
            taken, relay.port = stack.enter_context(_taken_port())
            opening = tasks.create_task(_open_later(place, taken, plan.refuses_for_s, stack))
            stack.callback(opening.cancel)
        else:
            await stack.enter_async_context(relay)
        yield place


@contextlib.contextmanager
def _taken_port() -> Any:  # noqa: ANN401  an iterator of a socket and its port
    """Hold a port at which nobody listens."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield taken, taken.getsockname()[1]


@contextlib.contextmanager
def _blackhole() -> Any:  # noqa: ANN401  an iterator of a port
    """Hold a port whose queue of connections is full, so that the kernel answers no more of them."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)  # noqa: FBT003  the socket's own
            client.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


async def _open_later(place: Place, taken: socket.socket, after_s: float, stack: contextlib.AsyncExitStack) -> None:
    await asyncio.sleep(after_s)
    taken.close()
    await stack.enter_async_context(place.relay)
    place.comes_up.set()


def sections(plan: Plan, work: Work, places: list[Place], keys: Keys) -> dict[str, Any]:
    """Return the configuration of the case's daemons."""
    made: dict[str, Any] = {
        "database": dict(limits.DATABASE),
        "lease": dict(limits.LEASE),
        "worker": {**limits.WORKER, "concurrency": plan.concurrency},
        "mail": work.mail,
        "templates": {"dir": str(TEMPLATES)},
        "relay": [_relay_section(place, work, keys) for place in places],
    }
    if work.signs:
        made["dkim"] = {"domain": "example.org", "selector": SELECTOR, "private_key_file": str(keys.dkim_file)}
    return made


def _relay_section(place: Place, work: Work, keys: Keys) -> dict[str, Any]:
    plan = place.plan
    section = {**limits.RELAY, "name": place.name, "host": place.host, "port": place.relay.port, "tls": plan.tls}
    section |= {**plan.settings, **work.relay}
    if section["tls"] != "none":
        section["ca_file"] = keys.authority.ca_file
    if plan.needs_login:
        section.setdefault("username", USERNAME)
    return section


def environment(work: Work, places: list[Place], root: Path) -> Mapping[str, str]:
    """Return the variables of the case's daemons: passwords, and a resolver that fails where the case says so."""
    made = {}
    for index, place in enumerate(places):
        if place.plan.needs_login or work.relay.get("username"):
            made[f"MAILSLOT_RELAY__{index}__PASSWORD"] = work.password
    plans = {place.host: list(place.plan.dns) for place in places if place.plan.dns}
    if plans:
        made |= {"CONFORMANCE_DNS": json.dumps(plans), "PYTHONPATH": f"{HERE / 'resolver'}:{root}"}
    return made
