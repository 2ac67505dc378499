"""The parameters of one version. Small parameters travel to a worker within the task that needs them.

Fetching weights costs a worker another exchange of messages for each version, which is most of the time of a short evaluation. Larger parameters
travel as the weights of the server (`published.py`), because workers on one machine can share one copy of them in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from echo_core.base.errors import ProtocolError
from echo_core.spec.dtypes import dtype_from_json, dtype_to_json, native, refusal
from echo_core.wire import blobs
from echo_core.wire.digest import digest

from ..strategies.base import Array

__all__ = ["SMALL", "Parameters", "received"]

SMALL = 64 << 10  # bytes; larger parameters travel as weights


class Parameters(NamedTuple):
    """Attributes:
    version: how many epochs the strategy was told.
    weights: the number of the weights that have this version.
    description: what `received` needs to rebuild them from `data`; None if they are not small.
    data: the bytes of all arrays, one array after the other.
    """

    version: int
    weights: int
    description: dict[str, Any] | None
    data: bytes

    @classmethod
    def of(cls, params: Mapping[str, Array], version: int, weights: int) -> Parameters:
        """These parameters, which were published as the weights of this number."""
        arrays = [array for array in params.values() if isinstance(array, np.ndarray) and refusal(array.dtype) is None]
        if len(arrays) != len(params) or sum(array.nbytes for array in arrays) > SMALL:
            return cls(version, weights, None, b"")
        leaves = [[name, dtype_to_json(native(array.dtype)), list(array.shape)] for name, array in zip(params, arrays)]
        data = blobs.join(*(array.astype(native(array.dtype), copy=False) for array in arrays))
        description = {"version": version, "leaves": leaves, "bytes": len(data), "digest": _digest(version, leaves, data)}
        return cls(version, weights, description, data)


def received(description: Mapping[str, Any], blob: bytes) -> tuple[int, dict[str, Array], bytes]:
    """The version, the parameters, which nobody else refers to, and the rest of the blob, which has them at its beginning.

    Raises:
        ProtocolError: the bytes are not those that the server has sent.
    """
    try:
        version, leaves, size = description["version"], description["leaves"], description["bytes"]
        data = blob[:size]
        whole = _digest(version, leaves, data) == description["digest"]
        parts = [(dtype_from_json(dtype), tuple(shape)) for _, dtype, shape in leaves]
        arrays = blobs.split(data, *parts) if whole else []
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the description of the parameters of a task is malformed: {error!r}") from error
    if not whole:
        raise ProtocolError(f"the parameters of version {version!r:.20} arrived damaged: their digest is not the one that the server has sent")
    return version, {name: array for (name, _, _), array in zip(leaves, arrays)}, blob[size:]


def _digest(version: int, leaves: list[Any], data: bytes) -> str:
    """16 hex digits of the bytes and of what they mean."""
    return f"{digest(data, digest(json.dumps([version, leaves]).encode())):016x}"
