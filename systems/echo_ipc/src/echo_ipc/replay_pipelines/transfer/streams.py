"""Copies on a stream of their own, while the learner's stream computes. For cuda and xpu, whose modules in torch are alike."""

from __future__ import annotations

import time
from typing import Any

from ..base import ReplayTickMetadata
from .base import ReplayTransferBackend

__all__ = ["StreamReplayTransferBackend"]


class StreamReplayTransferBackend(ReplayTransferBackend):
    """Copies on one side stream.

    Args:
        device: a torch.device.
        ring_depth: how many slots there are.
        module: torch.cuda, torch.xpu, or something that looks like them.
    """

    h2d_submitter = "torch_copy_stream"
    host_memory_kind = "pageable_shared"
    host_pinned = False
    direct_pinned_shared = False
    supports_async_submit = True
    supports_timing_events = False

    def __init__(self, *, device: Any, ring_depth: int, module: Any) -> None:
        self.device = device
        self.device_family = device.type
        self._module = module
        self._stream = module.Stream(device=device)
        self._copied = [module.Event() for _ in range(ring_depth)]
        self._submitted = [False] * ring_depth
        # Marks the learner's work at the moment when it gave a slot back. The next copy into the slot has to come after that.
        self._used: list[Any] = [None] * ring_depth

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
        started, begin_ns = time.perf_counter(), time.perf_counter_ns()
        timed = trace_recorder is not None and trace_cuda_events and self.supports_timing_events
        with self._module.device(self.device), self._module.stream(self._stream):
            if self._used[slot] is not None:
                self._stream.wait_event(self._used[slot])
            begun, ended = (self._module.Event(enable_timing=True), self._module.Event(enable_timing=True)) if timed else (None, None)
            if begun is not None:
                begun.record(self._stream)
            dst.copy_(src, non_blocking=True)
            self._copied[slot].record(self._stream)
            if ended is not None:
                ended.record(self._stream)
        self._submitted[slot] = True
        if timed:
            args = {
                "tick_id": getattr(metadata, "tick_id", None),
                "snapshot_ptr": getattr(metadata, "snapshot_ptr", None),
                "snapshot_size": getattr(metadata, "snapshot_size", None),
                "sample_seed": getattr(metadata, "sample_seed", None),
                "sample_count": getattr(metadata, "sample_count", None),
                "slot": slot,
                "batch_host_slot": getattr(metadata, "batch_host_slot", None),
                "batch_gpu_slot": slot,
                "pinned_memory": self.host_pinned,
                "h2d_submitter": self.h2d_submitter,
                "h2d_bytes": h2d_bytes,
                "pack_layout": pack_layout,
                "pack_executor": pack_executor,
            }
            trace_recorder.add_cuda_pending_span(
                "gpu/replay_pipeline_batch_h2d", category="replay_pipeline", cpu_begin_ns=begin_ns, start_event=begun, end_event=ended, args=args
            )
        return time.perf_counter() - started

    def clear_ready(self, slot: int) -> None:
        self._submitted[slot] = False
        event = self._module.Event()
        event.record(self._module.current_stream(self.device))
        self._used[slot] = event

    def ready_query(self, slot: int) -> bool:
        return self._submitted[slot] and bool(self._copied[slot].query())

    def synchronize_ready(self, slot: int) -> None:
        if self._submitted[slot]:
            self._copied[slot].synchronize()

    def wait_current_stream_for_ready(self, slot: int) -> None:
        self._module.current_stream(self.device).wait_event(self._copied[slot])

    def close(self) -> None:
        self._stream.synchronize()
