"""What can be set, with its default, its unit, and the rules between values.

Durations are seconds (`_s`), sizes bytes (`_bytes`). `config.toml` says the same things to people; a test compares both.
What one value may be is said by its type (`values`); what values must be to one another, by `problems_between`. Reading files,
the environment and secrets is `daemon.config`'s work: this module only knows shapes and rules, and a section that is built by
hand is checked by nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from ipaddress import ip_address

import msgspec

from daemon.core.values import (
    AddressOrEmpty,
    Bytes,
    Count,
    CountOrNone,
    DomainOrEmpty,
    Dsn,
    EhloName,
    Function,
    Host,
    MailboxOrEmpty,
    Name,
    NameOrEmpty,
    PoolSize,
    Port,
    Seconds,
    SecondsOrNever,
)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the configuration; unknown keys are errors."""


class Secret:
    """A password that can't be printed by accident: `reveal()` is the only way to read it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself, for the one place that hands it to a driver."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Database(Section, frozen=True):
    """How to reach PostgreSQL."""

    dsn: Dsn = "postgresql:///mailslot"
    password: Secret | None = None
    pool_size: PoolSize = 4
    connect_timeout_s: Seconds = 3.0
    command_timeout_s: Seconds = 5.0
    reconnect_max_s: Seconds = 2.0
    startup_timeout_s: SecondsOrNever = 0.0


class Worker(Section, frozen=True):
    """How much work this process takes, and from where."""

    name: NameOrEmpty = ""
    concurrency: Count = 10
    queues: list[Name] = msgspec.field(default_factory=lambda: ["default"])
    listen: bool = True
    poll_interval_s: Seconds = 1.0
    rescan_interval_s: Seconds = 2.0
    sweep_interval_s: Seconds = 5.0
    drain_timeout_s: SecondsOrNever = 20.0
    reply_grace_s: SecondsOrNever = 60.0


class Lease(Section, frozen=True):
    """What all workers of one database must agree on, and how this one keeps its leases."""

    duration_s: Seconds = 30.0
    heartbeat_s: Seconds = 7.0
    heartbeat_timeout_s: Seconds = 2.5
    margin_s: Seconds = 5.0
    hard_cap_s: Seconds = 1200.0
    takeover_grace_s: Seconds = 10.0
    in_doubt_delay_s: Seconds = 660.0
    max_crashes: Count = 3
    max_doubts: CountOrNone = 2


class Retry(Section, frozen=True):
    """When a job that was put off is tried again."""

    first_s: Seconds = 60.0
    cap_s: Seconds = 4000.0
    greylist_s: Seconds = 300.0


class Mail(Section, frozen=True):
    """What every message gets that its job doesn't name."""

    from_: MailboxOrEmpty = msgspec.field(default="", name="from")
    envelope_from: AddressOrEmpty = ""
    message_id_domain: DomainOrEmpty = ""
    max_message_bytes: Bytes = 26_214_400
    max_payload_bytes: Bytes = 41_943_040


class Tls(StrEnum):
    """How a relay's connection is encrypted; there is no opportunistic mode, which a man in the middle strips."""

    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"


class Relay(Section, frozen=True):
    """One SMTP server that mail is handed to."""

    name: Name
    host: Host
    port: Port = 587
    tls: Tls = Tls.STARTTLS
    ca_file: str = ""
    username: str = ""
    password: Secret | None = None
    allow_auth_without_tls: bool = False
    ehlo_name: EhloName = ""
    connections: Count = 20
    messages_per_connection: Count = 50
    max_age_s: Seconds = 300.0
    idle_s: Seconds = 5.0
    connect_timeout_s: Seconds = 30.0
    command_timeout_s: Seconds = 300.0
    data_timeout_s: Seconds = 120.0
    body_timeout_s: Seconds = 180.0
    dot_timeout_s: Seconds = 600.0
    quit_timeout_s: Seconds = 2.0
    probe_first_s: Seconds = 0.5
    probe_max_s: Seconds = 4.0
    pause_s: Seconds = 300.0


class LogFormat(StrEnum):
    """`auto` is console on a terminal and JSON lines elsewhere."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """Least severe level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Section, frozen=True):
    """What is written to standard output."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO
    pii: bool = False


class Settings(Section, frozen=True):
    """The whole configuration."""

    database: Database = msgspec.field(default_factory=Database)
    worker: Worker = msgspec.field(default_factory=Worker)
    lease: Lease = msgspec.field(default_factory=Lease)
    retry: Retry = msgspec.field(default_factory=Retry)
    mail: Mail = msgspec.field(default_factory=Mail)
    relay: list[Relay] = msgspec.field(default_factory=list)
    handlers: dict[Name, Function] = msgspec.field(default_factory=dict)
    log: Log = msgspec.field(default_factory=Log)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: the key's path, such as `relay[0].port`, and a sentence that says what to do."""

    path: str
    message: str
    concerns: tuple[str, ...] = ()
    """The other keys that the rule looks at: it says nothing sensible while one of them is wrong."""


