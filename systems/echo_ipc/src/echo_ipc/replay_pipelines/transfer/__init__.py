"""How a packed batch gets to the learner's device."""

from typing import Any

from .base import ReplayTransferBackend
from .cuda import CudaReplayTransferBackend
from .torch_copy import TorchCopyReplayTransferBackend
from .xpu import XpuReplayTransferBackend

__all__ = ["ReplayTransferBackend", "build_replay_transfer_backend"]

BACKENDS: dict[str, type[ReplayTransferBackend]] = {"cuda": CudaReplayTransferBackend, "xpu": XpuReplayTransferBackend}


def build_replay_transfer_backend(*, device: Any, ring_depth: int) -> ReplayTransferBackend:
    """The backend for a torch.device: with streams for cuda and xpu, with plain copies for all others."""
    return BACKENDS.get(device.type, TorchCopyReplayTransferBackend)(device=device, ring_depth=ring_depth)
