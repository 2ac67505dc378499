"""TorchRL: a replay buffer of TensorDicts over a preallocated storage, on the CPU."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

from benchmarks.payloads import Payload, Tree
from benchmarks.replay.adapters.base import ALPHA, BETA, Buffer, System


class TorchBuffer(Buffer):
    """Items are made into TensorDicts before the clock starts, which is in TorchRL's favour: they are what its environments give."""

    def __init__(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> None:
        super().__init__(payload, capacity, batch)
        torch.set_num_threads(1)  # threads cost more than they give with batches of this size
        storage = LazyTensorStorage(capacity)
        self._buffer: Any
        if prioritized:
            self._buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=batch)
        else:
            self._buffer = TensorDictReplayBuffer(storage=storage, batch_size=batch)
        self.sample = self._buffer.sample
        self._names = [leaf.path[0] for leaf in payload.leaves]
        self._made: dict[int, Any] = {}

    def add(self, item: Tree) -> None:  # type: ignore[override]
        """`extend` of one, which is faster than `add`."""
        self._buffer.extend(self._tensors(item, 1))

    def extend(self, items: Tree) -> None:  # type: ignore[override]
        self._buffer.extend(self._tensors(items, 0))

    def _tensors(self, items: Tree, axes: int) -> Any:
        made = self._made.get(id(items))
        if made is None:
            tensors = {name: torch.from_numpy(np.array(items[name][None] if axes else items[name])) for name in self._names}
            made = TensorDict(tensors, batch_size=[len(tensors[self._names[0]])])
            self._made[id(items)] = made
            self._made[-id(items)] = items  # keeps it, so that no other has its id
        return made

    def pair(self, priorities: np.ndarray) -> None:
        drawn = self.sample()
        self._buffer.update_priority(drawn["index"], torch.from_numpy(priorities.astype(np.float32)))  # it takes no others

    def arrays(self, batch: Any) -> list[np.ndarray]:
        return [batch[name].numpy() for name in self._names]


def _trouble(module: str) -> str:
    """Why a compiled module does not load; nothing if it does."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error).rpartition("/")[2][:160]  # without the path: what is missing is behind it
    return ""


class TorchRL(System):
    name = "torchrl"

    def __init__(self) -> None:
        can = {"insert", "uniform", "prioritized", "memory"}
        # Its sum trees are compiled, and load only into the torch that the wheel was built against: 0.14 into 2.15, neither it nor 0.13 into
        # 2.13. pip does not know that, as TorchRL asks for any torch from 2.1 on, and goes on without them until a buffer is made.
        if trouble := _trouble("torchrl._torchrl"):
            can -= {"prioritized", "memory"}
            built = f"torchrl {version('torchrl')} was built for another torch than {torch.__version__} ({trouble}); 0.14 needs torch 2.15"
            self.lacks = {"prioritized": built}
        self.can = frozenset(can)

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        return TorchBuffer(payload, capacity, batch, prioritized)
