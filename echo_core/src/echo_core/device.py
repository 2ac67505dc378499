"""Whether a value's numbers lie where the processor cannot read them: in the memory of a GPU or of another device.

Such values say so by DLPack (`__dlpack_device__`) or by `__cuda_array_interface__`. Some of them numpy can read all the same, because their
library copies them to the host when asked for an array (jax, numba): nobody asks here for those.
"""

from __future__ import annotations

from typing import Any

__all__ = ["refusal"]

# DLDeviceType of DLPack's dlpack.h. Page-locked and managed memory (3, 11, 13) is the host's to read, like the processor's own (1).
HOST = (1, 3, 11, 13)
NAMES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon"}
FIX = (
    "copy it to the host first: value.detach().cpu() for torch, cupy.asnumpy(value), jax.device_get(value), or into an array that is used again"
    " for every sample"
)


def refusal(value: Any) -> str:
    """Why numpy cannot read this value and what to do about it, if the reason is where it lies; "" otherwise."""
    try:
        kind, number = (int(part) for part in value.__dlpack_device__())
    except Exception:  # it has no such method, or one that does not work: that is no reason to fail here
        kind, number = 0, 0
    if kind in HOST:
        return ""
    if kind:
        where = f"{NAMES.get(kind, f'DLPack type {kind}')} device {number}"
    elif hasattr(type(value), "__cuda_array_interface__"):
        where = "a CUDA device"
    else:
        return ""
    return f"the {type(value).__name__} lies in the memory of {where}, from where Echo does not send; {FIX}"
