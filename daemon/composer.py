"""From a job to the message that goes out: composed, and signed where the configuration wants it.

Owns what composing needs beside the job: the defaults, the templates that hold now, the signer. What takes long is done in a
thread, for the loop must keep coming round. Used by an attempt before it takes a connection.
"""

from __future__ import annotations

import asyncio
from functools import partial

from daemon.core import settings
from daemon.core.job import Job
from daemon.core.message import Message, Unbuildable, compose
from daemon.dkim import Signer
from daemon.templates import Library

LARGE_BYTES = 262_144
"""Payloads from here on take tens of milliseconds to compose and prove."""
LARGE_DATA_BYTES = 16_384
"""The same where a template may loop over what is in them."""


class Composer:
    """Makes messages; holds nothing of a job between calls."""

    def __init__(self, mail: settings.Mail, library: Library, signer: Signer | None) -> None:
        self._mail = mail
        self._library = library
        self._signer = signer

    async def __call__(self, job: Job, payload: str) -> Message | Unbuildable:
        """Return the job's message, or why there can't be one. Cancelling is safe: a thread that is at it ends for nothing."""
        templates = self._library.current
        if job.payload_bytes < (LARGE_DATA_BYTES if templates else LARGE_BYTES):
            message = compose(payload, uid=job.uid, created_at=job.created_at, defaults=self._mail, templates=templates)
        else:
            build = partial(compose, payload, uid=job.uid, created_at=job.created_at, defaults=self._mail, templates=templates)
            message = await asyncio.to_thread(build)
        if self._signer is None or isinstance(message, Unbuildable):
            return message
        return await self._signer.sign(message)
