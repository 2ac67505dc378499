"""How long a worker that lost its learner waits between its attempts to dial it again."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["ATTEMPT_SECONDS", "LEAST_SECONDS", "LONGEST_PAUSE", "redial_pauses"]

ATTEMPT_SECONDS = 10.0  # for one attempt, so that a worker does not wait for a learner that hangs while its successor is ready
LEAST_SECONDS = 0.1  # for one attempt, also where the time is nearly over
FIRST_PAUSE, FACTOR, LONGEST_PAUSE = 0.05, 1.6, 1.0  # seconds


def redial_pauses() -> Iterator[float]:
    """Seconds between attempts, without an end: each is 1.6 times the one before, up to one second, and up to 30 % shorter or longer than that.

    Workers that lost one learner at the same moment must not return at the same moment. A link that the learner ends within `LONGEST_PAUSE` counts as
    a failed attempt: one that lets a worker in and sends it away at once, such as for lack of memory, is not dialled all the time.
    """
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.7, 1.3)
        pause = min(pause * FACTOR, LONGEST_PAUSE)
