"""Which backend a device needs."""

from __future__ import annotations

from typing import Any

from .base import ReplayTransferBackend

__all__ = ["build_replay_transfer_backend"]


def build_replay_transfer_backend(*, device: Any, ring_depth: int) -> ReplayTransferBackend:
    """The backend for a torch.device: with streams for cuda and xpu, with plain copies for all others."""
    if device.type == "cuda":
        from .cuda import CudaReplayTransferBackend

        return CudaReplayTransferBackend(device=device, ring_depth=ring_depth)
    if device.type == "xpu":
        from .xpu import XpuReplayTransferBackend

        return XpuReplayTransferBackend(device=device, ring_depth=ring_depth)
    from .torch_copy import TorchCopyReplayTransferBackend

    return TorchCopyReplayTransferBackend(device=device, ring_depth=ring_depth)
