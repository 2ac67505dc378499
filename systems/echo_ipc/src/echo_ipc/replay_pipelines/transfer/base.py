"""What a pipeline needs of a device, and how it is done for devices that have no backend of their own: with `Tensor.copy_`."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["ReplayTransferBackend"]


class ReplayTransferBackend:
    """Copies batches from slots of the host to slots of a device. A slot is a number below `ring_depth`. The attributes are words for people and logs.

    Here the copy is done when submit_h2d returns, so nothing has to be waited for.
    """

    h2d_submitter = "torch_copy"
    host_memory_kind = "pageable_shared"
    host_pinned = direct_pinned_shared = supports_async_submit = False
    supports_timing_events = False  # whether the device measures how long copies take

    def __init__(self, *, device: Any, ring_depth: int) -> None:
        self.device, self.device_family = device, device.type
        self._submitted = [False] * ring_depth

    def register_host_slots(self, slots: Any) -> None:
        """Pin them, if the device needs that; close() undoes it."""

    def allocate_device_slots(self, *, count: int, shape: tuple[int, int], dtype: Any) -> list[Any]:
        """Tensors for `count` batches of this shape on the device."""
        import torch

        return [torch.empty(shape, dtype=dtype, device=self.device) for _ in range(count)]

    def submit_h2d(self, *, slot: int, dst: Any, src: Any, metadata: Any, trace_recorder: Any, trace_cuda_events: bool, **traced: Any) -> float:
        """Begin a copy, which must not overtake what the device still does with the slot. Returns how long that took, in seconds.

        `metadata`: a `ReplayTickMetadata`, or None. `traced`: what the span of the copy is told besides: h2d_bytes, pack_layout and pack_executor.
        """
        import torch

        started = time.perf_counter()
        dst.copy_(src)
        module: Any = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize()
        self._submitted[slot] = True
        return time.perf_counter() - started

    def clear_ready(self, slot: int) -> None:
        """The slot has no batch any more. Work that was already submitted to the current stream may still use it."""
        self._submitted[slot] = False

    def ready_query(self, slot: int) -> bool:
        """Whether the copy is done."""
        return self._submitted[slot]

    def synchronize_ready(self, slot: int) -> None:
        """Wait until the copy is done."""

    def wait_current_stream_for_ready(self, slot: int) -> None:
        """Work that is submitted to the current stream from now on runs after the copy."""

    def close(self) -> None:
        """Wait for copies, and unpin."""
