"""A batch from another process, and how far its requests are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import asking_again

if TYPE_CHECKING:
    from echo_core.spec.leaf import LeafSpec
    from echo_core.wire.protocol import Buffer
    from echo_core.wire.transport import Pending

    from .batch_memory import BatchMemory
    from .turn import Turn

__all__ = ["Drawing", "RemoteInfo", "RemoteSample"]


class RemoteInfo(NamedTuple):
    """Information about the table at the time of the draw; see `ReplayInfo`."""

    table: str | None
    store_size: int
    inserted: int
    sampled: int
    redrawn: int
    effective_sample_size: float
    policy_version: int = 0
    policy_versions: np.ndarray | None = None
    mass: float | None = None
    beta: float = 0.0  # the exponent of `weights`
    lag_weight: float = 1.0  # by which `weights` are multiplied for each version that an item's policy is older than the newest


class RemoteSample(NamedTuple):
    """A batch from another process. It is like `Sample`, but its arrays belong to this process.

    Attributes:
        batch: leaves of shape `(n, *leaf.shape)`.
        info: `RemoteInfo`.
        keys, probabilities, weights: as in `Sample`, shape (n,).
    """

    batch: Any
    info: RemoteInfo
    keys: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray

    def with_batch(self, batch: Any) -> RemoteSample:
        """The same keys, weights and information with another batch."""
        return RemoteSample(batch, self.info, self.keys, self.probabilities, self.weights)


@dataclass(slots=True)
class Drawing:
    """A batch of `n` items with the leaves `wanted`; each message has `step` items. `more` holds further arguments of each request."""

    n: int
    step: int
    wanted: Sequence[LeafSpec]
    more: dict[str, Any]
    to_ask: int = 0  # the first item that was not requested yet
    asked: deque[Pending] = field(default_factory=deque)  # the requests under way
    first: tuple[dict[str, Any], Buffer] | None = None  # the first answer, once it has arrived
    number: int = 0  # of the first request; the others of a large batch name it
    lost: bool = False  # the connection was lost since the first request was sent
    turn: Turn | None = None  # the first request, if it was sent before anybody waits
    memory: BatchMemory | None = None  # of a larger batch that this one is a part of
    comes_back: bool = True  # False: a lost connection is an error at once
    reconnects: int = 0  # of the connection when the first answer had come

    def begin(self) -> None:
        """The first request is about to be sent. It keeps its number if it is sent again."""
        if not self.lost:
            self.number = next(asking_again.numbers)

    def lose(self) -> None:
        """The connection was lost, with answers: all of the batch is requested again."""
        self.to_ask, self.first, self.lost = 0, None, True
        self.asked.clear()

    def body(self, start: int) -> dict[str, Any]:
        """The body of the request for the items from `start` on."""
        more = self.more if start else self.more | {"number": self.number}
        if self.n <= self.step:
            return more
        return more | {"batch": self.number, "start": start, "rows": min(self.step, self.n - start)}
