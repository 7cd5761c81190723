"""When a job that was put off is tried again.

Each try that says something about the message counts, whatever wait the relay names, so max_attempts ends it; tries that say
something about the relay alone don't count, and expires_at ends them. A wait is never shortened: a job whose next try would come
after expires_at isn't tried again, and is swept as expired when that time has come, since until then a person may still move it.
"""

from __future__ import annotations

from daemon.core.settings import Retry

LARGEST_DOUBLING = 32


def backoff_s(attempt: int, retry: Retry, chance: float) -> float:
    """Return the delay after the given attempt (1, 2, ..): doubling from `first_s`, capped, with full jitter.

    `chance` is a random number in [0, 1). A tenth of the first delay is the floor, so that jitter never means "at once". The
    exponent is bounded before it is used: attempt 2**31 costs nothing and overflows nothing.
    """
    ceiling = min(retry.cap_s, retry.first_s * 2.0 ** min(max(attempt, 1) - 1, LARGEST_DOUBLING))
    return max(min(retry.first_s, ceiling) / 10, ceiling * chance)


def dropped_s(times: int) -> float:
    """Return the pause after a relay dropped the connection on the same message `times` times in a row: 1 s, doubling to 60 s.

    Not the message's fault as far as anybody said, so no attempt is used up; but a content filter that crashes on one address
    must not be asked each second until the job expires.
    """
    return min(60.0, 2.0 ** min(times - 1, LARGEST_DOUBLING))


def reconnect_s(failures: int, largest_s: float, chance: float) -> float:
    """Return the pause before the next try to reach something that failed `failures` times in a row.

    The first try again comes at once but for jitter (a tenth of a second at most): others wait for us. Then doubling, capped at
    `largest_s`, never less than half of the ceiling.
    """
    ceiling = min(largest_s, 0.1 * 2.0 ** min(max(failures, 1) - 1, LARGEST_DOUBLING))
    return ceiling * (0.5 + chance / 2)
