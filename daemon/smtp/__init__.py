"""Talks to relays: opens connections, keeps them, drives one transaction on each, and knows which relays can be used.

`relays` decides where a connection comes from, `breaker` whether a relay takes work, `pool` keeps what is open, `opening` makes
new connections (the only user of aiosmtplib), `connection` carries a message up to its dot and waits for the answer, `wire` is
bytes out and replies in. All of it returns values: what a relay says or fails to say is never an exception.
"""

from __future__ import annotations

from daemon.smtp.connection import Connection, EnvelopeReport
from daemon.smtp.relays import Relays

__all__ = ["Connection", "EnvelopeReport", "Relays"]
