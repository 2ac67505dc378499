"""Calls the native interface of a sampler (include/echo_sampler.h) from Python; for tests only.

Like the native interface itself, it checks no arguments: wrong ones corrupt memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_double, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

from echo_core.store.sampler import Keys, Priorities

__all__ = ["NativeDoor"]

_Rows, _Numbers = POINTER(c_uint32), POINTER(c_double)


class _Table(ctypes.Structure):
    _fields_ = (
        ("version", c_uint32),
        ("size", c_uint32),
        ("state", c_void_p),
        ("insert", CFUNCTYPE(None, c_void_p, _Rows, _Numbers, c_size_t)),
        ("remove", CFUNCTYPE(None, c_void_p, _Rows, c_size_t)),
        ("update", CFUNCTYPE(None, c_void_p, _Rows, _Numbers, c_size_t)),
        ("sample", CFUNCTYPE(c_size_t, c_void_p, c_void_p, c_size_t, _Rows, _Numbers)),
        ("count", CFUNCTYPE(c_size_t, c_void_p)),
        ("priorities", CFUNCTYPE(None, c_void_p, _Rows, _Numbers, c_size_t)),
        ("victims", CFUNCTYPE(c_size_t, c_void_p, c_size_t, _Rows)),
        ("mass", CFUNCTYPE(c_double, c_void_p)),
        ("published", CFUNCTYPE(None, c_void_p, c_uint64)),
    )


class NativeDoor:
    """The functions of the `echo_sampler` in a capsule, with the arguments of the methods of `Sampler`.

    Raises:
        ValueError: the capsule has another name.
        AssertionError: the function table has another version, or is shorter than expected.
    """

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule  # keeps the sampler alive
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)
        self._table = _Table.from_address(get(capsule, b"echo_core.sampler"))
        assert self._table.version == 1, f"version {self._table.version} of the native interface"
        assert self._table.size >= _Table.mass.offset, f"{self._table.size} bytes are too few for an echo_sampler"
        self.victims: Callable[[int], Keys] | None = self._victims if self._table.victims else None

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        rows = keys.astype(np.uint32)
        self._table.insert(self._table.state, _at(rows, _Rows), _at(priorities, _Numbers), len(rows))

    def delete(self, keys: Keys) -> None:
        rows = keys.astype(np.uint32)
        self._table.remove(self._table.state, _at(rows, _Rows), len(rows))

    def update(self, keys: Keys, priorities: Priorities) -> None:
        rows = keys.astype(np.uint32)
        self._table.update(self._table.state, _at(rows, _Rows), _at(priorities, _Numbers), len(rows))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        rows, probabilities = np.empty(n, np.uint32), np.empty(n)
        random = ctypes.cast(rng.bit_generator.ctypes.bit_generator, c_void_p)
        if self._table.sample(self._table.state, random, n, _at(rows, _Rows), _at(probabilities, _Numbers)) != n:
            raise ValueError(f"not enough to draw {n}")
        return rows.astype(np.uint64), probabilities

    def priorities(self, keys: Keys) -> Priorities:
        rows, out = keys.astype(np.uint32), np.empty(len(keys))
        self._table.priorities(self._table.state, _at(rows, _Rows), _at(out, _Numbers), len(rows))
        return out

    def mass(self) -> float | None:
        if self._table.size < _Table.published.offset or not self._table.mass:
            return None
        mass = float(self._table.mass(self._table.state))
        return None if np.isnan(mass) else mass

    def published(self, version: int) -> None:
        if self._table.size >= ctypes.sizeof(_Table) and self._table.published:
            self._table.published(self._table.state, version)

    def _victims(self, n: int) -> Keys:
        rows = np.empty(n, np.uint32)
        return rows[: self._table.victims(self._table.state, n, _at(rows, _Rows))].astype(np.uint64)

    def __len__(self) -> int:
        return int(self._table.count(self._table.state))


def _at(array: Any, pointer: Any) -> Any:
    return None if array is None else array.ctypes.data_as(pointer)