def problems_between(settings: Settings, *, sends: bool = False) -> Iterator[Problem]:
    """Yield what is wrong with values that are each of the right kind.

    The two inequalities of the lease are the protocol's: three heartbeats must fit into the trust window, and nobody may call a
    mark overdue while its answer can still come. With `sends`, what sending needs must be there as well: a relay, or at least a
    handler of the operator's own, and the password of every relay that has a username.
    """
    yield from _problems_of_lease(settings)
    yield from _problems_of_work(settings)
    yield from _repeated("relay", "name", (relay.name for relay in settings.relay))
    for index, relay in enumerate(settings.relay):
        yield from _problems_of_relay(f"relay[{index}]", relay)
        if sends and relay.username and relay.password is None:
            yield Problem(
                f"relay[{index}].password",
                "is missing, though a username is set: name a password_file, or provide a credential",
                (f"relay[{index}].username",),
            )
    if sends and not settings.relay and not settings.handlers:
        yield Problem(
            "relay", "no relay is configured, so no mail can be sent: add a [[relay]] with a name and a host", ("handlers",)
        )


def _problems_of_lease(settings: Settings) -> Iterator[Problem]:
    lease, database = settings.lease, settings.database
    trust_s = lease.duration_s - lease.margin_s
    if not 3 * lease.heartbeat_s + lease.heartbeat_timeout_s < trust_s:
        yield Problem(
            "lease.heartbeat_s",
            "three heartbeats and one heartbeat_timeout_s must take less than lease.duration_s - lease.margin_s, or two lost "
            f"heartbeats cost every lease: 3 x {lease.heartbeat_s:g} + {lease.heartbeat_timeout_s:g} isn't below {trust_s:g}",
            ("lease.heartbeat_timeout_s", "lease.duration_s", "lease.margin_s"),
        )
    reply_s = max((relay.dot_timeout_s for relay in settings.relay), default=0.0)
    overdue_s = reply_s + lease.duration_s + lease.takeover_grace_s + lease.margin_s
    if lease.in_doubt_delay_s < overdue_s:
        yield Problem(
            "lease.in_doubt_delay_s",
            "must be at least the largest dot_timeout_s + lease.duration_s + lease.takeover_grace_s + lease.margin_s, or a job "
            f"is called in doubt while its answer can still come: {lease.in_doubt_delay_s:g} is less than {overdue_s:g}",
            (
                *("lease.duration_s", "lease.takeover_grace_s", "lease.margin_s"),
                *(f"relay[{index}].dot_timeout_s" for index in range(len(settings.relay))),
            ),
        )
    return_s = database.reconnect_max_s + database.connect_timeout_s
    if not lease.takeover_grace_s > return_s:
        yield Problem(
            "lease.takeover_grace_s",
            "must be more than database.reconnect_max_s + database.connect_timeout_s, or a restart of the database is blamed on "
            f"workers that are still reconnecting: {lease.takeover_grace_s:g} isn't above {return_s:g}",
            ("database.reconnect_max_s", "database.connect_timeout_s"),
        )
    if lease.hard_cap_s < lease.duration_s:
        yield Problem(
            "lease.hard_cap_s", f"must be at least lease.duration_s, which is {lease.duration_s:g}", ("lease.duration_s",)
        )


def _problems_of_work(settings: Settings) -> Iterator[Problem]:
    if not settings.worker.queues:
        yield Problem("worker.queues", "name at least one queue")
    yield from _repeated("worker.queues", "", settings.worker.queues)
    if settings.retry.cap_s < settings.retry.first_s:
        yield Problem("retry.cap_s", f"must be at least retry.first_s, which is {settings.retry.first_s:g}", ("retry.first_s",))


def _problems_of_relay(path: str, relay: Relay) -> Iterator[Problem]:
    authenticates = bool(relay.username) or relay.password is not None
    if relay.tls is Tls.NONE and authenticates and not (relay.allow_auth_without_tls or is_loopback(relay.host)):
        yield Problem(
            f"{path}.tls",
            f'would send the password to {relay.host} for everybody on the way to read: set tls to "starttls" or "implicit", '
            "or allow_auth_without_tls = true if the way is trusted",
            tuple(f"{path}.{key}" for key in ("host", "username", "password", "allow_auth_without_tls")),
        )
    if relay.tls is Tls.NONE and relay.ca_file:
        yield Problem(f"{path}.ca_file", 'has no meaning with tls = "none"', (f"{path}.tls",))
    if relay.password is not None and not relay.username:
        yield Problem(f"{path}.username", "is missing, though a password is set", (f"{path}.password",))
    if relay.probe_max_s < relay.probe_first_s:
        message = f"must be at least probe_first_s, which is {relay.probe_first_s:g}"
        yield Problem(f"{path}.probe_max_s", message, (f"{path}.probe_first_s",))


def _repeated(path: str, key: str, names: Iterable[str]) -> Iterator[Problem]:
    for name, uses in Counter(names).items():
        if uses > 1:
            yield Problem(path, f'{key} "{name}" is given {uses} times; once is enough'.lstrip())


def is_loopback(host: str) -> bool:
    """Say whether a host's name means this machine, so that nobody else is on the way."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
