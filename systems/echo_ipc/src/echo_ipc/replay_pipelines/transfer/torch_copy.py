"""Copies with `Tensor.copy_`, for the CPU and every device that has no backend of its own."""

from __future__ import annotations

import threading
import time
from typing import Any

from ..base import ReplayTickMetadata
from .base import ReplayTransferBackend

__all__ = ["TorchCopyReplayTransferBackend"]


class TorchCopyReplayTransferBackend(ReplayTransferBackend):
    """The copy is done when submit_h2d returns; on mps, where only the learner's thread may tell the device something, when the batch is fetched."""

    h2d_submitter = "torch_copy"
    host_memory_kind = "pageable_shared"
    host_pinned = False
    direct_pinned_shared = False
    supports_async_submit = False
    supports_timing_events = False

    def __init__(self, *, device: Any, ring_depth: int) -> None:
        self.device = device
        self.device_family = device.type
        self.last_wait_copy_time_s = 0.0
        self._ready = [threading.Event() for _ in range(ring_depth)]
        self._pending_copies: list[tuple[Any, Any] | None] = [None] * ring_depth
        self._later = device.type == "mps"
        if self._later:
            self.h2d_submitter = "torch_copy_main_thread"

    def submit_h2d(
        self,
        *,
        slot: int,
        dst: Any,
        src: Any,
        metadata: ReplayTickMetadata | None,
        trace_recorder: Any,
        trace_cuda_events: bool,
        h2d_bytes: int,
        pack_layout: str,
        pack_executor: str,
    ) -> float:
        started = time.perf_counter()
        self.clear_ready(slot)
        if self._later:
            self._pending_copies[slot] = (dst, src)
        else:
            self._copy(dst, src)
        self._ready[slot].set()
        return time.perf_counter() - started

    def clear_ready(self, slot: int) -> None:
        self._ready[slot].clear()
        self._pending_copies[slot] = None
        self.last_wait_copy_time_s = 0.0

    def ready_query(self, slot: int) -> bool:
        return self._ready[slot].is_set()

    def synchronize_ready(self, slot: int) -> None:
        self._ready[slot].wait()

    def wait_current_stream_for_ready(self, slot: int) -> None:
        self._ready[slot].wait()
        pending, self._pending_copies[slot] = self._pending_copies[slot], None
        if pending is not None:
            started = time.perf_counter()
            self._copy(*pending)
            self.last_wait_copy_time_s = time.perf_counter() - started

    def close(self) -> None:
        self._pending_copies = [None] * len(self._pending_copies)

    def _copy(self, dst: Any, src: Any) -> None:
        import torch

        dst.copy_(src)
        module: Any = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize()
