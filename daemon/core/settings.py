"""What can be set, with its default, its unit, and the rules between values.

Durations are seconds (`_s`), sizes bytes (`_bytes`). `config.toml` says the same things to people; a test compares both.
What one value may be is said by its type (`values`); what values must be to one another, by `problems`. Reading files,
the environment and secrets is `daemon.config`'s work: this module only knows shapes and rules, and a section that is built by
hand is checked by nobody.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from daemon.core.smtp import Stage
from daemon.core.values import (
    AddressOrEmpty,
    Bytes,
    Count,
    CountOrNone,
    DomainOrEmpty,
    Dsn,
    DsnNotify,
    EhloName,
    EnhancedCode,
    ErrorCode,
    Function,
    HeaderName,
    Host,
    MailboxOrEmpty,
    Name,
    NameOrEmpty,
    PerSecond,
    PoolSize,
    Port,
    Seconds,
    SecondsOrNever,
    SelectorOrEmpty,
    VerpSeparator,
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
    function_timeout_s: Seconds = 600.0


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
    dsn_notify: DsnNotify = ""
    max_message_bytes: Bytes = 26_214_400
    max_payload_bytes: Bytes = 41_943_040
    verp: bool = False
    verp_separator: VerpSeparator = "+"
    allow_headers: list[HeaderName] = msgspec.field(default_factory=list)
    deny_headers: list[HeaderName] = msgspec.field(default_factory=list)


class Templates(Section, frozen=True):
    """Where the operator's templates are; none without a folder."""

    dir: str = ""


SIGNED = (
    *("From", "To", "Cc", "Subject", "Date", "Message-ID", "Reply-To", "MIME-Version", "Content-Type"),
    *("List-Unsubscribe", "List-Unsubscribe-Post"),
)
"""What a signature covers: who, what and when, and what must not be added by anybody on the way."""


class Dkim(Section, frozen=True):
    """Whether messages are signed here, and how; usually the relay does it."""

    domain: DomainOrEmpty = ""
    selector: SelectorOrEmpty = ""
    private_key_file: str = ""
    headers: list[HeaderName] = msgspec.field(default_factory=lambda: [*SIGNED])


class Tls(StrEnum):
    """How a relay's connection is encrypted; there is no opportunistic mode, which a man in the middle strips."""

    IMPLICIT = "implicit"
    STARTTLS = "starttls"
    NONE = "none"


class Relay(Section, frozen=True):
    """One SMTP server that mail is handed to."""

    name: Name
    host: Host
    queues: list[Name] = msgspec.field(default_factory=list)
    port: Port = 587
    tls: Tls = Tls.STARTTLS
    ca_file: str = ""
    username: str = ""
    password: Secret | None = None
    allow_auth_without_tls: bool = False
    ehlo_name: EhloName = ""
    rate_per_s: PerSecond = 0.0
    burst: PerSecond = 0.0
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


class RuleVerdict(StrEnum):
    """What a rule of the operator can say: whether a message was sent is the relay's answer alone to tell."""

    LATER = "later"
    REJECTED = "rejected"
    FREE = "free"
    PAUSE = "pause"


class RuleScope(StrEnum):
    """Whom or what a rule is about; `auto` follows from its verdict and stages."""

    AUTO = "auto"
    RECIPIENT = "recipient"
    MESSAGE = "message"
    RELAY = "relay"


class Rule(Section, frozen=True):
    """What certain 4yz and 5yz replies mean, ahead of what `verdicts` knows."""

    name: Name
    verdict: RuleVerdict
    stages: list[Stage] = msgspec.field(default_factory=list)
    codes: list[ErrorCode] = msgspec.field(default_factory=list)
    enhanced: list[EnhancedCode] = msgspec.field(default_factory=list)
    text: str = ""
    scope: RuleScope = RuleScope.AUTO
    reason: NameOrEmpty = ""
    wait_s: SecondsOrNever = 0.0
    hint: bool = True


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
    templates: Templates = msgspec.field(default_factory=Templates)
    dkim: Dkim = msgspec.field(default_factory=Dkim)
    relay: list[Relay] = msgspec.field(default_factory=list)
    rule: list[Rule] = msgspec.field(default_factory=list)
    handlers: dict[Name, Function] = msgspec.field(default_factory=dict)
    log: Log = msgspec.field(default_factory=Log)


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: the key's path, such as `relay[0].port`, and a sentence that says what to do."""

    path: str
    message: str
    concerns: tuple[str, ...] = ()
    """The other keys that the rule looks at: it says nothing sensible while one of them is wrong."""
