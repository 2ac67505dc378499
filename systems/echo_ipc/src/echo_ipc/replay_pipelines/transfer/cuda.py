"""The backend for CUDA and ROCm: the shared memory itself is pinned, so copies need no staging."""

from __future__ import annotations

from typing import Any

from echo_core.base.errors import EchoError

from .streams import StreamReplayTransferBackend

__all__ = ["CudaReplayTransferBackend"]

SUCCESS = 0


class CudaReplayTransferBackend(StreamReplayTransferBackend):
    """Copies on a side stream, from shared memory that is registered with the driver. `module` is torch.cuda unless it is given."""

    supports_timing_events = True

    def __init__(self, *, device: Any, ring_depth: int, module: Any = None) -> None:
        if module is None:
            import torch

            module = torch.cuda
        self._registered: list[int] = []
        super().__init__(device=device, ring_depth=ring_depth, module=module)

    def register_host_slots(self, slots: Any) -> None:
        """Raises EchoError if the driver refuses; then none stays registered."""
        runtime = self._module.cudart()
        for index in range(len(slots)):
            slot = slots[index]
            pointer, size = int(slot.data_ptr()), slot.numel() * slot.element_size()
            code = int(runtime.cudaHostRegister(pointer, size, 0))
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
