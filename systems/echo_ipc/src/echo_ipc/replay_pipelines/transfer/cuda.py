"""The backend for CUDA and ROCm: it copies on a stream of its own, while the learner's stream computes, from shared memory that is pinned."""

from __future__ import annotations

import time
from typing import Any

from echo_core.base.errors import EchoError

from .base import ReplayTransferBackend

__all__ = ["CudaReplayTransferBackend", "StreamReplayTransferBackend"]

SUCCESS = 0
DRAWN = ("tick_id", "snapshot_ptr", "snapshot_size", "sample_seed", "sample_count", "batch_host_slot")


class StreamReplayTransferBackend(ReplayTransferBackend):
    """Copies on one side stream. `module`: torch.cuda or torch.xpu, which are alike, or something that looks like them; None: that of the device."""

    h2d_submitter = "torch_copy_stream"
    supports_async_submit = True

    def __init__(self, *, device: Any, ring_depth: int, module: Any = None) -> None:
        import torch

        super().__init__(device=device, ring_depth=ring_depth)
        self._module: Any = module or getattr(torch, device.type)
        self._stream = self._module.Stream(device=device)
        self._copied = [self._module.Event() for _ in range(ring_depth)]
        # Marks the learner's work at the moment when it gave a slot back. The next copy into the slot has to come after that.
        self._used: list[Any] = [None] * ring_depth
        self._registered: list[int] = []

    def submit_h2d(self, *, slot: int, dst: Any, src: Any, metadata: Any, trace_recorder: Any, trace_cuda_events: bool, **traced: Any) -> float:
        started, begin_ns = time.perf_counter(), time.perf_counter_ns()
        timed = trace_recorder is not None and trace_cuda_events and self.supports_timing_events
        span = [self._module.Event(enable_timing=True) for _ in range(2 * timed)]
        with self._module.device(self.device), self._module.stream(self._stream):
            if self._used[slot] is not None:
                self._stream.wait_event(self._used[slot])
            for event in span[:1]:
                event.record(self._stream)
            dst.copy_(src, non_blocking=True)
            for event in [self._copied[slot], *span[1:]]:
                event.record(self._stream)
        self._submitted[slot] = True
        if timed:
            args = {name: getattr(metadata, name, None) for name in DRAWN} | {"slot": slot, "batch_gpu_slot": slot} | traced
            args |= {"pinned_memory": self.host_pinned, "h2d_submitter": self.h2d_submitter}
            where: dict[str, Any] = {"category": "replay_pipeline", "cpu_begin_ns": begin_ns, "start_event": span[0], "end_event": span[1]}
            trace_recorder.add_cuda_pending_span("gpu/replay_pipeline_batch_h2d", args=args, **where)
        return time.perf_counter() - started

    def clear_ready(self, slot: int) -> None:
        self._submitted[slot] = False
        self._used[slot] = self._module.Event()
        self._used[slot].record(self._module.current_stream(self.device))

    def ready_query(self, slot: int) -> bool:
        return self._submitted[slot] and bool(self._copied[slot].query())

    def synchronize_ready(self, slot: int) -> None:
        if self._submitted[slot]:
            self._copied[slot].synchronize()

    def wait_current_stream_for_ready(self, slot: int) -> None:
        self._module.current_stream(self.device).wait_event(self._copied[slot])

    def close(self) -> None:
        self._stream.synchronize()


class CudaReplayTransferBackend(StreamReplayTransferBackend):
    """Registers the shared memory itself with the driver, so copies need no staging."""

    supports_timing_events = True

    def register_host_slots(self, slots: Any) -> None:
        """Raises EchoError if the driver refuses; then none stays registered."""
        for index in range(len(slots)):
            pointer, size = int(slots[index].data_ptr()), slots[index].numel() * slots[index].element_size()
            code = int(self._module.cudart().cudaHostRegister(pointer, size, 0))
            if code != SUCCESS:
                self._unregister()
                raise EchoError(f"the CUDA driver cannot pin slot {index} of {size:,} bytes (error {code}); raise the limit of locked memory (ulimit -l)")
            self._registered.append(pointer)
        self.host_memory_kind, self.host_pinned, self.direct_pinned_shared = "registered_pinned_shared", True, True

    def _unregister(self) -> None:
        while self._registered:
            self._module.cudart().cudaHostUnregister(self._registered.pop())
        self.host_memory_kind, self.host_pinned, self.direct_pinned_shared = "pageable_shared", False, False

    def close(self) -> None:
        super().close()  # no copy may be reading what is unregistered
        self._unregister()
