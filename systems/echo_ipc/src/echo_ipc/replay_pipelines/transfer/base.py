"""What a pipeline needs of a device."""

from __future__ import annotations

from typing import Any, Protocol

from ..base import ReplayTickMetadata

__all__ = ["ReplayTransferBackend"]


class ReplayTransferBackend(Protocol):
    """Copies batches from slots of the host to slots of a device. A slot is a number below `ring_depth`.

    Attributes:
        device: a torch.device.
        device_family: such as "cuda".
        h2d_submitter: how copies are submitted, in a word.
        host_memory_kind: "pageable_shared" or "registered_pinned_shared".
        host_pinned, direct_pinned_shared: whether the slots of the host are pinned, and the shared memory itself is.
        supports_async_submit: whether submit_h2d returns before the copy is done.
        supports_timing_events: whether the device measures how long copies take.
    """

    device: Any
    device_family: str
    h2d_submitter: str
    host_memory_kind: str
    host_pinned: bool
    direct_pinned_shared: bool
    supports_async_submit: bool
    supports_timing_events: bool

    def register_host_slots(self, slots: Any) -> None:
        """Pin them, if the device needs that; close() undoes it. By default they are not pinned."""
        return

    def allocate_device_slots(self, *, count: int, shape: tuple[int, int], dtype: Any) -> list[Any]:
        """Tensors for `count` batches of this shape on the device."""
        import torch

        return [torch.empty(shape, dtype=dtype, device=self.device) for _ in range(count)]

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
        """Begin a copy, which must not overtake what the device still does with the slot. Returns how long that took, in seconds."""

    def clear_ready(self, slot: int) -> None:
        """The slot has no batch any more. Work that was already submitted to the current stream may still use it."""

    def ready_query(self, slot: int) -> bool:
        """Whether the copy is done."""

    def synchronize_ready(self, slot: int) -> None:
        """Wait until the copy is done."""

    def wait_current_stream_for_ready(self, slot: int) -> None:
        """Work that is submitted to the current stream from now on runs after the copy."""

    def close(self) -> None: ...
