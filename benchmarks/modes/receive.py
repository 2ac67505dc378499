"""The measured learner: take a batch, read one element per leaf, count. The same for everybody."""

from __future__ import annotations

from time import perf_counter

from benchmarks.adapters.base import Learner
from benchmarks.payloads import Tree


class WrongSample(Exception):
    """A system delivered something that nobody sent."""


def receive(learner: Learner, seconds: float) -> tuple[int, float]:
    """Take batches for ``seconds``: the samples taken, and the time from first to last.

    Begins after a batch of its own, so that the clock starts on a batch boundary.
    """
    sample, touch, n = learner.sample, learner.touch, learner.batch_size
    touch(sample())
    count = 0
    start = now = perf_counter()
    end = start + seconds
    while now < end:
        touch(sample())
        count += n
        now = perf_counter()
    return count, now - start


def check(learner: Learner) -> None:
    """Take one batch and compare it to what was sent, byte for byte."""
    sent = {learner.payload.pack(sample) for sample in learner.payload.samples()}
    batch = learner.sample()
    for i in range(learner.batch_size):
        if learner.row(batch, i) not in sent:
            raise WrongSample(f"sample {i} of a batch was not sent by anybody")


def one_batch(learner: Learner) -> list[Tree]:
    """The pool of samples repeated to exactly one batch."""
    pool = learner.payload.samples()
    return [pool[i % len(pool)] for i in range(learner.batch_size)]
