"""What a real mail server says to a message or a recipient, and what becomes of the job."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest

from tests.mta.conftest import StartPost
from tests.mta.exim import GREYLIST_S, HARD_LIMIT, SIZE_LIMIT
from tests.mta.post import Post


def attachment(size: int) -> list[Mapping[str, str]]:
    """Return a file that makes a mail of somewhat more than so many bytes."""
    return [{"filename": "large.bin", "content_b64": base64.b64encode(b"x" * (size * 3 // 4)).decode()}]


async def test_greylisted_mail_waits_as_long_as_it_is_told_and_arrives(post: Post) -> None:
    """The first try is put off for the seconds that the server names, more than our own wait; the second one is accepted."""
    worker = await post.worker()
    job_id = await post.enqueue(to=["grey@example.org"])
    put_off = await worker.event("job.deferred", job_id=job_id)
    assert (put_off["reason"], put_off["retry_in_s"] >= GREYLIST_S) == ("greylisted", True)
    job = await post.finished(job_id)
    assert (job["outcome"], job["attempt"], job["doubts"], job["crashes"]) == ("sent", 2, 0, 0)
    assert await post.copies(job_id) == ["grey@example.org"]
    assert len(post.exim.logged("temporarily rejected RCPT <grey@example.org>")) == 1


async def test_refused_recipient_is_dead_at_once(post: Post) -> None:
    """One try, and the reason says whose fault it is."""
    await post.worker()
    job_id = await post.enqueue(to=["unknown@example.org"])
    job = await post.finished(job_id)
    assert (job["outcome"], job["reason"], job["attempt"]) == ("dead", "mailbox_unknown", 1)
    assert "5.1.1 no such user" in job["reply"]
    assert await post.copies(job_id) == []


async def test_each_recipient_has_a_verdict_of_its_own(post: Post) -> None:
    """Of four, two get the mail at once, one after the greylist, one never; nobody gets it twice, and it is the same mail."""
    await post.worker()
    everybody = ["ann@example.org", "grey@example.org", "unknown@example.org", "bob@example.org"]
    job_id = await post.enqueue(to=everybody[:2], cc=everybody[2:3], bcc=everybody[3:])
    job = await post.finished(job_id)
    assert (job["outcome"], job["attempt"]) == ("sent", 2)
    assert job["verdicts"] == dict(zip(everybody, ("sent", "sent", "dead", "sent"), strict=True))
    assert await post.copies(job_id) == ["ann@example.org", "bob@example.org", "grey@example.org"]
    assert len({copy.content.partition(b"Date:")[2] for copy in post.exim.delivered}) == 1
    assert len(post.exim.logged("rejected RCPT <unknown@example.org>")) == 1


async def test_message_that_is_put_off_at_the_dot_is_sent_once(post: Post) -> None:
    """451 to the dot is an answer: no doubt, a second try, one copy for each."""
    await post.worker()
    job_id = await post.enqueue(to=["busy@example.org", "ann@example.org"])
    job = await post.finished(job_id)
    assert (job["outcome"], job["attempt"], job["doubts"]) == ("sent", 2, 0)
    assert await post.copies(job_id) == ["ann@example.org", "busy@example.org"]


async def test_message_above_the_announced_size_is_never_offered(post: Post) -> None:
    """EHLO said how large a message may be: the job is dead without a MAIL, and its neighbour goes on."""
    await post.worker()
    large = await post.enqueue(attachments=attachment(SIZE_LIMIT))
    small = await post.enqueue()
    job = await post.finished(large)
    assert (job["outcome"], job["reason"]) == ("dead", "message_too_large")
    assert (await post.finished(small))["outcome"] == "sent"
    assert post.exim.logged("rejected") == []


async def test_message_that_is_too_large_at_the_dot_is_dead(post: Post) -> None:
    """552 to the dot: one try, no copy."""
    await post.worker()
    job_id = await post.enqueue(attachments=attachment(HARD_LIMIT))
    job = await post.finished(job_id)
    assert (job["outcome"], job["reason"], job["attempt"], job["doubts"]) == ("dead", "message_too_large", 1, 0)
    assert await post.copies(job_id) == []
    assert len(post.exim.logged("rejected after DATA: 552")) == 1


async def test_more_recipients_than_one_transaction_takes(start_post: StartPost) -> None:
    """A server that takes three recipients a message gets eight in three transactions; each has one copy."""
    post = start_post(recipients_max="3")
    await post.worker()
    everybody = [f"guest{number}@example.org" for number in range(8)]
    job_id = await post.enqueue(to=everybody)
    assert (await post.finished(job_id))["outcome"] == "sent"
    assert await post.copies(job_id) == everybody
    assert len(post.exim.logged(" <= ")) == 3


LIMITS = {
    "messages": ({"smtp_accept_max_per_connection": "3"}, "too many messages in one connection"),
    "connections": ({"smtp_accept_max": "2"}, "too many connections"),
    "connections_of_one_host": ({"smtp_accept_max_per_host": "2"}, "too many connections from that IP address"),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_limits_of_the_server_cost_no_job_anything(start_post: StartPost, limit: str) -> None:
    """A server that takes two connections at a time, or three messages on each, gets forty jobs: one attempt, one copy each."""
    options, refusal = LIMITS[limit]
    post = start_post(**options)
    jobs = [await post.enqueue() for _ in range(40)]
    await post.worker(worker={"concurrency": 8}, relay={"probe_first_s": 0.1, "probe_max_s": 0.3})
    await post.all_sent_once(jobs)
    assert post.exim.logged(refusal) != []
