"""Packs arrays into the blob of a request or of its answer, as little-endian bytes one after another, and unpacks them.

A request and its answer carry JSON and a blob, at most 1 MiB together, over every transport. The blob of an operation on a table holds
first `n` keys (u64), then the arrays that belong to them. A larger request or answer travels in pieces, each of which is a request of its
own: see server/requests/large_messages.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import ProtocolError
from .protocol import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from ..spec.spec import Spec
    from .protocol import Buffer

__all__ = ["DRAWN", "MAX_BYTES", "MAX_KEYS", "MOST_BYTES", "PARTS", "PIECES", "fill", "join", "max_rows", "pieces", "split"]

ROOM = 4096  # bytes of a message that are reserved for its JSON
MAX_BYTES = MAX_CONTROL_BYTES - ROOM
MAX_KEYS = MAX_BYTES // 16  # keys with their priorities in one message
DRAWN = 24  # bytes of an item's key (u64), probability (f64) and policy version (u64)


MOST_BYTES = 1 << 30  # the limit for one batch
PARTS = "echo/parts"  # in the body of a request: the number under which its blob was sent before
PIECES = "echo/pieces"  # in the body of an answer: the number under which the client fetches the rest


def max_rows(spec: Spec) -> int:
    """The most items in one request or answer: as many as fit into a message, and at least one, which travels in pieces if it is larger."""
    return max(1, MAX_BYTES // max(1, spec.sample_bytes + DRAWN))


def split(blob: Buffer, *parts: tuple[Any, tuple[int, ...]]) -> list[np.ndarray]:
    """Split `blob` into arrays of these dtypes and shapes, which must fill it exactly. The arrays are writable copies.

    Raises:
        ProtocolError: the blob has another length.
    """
    # The length is checked before anything is allocated, because the other end chose the shapes.
    _check_length(blob, sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in parts))
    arrays = [np.empty(shape, dtype) for dtype, shape in parts]
    fill(blob, arrays)
    return arrays


def _check_length(blob: Buffer, wanted: int) -> None:
    if wanted != len(blob):
        raise ProtocolError(f"received a message of {len(blob)} bytes instead of {wanted}; install the same echo-core at both ends")


def fill(blob: Buffer, arrays: Sequence[np.ndarray]) -> None:
    """Copy `blob` into contiguous arrays, one after another. It must fill them exactly.

    Raises:
        ProtocolError: the blob has another length; nothing was copied.
    """
    _check_length(blob, sum(array.nbytes for array in arrays))
    at = 0
    for array in arrays:
        if array.nbytes:
            _bytes_of(array)[:] = np.frombuffer(blob, np.uint8, array.nbytes, at)
        at += array.nbytes


def pieces(*arrays: np.ndarray) -> list[memoryview]:
    """The bytes of arrays, to be sent one after another. Contiguous arrays are not copied."""
    return [_bytes_of(np.ascontiguousarray(array)).data for array in arrays if array.size]


def join(*arrays: np.ndarray) -> bytes:
    """The bytes of arrays, one after another, copied once."""
    return b"".join(pieces(*arrays))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous, non-empty array, as a view."""
    return array.reshape(-1).view(np.uint8)
