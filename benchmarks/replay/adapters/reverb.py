"""Reverb: a server over gRPC, workers that write items of one step, a learner that reads through its dataset."""

from __future__ import annotations

import os
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import reverb
import tensorflow as tf

from benchmarks.payloads import Payload, Tree
from benchmarks.replay.adapters.base import ALPHA, Buffer, Stacks, System, Worker
from benchmarks.replay.items import ITEMS

TABLE = "replay"

#: Items a writer may have on their way before it waits: larger is no faster.
ON_THE_WAY = 200


class Writer:
    """Single items, in chunks of one step: larger ones are inserted faster, but every draw then carries a chunk for its one step."""

    def __init__(self, client: Any) -> None:
        self._writer = client.trajectory_writer(num_keep_alive_refs=1)
        self._count = 0

    def add(self, item: Tree, priority: float = 1.0) -> None:
        writer = self._writer
        writer.append(item)
        writer.create_item(TABLE, priority, {name: column[-1] for name, column in writer.history.items()})
        self._count += 1
        if self._count % ON_THE_WAY == 0:
            writer.flush(block_until_num_items=ON_THE_WAY)

    def flush(self) -> None:
        self._writer.flush()


class ReverbBuffer(Buffer):
    def __init__(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> None:
        super().__init__(payload, capacity, batch)
        self._server = reverb.Server(
            tables=[
                reverb.Table(
                    TABLE,
                    sampler=reverb.selectors.Prioritized(ALPHA) if prioritized else reverb.selectors.Uniform(),
                    remover=reverb.selectors.Fifo(),
                    max_size=capacity,
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    signature={leaf.path[0]: tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in payload.leaves},
                )
            ],
            port=None,
        )
        self.address = f"127.0.0.1:{self._server.port}"
        self._client = reverb.Client(self.address)
        self._names = [leaf.path[0] for leaf in payload.leaves]
        self._batches: Any = None

    def fill(self) -> None:
        """Through a writer, the only way in."""
        writer = Writer(self._client)
        items = self.payload.samples()
        for i in range(self.capacity):
            writer.add(items[i % len(items)])
        writer.flush()

    def sample(self) -> Any:  # type: ignore[override]
        if self._batches is None:
            dataset = reverb.TimestepDataset.from_table_signature(self.address, TABLE, max_in_flight_samples_per_worker=2 * self.batch)
            self._batches = dataset.batch(self.batch).prefetch(2).as_numpy_iterator()
            self.sample = self._batches.__next__  # type: ignore[method-assign]
        return next(self._batches)

    def arrays(self, batch: Any) -> list[np.ndarray]:
        return [batch.data[name] for name in self._names]

    def inserted(self) -> int:
        info = self._client.server_info()[TABLE]
        return int(info.rate_limiter_info.insert_stats.completed)


class ReverbStacks(Stacks):
    """Frames are streamed once; an item refers to those of its stack and the one that followed. Stacks that an episode begins with are left out."""

    def __init__(self, items: int, depth: int) -> None:
        self._depth, self._shape = depth, ITEMS["7KB"].leaves[0].shape
        signature = {
            "frame": tf.TensorSpec((depth + 1, *self._shape), "uint8"), "action": tf.TensorSpec((), "int32"), "reward": tf.TensorSpec((), "float32"),
        }  # fmt: skip
        table = reverb.Table(TABLE, reverb.selectors.Prioritized(ALPHA), reverb.selectors.Fifo(), items, reverb.rate_limiters.MinSize(1), signature=signature)
        self._server = reverb.Server([table], port=None)
        self._client = reverb.Client(f"127.0.0.1:{self._server.port}")
        self._writer: Any = None

    def add(self, stack: list[np.ndarray], following: np.ndarray, ended: bool) -> None:
        if self._writer is None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=self._depth + 1)
            self._append(stack[-1])
        self._append(following)
        history = self._writer.history
        if len(stack) == self._depth:
            item = {"frame": history["frame"][-self._depth - 1 :], "action": history["action"][-2], "reward": history["reward"][-2]}
            self._writer.create_item(TABLE, 1.0, item)
        if ended:
            self._writer.end_episode()
            self._writer = None

    def _append(self, frame: np.ndarray) -> None:
        self._writer.append({"frame": frame, "action": np.int32(0), "reward": np.float32(0)})

    def sample(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        frames = np.stack([one.data["frame"] for one in self._client.sample(TABLE, n, emit_timesteps=False, unpack_as_table_signature=True)])
        return frames[:, :-1], frames[:, 1:]


class ReverbWorker(Worker):
    def __init__(self, address: str) -> None:
        self._client = reverb.Client(address)
        self._client.server_info()  # connected

    def flood(self, items: list[Tree]) -> NoReturn:
        writer = Writer(self._client)
        while True:
            for item in items:
                writer.add(item)


class Reverb(System):
    name = "reverb"
    can = frozenset({"server", "beside", "memory", "stacks"})
    most_items = 50_000  # filling a million takes minutes

    def stacks(self, items: int, depth: int) -> Stacks:
        return ReverbStacks(items, depth)

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        return ReverbBuffer(payload, capacity, batch, prioritized)

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return ReverbBuffer(payload, capacity, batch, prioritized)

    def worker(self, address: str, payload: Payload) -> Worker:
        return ReverbWorker(address)
