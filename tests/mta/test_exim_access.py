"""A real mail server that can't be used, for a password, a certificate or its absence: jobs wait unharmed, nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mta.conftest import StartPost
from tests.mta.exim import HOST, PASSWORD, Exim
from tests.mta.post import Post
from tests.support.certificates import Authority
from tests.support.process import Daemon

PAUSE_S = 1.5
UNHARMED = "SELECT bool_and(outcome IS NULL AND lease_token IS NULL AND attempt + crashes + doubts = 0) FROM mailslot.jobs"


async def paused(post: Post, worker: Daemon, reason: str) -> None:
    """Wait until the relay is paused for this reason and all jobs are back, unharmed."""
    await worker.event("relay.paused", reason=reason)
    await post.until_true(UNHARMED)
    assert post.exim.logged(" <= ") == []
    assert worker.events("job.sent") == []


async def test_wrong_password_costs_one_log_in_and_no_job_anything(post: Post) -> None:
    """Ten jobs wait and one log-in fails; with the right password, given the operator's way, all are sent. Neither is logged."""
    jobs = [await post.enqueue() for _ in range(10)]
    wrong = await post.worker(password="not the horse", relay={"pause_s": 60.0})
    await paused(post, wrong, "auth_failed")
    assert len(post.exim.logged("535 Incorrect authentication data")) == 1
    assert await wrong.stop() == 0
    await post.worker()
    await post.all_sent_once(jobs)
    said = "".join(str(line) for worker in post.workers for line in worker.lines)
    assert "not the horse" not in said
    assert PASSWORD not in said


async def test_password_that_the_server_learns_is_tried_again(post: Post) -> None:
    """After the pause one log-in tries again; nobody has to restart anything."""
    post.exim.accept_password("another")
    jobs = [await post.enqueue() for _ in range(3)]
    worker = await post.worker(relay={"pause_s": PAUSE_S})
    await paused(post, worker, "auth_failed")
    post.exim.accept_password(PASSWORD)
    await worker.event("relay.resumed")
    await post.all_sent_once(jobs)


def of_a_stranger(exim: Exim, authority: Authority) -> None:
    """Show a certificate for the right name by an authority that the daemon doesn't know."""
    exim.show_certificate(authority, HOST)


def of_another_host(exim: Exim, authority: Authority) -> None:  # noqa: ARG001  the signature of the other
    """Show a certificate of the right authority for another name."""
    exim.show_certificate(exim.authority, "elsewhere.example.org")


@pytest.mark.parametrize("show", [of_a_stranger, of_another_host])
async def test_wrong_certificate_gets_neither_password_nor_mail(
    post: Post, show: Callable[[Exim, Authority], None], tmp_path: Path
) -> None:
    """The handshake is broken off, nothing follows in clear, and all is sent once the certificate is right."""
    exim = post.exim
    exim.kill()
    show(exim, Authority.made(tmp_path))
    exim.configure({"auth_advertise_hosts": "*"})
    exim.start()
    jobs = [await post.enqueue() for _ in range(3)]
    worker = await post.worker(relay={"pause_s": PAUSE_S})
    await paused(post, worker, "tls_failed")
    await exim.has_logged("TLS error on connection")
    assert exim.logged("authenticator failed") == []
    exim.kill()
    exim.show_certificate(exim.authority, HOST)
    exim.start()
    await worker.event("relay.resumed")
    await post.all_sent_once(jobs)


async def test_server_without_encryption_gets_neither_password_nor_mail(start_post: StartPost) -> None:
    """It would take both in clear, which is what a man in the middle makes of any server; it is left after its EHLO."""
    post = start_post(tls_advertise_hosts="", auth_advertise_hosts="*")
    await post.enqueue()
    worker = await post.worker(relay={"pause_s": 60.0})
    await paused(post, worker, "tls_not_offered")


async def test_login_that_is_needed_and_not_configured_pauses_the_relay(post: Post) -> None:
    """Exim asks for authentication at RCPT only, for each recipient: that is about the relay, and no recipient is blamed."""
    jobs = [await post.enqueue(to=["ann@example.org", "unknown@example.org"])]
    worker = await post.worker(relay={"username": "", "pause_s": 60.0})
    await paused(post, worker, "auth_required")
    assert (await post.job(jobs[0]))["verdicts"] == {}
