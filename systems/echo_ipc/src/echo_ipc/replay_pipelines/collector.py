"""The collector's side of a replay pipeline: it packs the batches that the learner requests, between its own steps."""

from __future__ import annotations

import queue
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError

from ..replay_buffer import ReplayBuffer
from ..segments.rows import TRIES, _alone

__all__ = ["_collector_pack_shared_batch", "_service_collector_pack_requests"]


def _service_collector_pack_requests(
    replay_buffer: ReplayBuffer,
    request_queue: Any,
    ready_queue: Any,
    shared_slots: Any,
    pending_request: dict[str, Any] | None = None,
) -> tuple[bool, dict[str, Any] | None]:
    """Pack the batch of one request, if there is one and its rows are there. Call this between steps; it does not wait.

    Args:
        request_queue, ready_queue: those that the pipeline was given.
        shared_slots: the tensors [sample_count, width] that the pipeline was given.
        pending_request: what the call before returned.

    Returns:
        (whether a batch was packed, the request that waits for more rows, for the next call).
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

    Returns:
        The request, with `redrawn`, how many rows were drawn again, and `pack_ns`, how many nanoseconds it took.

    Raises:
        RuntimeError: the target is the slot that the learner is using.
        SpecError: the slot has another shape or dtype.
        ValueError: there are no rows.
    """
    import torch

    started = time.perf_counter_ns()
    if int(request["target_gpu_slot"]) == int(request["learner_hot_gpu_slot"]):
        raise RuntimeError(f"target_gpu_slot must differ from learner_hot_gpu_slot, which the learner is using; both are {request['target_gpu_slot']}")
    rows, count = replay_buffer.rows, int(request["sample_count"])
    slot = shared_slots[int(request["shared_slot"])]
    wanted = (count, rows.row_bytes // 4)
    if tuple(slot.shape) != wanted or slot.dtype is not torch.float32 or not slot.is_contiguous():
        raise SpecError(f"a slot must be a contiguous float32{list(wanted)}, but is {slot.dtype}{list(slot.shape)}")
    generator = torch.Generator(device="cpu")
    generator.manual_seed(int(request["sample_seed"]))
    end, size = int(request["snapshot_ptr"]), int(request["snapshot_size"])
    if size < 1:
        raise ValueError("there are no rows to sample; add some first")
    packed, stale, native = slot.numpy().view(np.uint8), np.empty(count, np.uint64), rows._use()
    bad = native.gather(_numbers(end, size, count, generator), rows._whole, [packed], stale)
    places, redrawn, tries = stale[:bad].astype(np.intp), bad, 0
    while len(places):
        tries += 1
        few = np.empty((len(places), rows.row_bytes), np.uint8)
        with _alone(native) if tries > TRIES else nullcontext():  # nobody adds meanwhile
            first, end = native.window()
            bad = native.gather(_numbers(end, end - first, len(places), generator), rows._whole, [few], stale) if first < end else len(places)
        if first == end:
            continue  # all rows are just being overwritten
        packed[places] = few
        places = places[stale[:bad].astype(np.intp)]
        redrawn += bad
    return request | {"redrawn": redrawn, "pack_ns": time.perf_counter_ns() - started}


def _numbers(end: int, size: int, count: int, generator: Any) -> np.ndarray:
    """The numbers of `count` rows of the newest `size` ones, drawn by where they are in the storage."""
    import torch

    places = torch.randint(0, size, (count,), generator=generator).numpy()
    first = end - size  # 0 until the storage is full; then `size` is its capacity
    numbers: np.ndarray = (first + (places - first) % size).astype(np.uint64)
    return numbers
