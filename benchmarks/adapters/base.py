"""What an adapter writes: a learner end, a worker end, and what the system is able to do.

The clock runs around ``sample()``, ``send()`` and ``submit()`` and nothing else of an adapter, so
an adapter holds as little of its own as it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

import numpy as np

from benchmarks.payloads import Path, Payload, Tree


class Learner(ABC):
    """The receiving end, in the process that is measured."""

    #: Where workers connect; "" in-process.
    address: str = ""

    def __init__(self, payload: Payload, batch_size: int) -> None:
        self.payload = payload
        self.batch_size = batch_size

    @abstractmethod
    def sample(self) -> Any:
        """Wait for ``batch_size`` samples and hand them over in whatever shape the system has."""

    @abstractmethod
    def touch(self, batch: Any) -> None:
        """Read one element of every leaf of a batch."""

    @abstractmethod
    def column(self, batch: Any, path: Path) -> np.ndarray:
        """One leaf of a batch as an array ``(batch_size, *shape)``; never called while timing."""

    @abstractmethod
    def row(self, batch: Any, i: int) -> bytes:
        """Sample ``i`` of a batch as plain bytes, leaves in declared order; for the check."""

    def submit(self, sample: Tree) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no in-process use")

    def submit_batch(self, stacked: Tree) -> None:
        raise NotImplementedError(f"{type(self).__name__} takes no batches in-process")

    def close(self) -> None:
        """Best effort: the process ends right after, and is killed if that hangs."""


class ArrayLearner(Learner):
    """A learner whose ``sample()`` answers with an object that has a pytree of arrays in ``.batch``.

    Such adapters put the system's own bound methods in place of ``sample``, ``submit`` and ``send``,
    so that no call of ours is measured with theirs.
    """

    def touch(self, batch: Any) -> None:
        self.payload.touch(batch.batch)

    def column(self, batch: Any, path: Path) -> np.ndarray:
        return np.asarray(self.payload.leaf(batch.batch, path))

    def row(self, batch: Any, i: int) -> bytes:
        return b"".join(leaf[i].tobytes() for leaf in self.payload.arrays(batch.batch))


class MessageLearner(Learner):
    """A learner that gets plain messages and is not asked to make arrays of them.

    A batch is a list of ``batch_size`` byte buffers. Scattering them into arrays is work that a user
    of such a system still has ahead; leaving it out can only flatter the system.
    """

    def touch(self, batch: Any) -> None:
        last = batch[-1]
        for offset in self.payload.offsets:
            last[offset]

    def column(self, batch: Any, path: Path) -> np.ndarray:
        i = self.payload.paths.index(path)
        leaf, offset = self.payload.leaves[i], self.payload.offsets[i]
        count = int(np.prod(leaf.shape, dtype=np.int64))
        rows = [np.frombuffer(m, leaf.dtype, count, offset).reshape(leaf.shape) for m in batch]
        return np.stack(rows)

    def row(self, batch: Any, i: int) -> bytes:
        return bytes(batch[i])


class Worker(ABC):
    """The sending end, in a process of its own."""

    @abstractmethod
    def send(self, sample: Tree) -> None:
        """Send one sample; may block for as long as the system pushes back."""

    def send_batch(self, stacked: Tree) -> None:
        """Send the samples of a tree whose leaves have a leading axis."""
        raise NotImplementedError(f"{type(self).__name__} sends no batches")

    def flood(self, samples: list[Tree]) -> NoReturn:
        """Send round and round until killed: the plain loop that workers are measured in."""
        send = self.send
        while True:
            for sample in samples:
                send(sample)


class System(ABC):
    """A system under test. ``can`` names the modes it takes part in (see cases.py)."""

    name: str
    can: frozenset[str]

    @abstractmethod
    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        """A started learner; ``connections`` is 0 for in-process use."""

    @abstractmethod
    def worker(self, address: str, payload: Payload) -> Worker:
        """A connected worker."""
