"""Opens connections: name, TCP, greeting, EHLO, TLS, AUTH, by aiosmtplib; then the transport is ours.

Answers: is there a connection to this relay that a transaction can begin on, and if not, at which stage did it end and why?

Promises:
- What goes wrong is returned as a `Report`, never raised; only cancellation passes through, and leaves no open socket.
- TLS is what the settings say. A relay that doesn't offer STARTTLS where it is required gets nothing more from us.
- One AUTH command for each opening, PLAIN or else LOGIN: three wrong tries at once lock accounts. No password leaves in clear
  unless the settings allow it or the relay is on this host.
- One time limit for all of it, `connect_timeout_s`.

aiosmtplib serves up to here. It isn't used for transactions: it raises the same exceptions before and after the dot and writes
body and dot at once. What we rely on in it is pinned by contract tests.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from typing import Final, cast

import aiosmtplib

from daemon.core import settings
from daemon.core.errors import ConfigError
from daemon.core.reply import clean, reply_of
from daemon.core.smtp import Fault, Reply, Report, Stage
from daemon.smtp.connection import Connection
from daemon.smtp.wire import Wire

_NAME_TIMEOUT_S: Final = 5.0
_LOCAL_LITERAL: Final = "[127.0.0.1]"
_TRANSIENT_NAME_ERRORS: Final = frozenset({socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_MEMORY})
_HELO_CODES: Final = (500, 502)


def tls_context(relay: settings.Relay) -> ssl.SSLContext | None:
    """Load what this relay's certificate is checked against; None without TLS. Reads files: call it once, at the start.

    Raises:
        ConfigError: `ca_file` can't be read, or holds no certificate.
    """
    if relay.tls is settings.Tls.NONE:
        return None
    try:
        context = ssl.create_default_context(cafile=relay.ca_file or None)
    except OSError as error:
        problem = settings.Problem(f"relay.{relay.name}.ca_file", f"no certificates can be read from {relay.ca_file}: {error}")
        raise ConfigError([problem]) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


async def own_name() -> str:
    """Return the name to say EHLO with where none is configured: this host's full name, or an address literal if it has none.

    Looked up once, at the start: aiosmtplib would ask the resolver for each connection.
    """
    name = ""
    try:
        async with asyncio.timeout(_NAME_TIMEOUT_S):
            name = await asyncio.to_thread(socket.getfqdn)
    except TimeoutError:
        pass
    usable = name.isascii() and name.isprintable() and " " not in name and "." in name
    return name if usable and name != "localhost.localdomain" else _LOCAL_LITERAL


async def open_connection(relay: settings.Relay, *, tls: ssl.SSLContext | None, ehlo_name: str) -> Connection | Report:
    """Open a connection and make it ready for its first MAIL. Cancelling is safe."""
    return await _Opening(relay, tls, ehlo_name).run()


class _Client(aiosmtplib.SMTP):
    """Remembers whether there ever was a connection: when it closes, being cancelled or not, it forgets that itself."""

    reached = False

    def close(self) -> None:
        self.reached = self.reached or self.transport is not None
        super().close()


class _Opening:
    """One try; knows its stage at every moment."""

    def __init__(self, relay: settings.Relay, tls: ssl.SSLContext | None, ehlo_name: str) -> None:
        self._relay = relay
        self._stage = Stage.CONNECT
        self._detail = ""
        self._transport: asyncio.BaseTransport | None = None
        self._client = _Client(
            hostname=relay.host,
            port=relay.port,
            local_hostname=ehlo_name,
            # No limit for single steps: with one, Python 3.11's wait_for can swallow a cancel, and a drain would go unheard.
            timeout=None,
            use_tls=relay.tls is settings.Tls.IMPLICIT,
            start_tls=False,
            tls_context=tls,
        )

    async def run(self) -> Connection | Report:
        opened: Connection | Reply | Fault | None = None
        try:
            opened = await self._within_limit() or self._hand_over()
        finally:
            if not isinstance(opened, Connection):
                self._drop()
        return opened if isinstance(opened, Connection) else Report(self._relay.name, self._stage, opened, detail=self._detail)

    async def _within_limit(self) -> Reply | Fault | None:
        try:
            async with asyncio.timeout(self._relay.connect_timeout_s):
                return await self._stages()
        except TimeoutError:
            if self._stage is Stage.CONNECT and self._client.reached:
                self._stage = Stage.GREETING
            return Fault.TIMEOUT

    async def _stages(self) -> Reply | Fault | None:
        """Go through the stages; None when all are done, else what the present stage ended with."""
        try:
            return await self._connect() or await self._encrypt() or await self._log_in()
        except aiosmtplib.SMTPResponseException as error:
            return Fault.GARBAGE if error.code < 0 else reply_of(error.code, error.message.split("\n"))
        except (OSError, UnicodeError) as error:
            self._detail = clean(str(error))
            return _network_fault(error)

    async def _connect(self) -> Fault | None:
        try:
            await self._client.connect()
        except aiosmtplib.SMTPResponseException:
            self._stage = Stage.GREETING
            raise
        except aiosmtplib.SMTPConnectError as error:
            cause = error.__cause__ or error
            if isinstance(cause, aiosmtplib.SMTPException):
                self._stage = Stage.GREETING
            elif isinstance(cause, ssl.SSLError):
                self._stage = Stage.TLS
            self._detail = clean(str(cause))
            return _network_fault(cause)
        self._transport = self._client.transport
        await self._greet()
        return None

    async def _greet(self) -> None:
        self._stage = Stage.EHLO
        try:
            await self._client.ehlo()
        except aiosmtplib.SMTPHeloError as error:
            needs_extensions = self._relay.tls is settings.Tls.STARTTLS or self._relay.username
            if error.code not in _HELO_CODES or needs_extensions:
                raise
            await self._client.helo()

    async def _encrypt(self) -> Fault | None:
        if self._relay.tls is not settings.Tls.STARTTLS:
            return None
        self._stage = Stage.TLS
        if not self._client.supports_extension("starttls"):
            return Fault.TLS_NOT_OFFERED
        await self._client.starttls()
        self._transport = self._client.transport
        # What was offered in clear may have been written by anybody (RFC 3207 4.2).
        await self._greet()
        return None

    async def _log_in(self) -> Fault | None:
        username = self._relay.username
        if not username:
            return None
        self._stage = Stage.AUTH
        if not self._may_show_password():
            return Fault.TLS_NOT_OFFERED
        password = self._relay.password.reveal() if self._relay.password else ""
        offered = self._client.server_auth_methods
        if "plain" in offered:
            await self._client.auth_plain(username, password)
        elif "login" in offered:
            await self._client.auth_login(username, password)
        else:
            return Fault.AUTH_NOT_OFFERED
        return None

    def _may_show_password(self) -> bool:
        encrypted = self._relay.tls is not settings.Tls.NONE
        return encrypted or self._relay.allow_auth_without_tls or _loopback(self._relay.host)

    def _hand_over(self) -> Connection | Fault:
        transport = self._client.transport
        if transport is None or transport.is_closing():
            return Fault.CLOSED
        return Connection(self._relay, Wire(cast("asyncio.Transport", transport)), dict(self._client.esmtp_extensions))

    def _drop(self) -> None:
        self._client.close()
        if self._transport is not None:
            cast("asyncio.Transport", self._transport).abort()  # uvloop's transports are none by their class


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_NETWORK_FAULTS: Final = (
    ((TimeoutError, ConnectionAbortedError), Fault.TIMEOUT),
    (ConnectionRefusedError, Fault.REFUSED),
    ((ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError), Fault.CLOSED),
    (ssl.SSLError, Fault.TLS_FAILED),
    (UnicodeError, Fault.NAME_UNKNOWN),
)
"""The first that fits: aiosmtplib's exceptions are TimeoutErrors and ConnectionErrors too."""


def _network_fault(error: BaseException) -> Fault:
    if isinstance(error, socket.gaierror):
        return Fault.NAME_UNAVAILABLE if error.errno in _TRANSIENT_NAME_ERRORS else Fault.NAME_UNKNOWN
    return next((fault for kind, fault in _NETWORK_FAULTS if isinstance(error, kind)), Fault.UNREACHABLE)
