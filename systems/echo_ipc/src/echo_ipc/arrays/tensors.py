"""Between tensors of torch and arrays of numpy, without importing torch.

A program that has a tensor has imported torch, so `sys.modules` tells whether a value can be one. A tensor in the CPU's memory becomes an array over the
same memory; bfloat16, which numpy does not have, becomes its bits as uint16. A tensor of another device is copied, and so is one that torch
conjugates or negates only when it is read.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["as_array", "copy_back", "dtype_of", "is_in_memory_of", "is_tensor"]


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(value: Any) -> np.ndarray:
    """The array over a tensor's memory, or of an array-like. The bytes of a tensor on another device are copied: writing there does not change it."""
    if type(value) is np.ndarray:
        return value
    if is_tensor(value):
        return _array_of(value)
    return np.asarray(value)


def _array_of(tensor: Any) -> np.ndarray:
    try:
        plain: np.ndarray = tensor.numpy()  # most are in the CPU's memory and need no gradient
        return plain
    except (TypeError, RuntimeError):
        pass
    torch = sys.modules["torch"]
    tensor = tensor.detach().resolve_conj().resolve_neg()  # these two copy what is conjugated or negated in name only
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: np.ndarray = tensor.numpy()
    return array


def dtype_of(value: Any) -> np.dtype:
    """The dtype that an array over `value` would have; `value` has an attribute `dtype`. Nothing is copied."""
    if not is_tensor(value):
        found: np.dtype = np.dtype(value.dtype)
        return found
    torch = sys.modules["torch"]
    if value.dtype is torch.bfloat16:
        return np.dtype(np.uint16)
    dtype: np.dtype = torch.empty(0, dtype=value.dtype).numpy().dtype
    return dtype


def is_in_memory_of(value: Any) -> bool:
    """Whether as_array(value) has the value's own memory, so that writing to it changes the value."""
    return isinstance(value, np.ndarray) or (is_tensor(value) and value.device.type == "cpu" and not value.is_conj() and not value.is_neg())


def copy_back(tensor: Any, array: np.ndarray) -> None:
    """Copy an array into a tensor that is not in its memory; a bfloat16 tensor gets the bits of a uint16 array."""
    torch = sys.modules["torch"]
    found = torch.from_numpy(array)
    if tensor.dtype is torch.bfloat16:
        found = found.view(torch.bfloat16)
    tensor.detach().copy_(found)
