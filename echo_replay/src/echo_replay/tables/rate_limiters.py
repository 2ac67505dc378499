"""When a table accepts inserts and gives out samples: the rate limiters of Reverb (Cassirer et al. 2021), with its formulas.

Let r be samples_per_insert. The counters begin when the table is made.

    n items may be inserted when   size + n <= min_size_to_sample  or  (inserts + n) * r - samples <= max_diff
    n items may be sampled when    size >= min_size_to_sample      and  inserts * r - samples - n >= min_diff

So writers wait when they are too far ahead of the learner, and the learner waits when it is ahead of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from echo_core.base.errors import ConfigError

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "SamplesPerInsert", "Stack"]


@dataclass(frozen=True)
class RateLimiter:
    """The general form. The named limiters below cover the usual cases.

    Args:
        samples_per_insert: r, how often an item is sampled on average.
        min_size_to_sample: number of items that must be in the table before any is sampled; inserts never wait until then.
        min_diff, max_diff: bounds of `inserts * r - samples`.

    Raises:
        ConfigError: a number makes no sense, or nothing could ever be sampled.
    """

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    once: ClassVar[bool] = False
    """Whether an item is removed after its first sample (`max_times_sampled=1`)."""

    def __post_init__(self) -> None:
        r, k = self.samples_per_insert, self.min_size_to_sample
        _check_numbers(self, samples_per_insert=r, min_diff=self.min_diff, max_diff=self.max_diff)
        _check_count(self, "min_size_to_sample", k)
        if not 0 < r < math.inf:
            raise ConfigError(f"{self}: samples_per_insert must be positive and finite, not {r}")
        if math.isnan(self.min_diff) or math.isnan(self.max_diff) or not self.min_diff < self.max_diff:
            raise ConfigError(f"{self}: min_diff {self.min_diff} must be below max_diff {self.max_diff}")
        if self.min_diff == math.inf or self.max_diff == -math.inf:
            raise ConfigError(f"{self}: nothing could ever be sampled, or inserted")

    def numbers(self) -> tuple[float, float, float, int]:
        """(samples_per_insert, min_diff, max_diff, min_size_to_sample)."""
        return float(self.samples_per_insert), float(self.min_diff), float(self.max_diff), int(self.min_size_to_sample)

    def refusal(self, n: int, capacity: int, replacement: bool) -> str | None:
        """Say why batches of n items can never be drawn from a table of `capacity` rows, or not for ever; None if they can."""
        r, low, high, k = self.numbers()
        if k > capacity:
            return f"{self} waits for {k} items, and the table holds {capacity}: raise capacity or lower min_size_to_sample"
        if not replacement and n > capacity:
            return f"a sampler that draws no item twice cannot draw {n} of {capacity}: lower batch_size or raise capacity"
        if math.isinf(low) or math.isinf(high):
            return None
        # Writers stop when the difference is above max_diff - r, and the learner stops when it is below min_diff + n. No difference may do
        # both. If r is a whole number, the differences are whole numbers too; for other r, any difference between the bounds may occur.
        stuck = math.floor(high - r) + 1 < low + n if float(r).is_integer() else high - r < low + n
        if stuck:
            return (
                f"{self} allows inserts and samples to differ by at most {high - low:g}, which is too little for batches of {n} and {r:g} samples per "
                f"insert: writers and learner would wait for each other; widen the error buffer to at least {n + r:g} in all, or lower "
                f"batch_size"
            )
        return None


class MinSize(RateLimiter):
    """Nothing is sampled until `min_size_to_sample` items are in the table. After that nobody waits."""

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, -math.inf, math.inf)

    def __str__(self) -> str:
        return f"MinSize({self.min_size_to_sample})"


class SampleToInsertRatio(RateLimiter):
    """Each item is sampled `samples_per_insert` times on average.

    Args:
        samples_per_insert: r.
        min_size_to_sample: k.
        error_buffer: e, how far samples may run ahead or behind: `inserts * r - samples` stays between k*r - e and k*r + e. A pair gives those
            two bounds directly.

    Raises:
        ConfigError: the buffer is narrower than Reverb allows, 2 * max(1, r) in all, or no sample could ever be drawn.
    """

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]) -> None:
        r, k = samples_per_insert, min_size_to_sample
        _check_numbers(self, samples_per_insert=r)
        _check_count(self, "min_size_to_sample", k)
        if isinstance(error_buffer, Sequence) and not isinstance(error_buffer, str) and len(error_buffer) == 2:
            low, high = error_buffer
        else:
            _check_numbers(self, error_buffer=error_buffer)
            low, high = k * r - error_buffer, k * r + error_buffer  # type: ignore[operator]  # it is a number
        super().__init__(r, k, low, high)
        if high - low < 2 * max(1.0, r):
            needed = 2 * max(1.0, r)
            raise ConfigError(f"{self}: the error buffer spans {high - low:g}; it must span at least 2 * max(1, samples_per_insert) = {needed:g}")
        if low > k * r:
            raise ConfigError(f"{self}: min_diff {low:g} is above min_size_to_sample * samples_per_insert = {k * r:g}; lower it")

    def __str__(self) -> str:
        r, k, low, high = self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff
        buffer = f"{high - k * r:g}" if low + high == 2 * k * r else f"({low:g}, {high:g})"
        return f"{type(self).__name__}({r:g}, {k}, {buffer})"


class SamplesPerInsert(SampleToInsertRatio):
    """`SampleToInsertRatio` under another name."""


class Queue(RateLimiter):
    """Every item is sampled exactly once, and up to `size` items may wait. With sampler and remover "fifo" this is a queue."""

    once = True

    def __init__(self, size: int) -> None:
        _check_count(self, "size", size)
        super().__init__(1.0, 1, 0.0, size)

    def refusal(self, n: int, capacity: int, replacement: bool) -> str | None:
        if self.max_diff > capacity:
            return f"{self} lets {self.max_diff:g} items wait, and the table holds {capacity}: items would be lost; raise capacity"
        return super().refusal(n, capacity, replacement)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.max_diff:g})"


class Stack(Queue):
    """The same for sampler "lifo"."""


def _check_numbers(limiter: RateLimiter, **given: Any) -> None:
    for what, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(f"{type(limiter).__name__}: {what} must be a number, not {value!r}")


def _check_count(limiter: RateLimiter, what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer() or value < 1:
        raise ConfigError(f"{type(limiter).__name__}: {what} must be a whole number from 1, not {value!r}")
