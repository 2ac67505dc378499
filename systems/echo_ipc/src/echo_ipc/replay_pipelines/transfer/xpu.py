"""The backend for Intel's devices."""

from __future__ import annotations

from typing import Any

from .streams import StreamReplayTransferBackend

__all__ = ["XpuReplayTransferBackend"]


class XpuReplayTransferBackend(StreamReplayTransferBackend):
    """Copies on a side stream, from memory that is not pinned. `module` is torch.xpu unless it is given."""

    def __init__(self, *, device: Any, ring_depth: int, module: Any = None) -> None:
        if module is None:
            import torch

            module = torch.xpu
        super().__init__(device=device, ring_depth=ring_depth, module=module)
