"""Where tensors live."""

from __future__ import annotations

import warnings

import torch


def resolve(device: str, stacklevel: int = 3) -> torch.device:
    """The device of that name. Without CUDA, `cuda` becomes the CPU, and a warning says so in the line of the caller's caller."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        warnings.warn(f"device={device!r} was asked for, but CUDA is not available; the CPU is used", stacklevel=stacklevel)
        device = "cpu"
    return torch.device(device)
