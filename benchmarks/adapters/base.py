"""What an adapter writes: a learner end, a worker end, and what the system is able to do.

The clock runs around ``sample()``, ``send()`` and ``submit()``. These are attributes, so that an
adapter can put a system's own bound method there and no call of ours is measured with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import Path, Payload, Tree


class Learner(ABC):
    """The receiving end, in the process that is measured. It ends by its process being killed."""

    #: Where workers connect; "" in-process.
    address: str = ""
    #: Wait for ``batch_size`` samples and hand them over in whatever shape the system has.
    sample: Callable[[], Any]
    #: In-process use, where the system has it: one sample; samples with a leading axis.
    submit: Callable[[Tree], Any]
    submit_batch: Callable[[Tree], Any]
    #: Offer a pytree of arrays to the workers, where the system can.
    publish: Callable[[Tree], Any]

    def __init__(self, payload: Payload, batch_size: int) -> None:
        self.payload = payload
        self.batch_size = batch_size

    @abstractmethod
    def touch(self, batch: Any) -> None:
        """Read one element of every leaf of a batch."""

    @abstractmethod
    def column(self, batch: Any, path: Path) -> np.ndarray:
        """One leaf of a batch as an array ``(batch_size, *shape)``."""

    @abstractmethod
    def row(self, batch: Any, i: int) -> bytes:
        """Sample ``i`` of a batch as plain bytes, leaves in declared order; for the check."""


class ArrayLearner(Learner):
    """A learner whose ``sample()`` gives an object with a pytree of arrays in ``.batch``."""

    def touch(self, batch: Any) -> None:
        self.payload.touch(batch.batch)

    def column(self, batch: Any, path: Path) -> np.ndarray:
        return np.asarray(self.payload.leaf(batch.batch, path))

    def row(self, batch: Any, i: int) -> bytes:
        return b"".join(leaf[i].tobytes() for leaf in self.payload.arrays(batch.batch))


class MessageLearner(Learner):
    """A learner that gets plain messages and is not asked to make arrays of them.

    A batch is a list of ``batch_size`` byte buffers. Scattering them into arrays is work that a
    user of such a system still has ahead; leaving it out can only flatter the system.
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


class Worker:
    """The sending end, in a process of its own, which is killed when it is no longer needed."""

    #: Send one sample; may block for as long as the system pushes back.
    send: Callable[[Tree], Any]
    #: Send the samples of a tree whose leaves have a leading axis, where the system can.
    send_batch: Callable[[Tree], Any]
    #: Wait for weights newer than a version, the last of which was returned before: ``(tree, version)``.
    weights: Callable[[int], tuple[Tree, int]]

    def flood(self, samples: list[Tree]) -> NoReturn:
        """Send round and round until killed: the plain loop that workers are measured in."""
        send = self.send
        while True:
            for sample in samples:
                send(sample)


class System(ABC):
    """A system under test. ``can`` names what it is able to do, as the modes of cases.py ask:

    "tcp" (workers in other processes), "tcp-batch" (``send_batch``), "inprocess" (``submit``),
    "inprocess-batch" (``submit_batch``), "batches" (``sample`` hands over arrays), "crowd"
    (hundreds of connections), "ucx" and "ucx-tcp" (over UCX, by the lanes in the environment), "weights" (``publish`` and ``weights``),
    "shm" and "shm-batch" (as "tcp", by whatever is quickest between processes of one machine).
    """

    name: str
    can: frozenset[str]

    @abstractmethod
    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        """A started learner; ``connections`` is 0 for in-process use."""

    @abstractmethod
    def worker(self, address: str, payload: Payload) -> Worker:
        """A connected worker."""


class Program(System):
    """A system that has neither end in Python: a program that measures itself."""

    @abstractmethod
    def measure(self, case: Case, pace: Pace, report: Reporter) -> Figures:
        """Run it on messages of the case's size, for about ``pace.seconds``."""

    def learner(self, payload: Payload, batch_size: int, connections: int) -> Learner:
        raise NotImplementedError(f"{self.name} measures itself")

    def worker(self, address: str, payload: Payload) -> Worker:
        raise NotImplementedError(f"{self.name} measures itself")
