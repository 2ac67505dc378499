"""Cuts samples into chunks in plain Python, from the description in spec/record_format.hpp alone: a second opinion about the native cutter."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from echo_core.spec.ragged import CHUNK_BYTES, RaggedSpec
from echo_core.store.slot import claim

BEGINS, ENDS = 1, 2
PAYLOAD = CHUNK_BYTES - 16
NONE = (1 << 64) - 1


def record(spec: RaggedSpec, arrays: list[np.ndarray], lengths: list[int] | None = None, priority: float | None = None, version: int | None = None) -> bytes:
    """The bytes of one record; `lengths` may lie."""
    true = [0] * 4
    for leaf, array in zip(spec.leaves, arrays):
        if leaf.axis >= 0:
            true[leaf.axis] = len(array)
    bits = NONE if priority is None else struct.unpack("<Q", struct.pack("<d", priority))[0]
    header = struct.pack("<4I2Q", *(lengths or true), bits, NONE if version is None else version)
    return header + b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


class Worker:
    """Writes chunks as a transport commits them for one client."""

    def __init__(self, table: Any, client: int) -> None:
        self.table, self.client, self.number = table, client, 0

    def cut(self, data: bytes) -> list[bytes]:
        parts = [data[at : at + PAYLOAD] for at in range(0, len(data), PAYLOAD)]
        return [self.head(len(part), (BEGINS if i == 0 else 0) | (ENDS if i == len(parts) - 1 else 0)) + part for i, part in enumerate(parts)]

    def head(self, used: int, flags: int) -> bytes:
        head = struct.pack("<2IQ", used, flags, self.client << 16 | self.number & 0xFFFF)
        self.number += 1
        return head

    def put(self, *chunks: bytes, timeout: float = 5.0) -> None:
        for chunk in chunks:
            with claim(self.table, timeout) as slot:
                view = slot.buffer(0)
                view[: len(chunk)] = chunk
                view.release()
                slot.commit()
