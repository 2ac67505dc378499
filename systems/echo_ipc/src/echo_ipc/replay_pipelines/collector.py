"""The collector's side of a replay pipeline: it packs the batches that the learner requests, between its own steps."""

from __future__ import annotations

import queue
import time
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError

from ..replay_buffer import ReplayBuffer
from ..segments.rows import Rows

__all__ = ["SharedSlots", "_collector_pack_shared_batch", "_service_collector_pack_requests"]


class SharedSlots(Rows):
    """A sequence of `count` tensors float32 [rows, width] in shared memory, into which batches are packed. Hand it to a process as an argument.

    `width` is `replay._storage.shape[1]`. Raises MemoryError if there is not enough memory.
    """

    def __init__(self, rows: int, width: int, count: int = 2) -> None:
        super().__init__({"batch": ((rows, width), "float32")}, count)

    def __len__(self) -> int:
        return self.capacity

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(self.storage()[index].view(np.float32).reshape(self.schema.fields[0].shape))


def _service_collector_pack_requests(
    replay_buffer: ReplayBuffer, request_queue: Any, ready_queue: Any, shared_slots: Any, pending_request: dict[str, Any] | None = None
) -> tuple[bool, dict[str, Any] | None]:
    """Pack the batch of one request, if there is one and its rows are there. Call this between steps, with what the pipeline was given; it does not wait.

    Returns (whether a batch was packed, the request that waits for more rows), and the latter is `pending_request` of the next call.
    """
    if pending_request is None:
        try:
            pending_request = request_queue.get_nowait()
        except queue.Empty:
            return False, None
    first, end = replay_buffer.rows.window()
    request: dict[str, Any] = dict(pending_request or {})
    if end < int(request.get("min_snapshot_ptr", 0)) or first == end:
        return False, request
    request |= {"snapshot_ptr": end, "snapshot_size": end - first}
    ready_queue.put(_collector_pack_shared_batch(replay_buffer, request, shared_slots))
    return True, None


def _collector_pack_shared_batch(replay_buffer: ReplayBuffer, request: dict[str, Any], shared_slots: Any) -> dict[str, Any]:
    """Draw a batch as the request says and pack it into its slot: whole rows, float32, one after another.

    The draw is `torch.randint(0, snapshot_size, (sample_count,))` of a generator with the seed of the request: positions in the storage. A row that is
    overwritten meanwhile is drawn again from the same generator, of the rows that there are then.

    Returns the request with `redrawn`, how many rows were drawn again, and `pack_ns`, how many nanoseconds it took. Raises RuntimeError if the learner is using
    the slot, SpecError if the slot has another shape or dtype, and ValueError if there are no rows.
    """
    import torch

    started = time.perf_counter_ns()
    if int(request["target_gpu_slot"]) == int(request["learner_hot_gpu_slot"]):
        raise RuntimeError(f"target_gpu_slot must differ from learner_hot_gpu_slot, which the learner is using; both are {request['target_gpu_slot']}")
    rows, count = replay_buffer.rows, int(request["sample_count"])
    slot, wanted = shared_slots[int(request["shared_slot"])], (count, rows.row_bytes // 4)
    if tuple(slot.shape) != wanted or slot.dtype is not torch.float32 or not slot.is_contiguous():
        raise SpecError(f"a slot must be a contiguous float32{list(wanted)}, but is {slot.dtype}{list(slot.shape)}")
    end, size = int(request["snapshot_ptr"]), int(request["snapshot_size"])
    if size < 1:
        raise ValueError("there are no rows to sample; add some first")
    generator = torch.Generator(device="cpu").manual_seed(int(request["sample_seed"]))

    def draw(first: int, end: int, n: int) -> np.ndarray:
        places = torch.randint(0, end - first, (n,), generator=generator).numpy()
        numbers: np.ndarray = (first + (places - first) % (end - first)).astype(np.uint64)  # until the storage is full, `first` is 0
        return numbers

    _, redrawn = rows._gather(rows._whole, [slot.numpy().view(np.uint8)], draw(end - size, end, count), draw)
    return request | {"redrawn": redrawn, "pack_ns": time.perf_counter_ns() - started}
