"""Values whose shape nobody knows beforehand, as bytes and back. Nothing is pickled, so nothing that is read runs code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError

from . import tensors

__all__ = ["pack", "unpack"]

ALIGNMENT = 16


def pack(value: Any) -> bytes:
    """Raises SpecError that names the place in `value` which is neither array, tensor, number, string or None, nor a tuple, list or dict of such."""
    parts: list[np.ndarray] = []
    head = json.dumps(_described(value, "", parts)).encode()
    found = bytearray(len(head).to_bytes(8, "little") + head)
    for part in parts:
        found += bytes(-len(found) % ALIGNMENT)
        found += part.tobytes()
    return bytes(found)


def unpack(data: bytes) -> Any:
    """The opposite of pack(). Arrays and tensors are new; tensors are in the CPU's memory."""
    length = int.from_bytes(data[:8], "little")
    return _value(json.loads(data[8 : 8 + length]), data, [8 + length])


def _described(value: Any, where: str, parts: list[np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_described(each, f"{where}[{index}]", parts) for index, each in enumerate(value)]]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _described(each, f"{where}[{key!r}]" if where else key, parts) for key, each in value.items()}]
    if tensors.is_tensor(value) or isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(tensors.as_array(value))
        if not array.dtype.hasobject and array.dtype.names is None:
            parts.append(array)
            kind = str(value.dtype) if tensors.is_tensor(value) else "array"
            return [kind, array.dtype.str, list(np.shape(value))]
    fix = "use arrays, tensors, numbers and strings in tuples, lists and dicts"
    raise SpecError(f"{where or 'the value'} is of the type {type(value).__name__}, which cannot be shared; {fix}")


def _value(head: Any, data: bytes, at: list[int]) -> Any:
    kind = head[0]
    if kind == "plain":
        return head[1]
    if kind in ("tuple", "list"):
        found = [_value(each, data, at) for each in head[1]]
        return tuple(found) if kind == "tuple" else found
    if kind == "dict":
        return {key: _value(each, data, at) for key, each in head[1].items()}
    start = at[0] + -at[0] % ALIGNMENT
    dtype, shape = np.dtype(head[1]), tuple(head[2])
    count = int(np.prod(shape, dtype=np.int64))
    at[0] = start + count * dtype.itemsize
    array = np.frombuffer(data, dtype, count, start).reshape(shape).copy()
    if kind == "array":
        return array
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "torch.bfloat16" else tensor
