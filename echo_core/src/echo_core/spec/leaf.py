"""One leaf of a spec, and the rules by which a value becomes that leaf or is refused.

A value must have exactly the leaf's dtype and shape. It is converted without an error only if every
element keeps its value. This covers byte order, memory layout, array-likes (through `np.asarray`)
and strings that are narrower than the leaf's. For 0-d leaves it also covers Python scalars, and numpy's scalars
of numbers as the Python scalars of the same value. They are typed weakly as in NEP 50. A bool becomes bool, an int becomes int, and a float becomes floating
(rounded, but never to infinity). An int becomes floating or complex, and a float becomes complex,
if no digit is lost. str and bytes are accepted if they fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np

from ..base.errors import SpecError
from . import device
from .arrays import as_array
from .dtypes import kind_of, native
from .structure import leaf_name

__all__ = ["EXACT", "MAX_NDIM", "ONE_OPTIONAL", "STACKED", "LeafSpec"]

MAX_NDIM = 32

# Which leading axis `LeafSpec.convert` accepts. The values are those of flattener.pxd.
EXACT = 0  # none
STACKED = 1  # one more, of length n (any length if n < 0)
ONE_OPTIONAL = 2  # none, or one more of length 1


@dataclass(frozen=True)
class LeafSpec:
    """One array of a sample: its readable `path` (`obs/pixels`), `shape`, native-endian `dtype`, and
    `nbytes`, the size of this leaf in one sample. `swapped`: the example has another byte order, or a field of it has."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    swapped: bool = field(default=False, compare=False)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    def convert(self, value: Any, mode: int = EXACT, n: int = -1) -> np.ndarray | device.Lent:
        """Return `value` as a C-contiguous, native-endian array of this leaf; an array that is one already
        is returned itself. An array in the memory of a device stays there. Raises SpecError."""
        if isinstance(value, (bool, int, float, complex, str, bytes)) and not isinstance(
            value, np.generic
        ):
            return self._from_scalar(value, mode)
        if self.shape == () and mode != STACKED and isinstance(value, (np.number, np.bool_)):
            same = value.item()
            # numpy's extended precision has no Python scalar, and its own dtype needs no conversion.
            if not isinstance(same, np.generic) and value.dtype != self.dtype:
                return self._from_scalar(same, mode, value)
        array = self._as_array(value)
        self._check_shape(array, mode, n)
        dtype = native(array.dtype)
        if dtype != self.dtype:
            self._check_text(dtype)
        if isinstance(array, device.Lent):
            return array
        return array.astype(self.dtype, order="C", copy=False)

    def stacked(self, value: Any, n: int) -> np.ndarray:
        """Return the values of this leaf in `n` samples as an array of shape `(n, *shape)` in the host's memory. Raises SpecError."""
        array = self.convert(value, STACKED, n)
        return array.landed() if isinstance(array, device.Lent) else array

    def _as_array(self, value: Any) -> np.ndarray | device.Lent:
        kind = type(value).__name__
        if value is None or isinstance(value, (dict, list, tuple, set)):
            raise SpecError(
                f"{leaf_name(self.path)} must be an array ({self}), got a {kind}; "
                "convert it with np.asarray(value, dtype)"
            )
        array = as_array(value, leaf_name(self.path))
        if array.dtype.hasobject:
            raise SpecError(
                f"{leaf_name(self.path)} must be an array ({self}), got a {kind} of Python "
                "objects; convert it to numbers first"
            )
        return array

    def _check_shape(self, array: np.ndarray | device.Lent, mode: int, n: int) -> None:
        got, own = array.shape, self.shape
        if mode == STACKED:
            if got[1:] == own and array.ndim == len(own) + 1 and n in (-1, got[0]):
                return
            wanted = (n if n >= 0 else "N", *own)
            text = "(" + ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "") + ")"
            fix = "stack the samples of a batch along a new first axis, the same N in every leaf"
        else:
            if got == own or (mode == ONE_OPTIONAL and got == (1, *own)):
                return
            text = str(own)
            if got[1:] == own and array.ndim == len(own) + 1:
                fix = "it looks like several samples: use send_batch, or index one of them"
            elif array.size == prod(own):
                fix = f"if its elements are in the right order, use value.reshape({own})"
            else:
                fix = "give that shape, or declare this one in the example at both ends. "
                fix += f"Payload size is {array.size * self.dtype.itemsize} bytes instead of {prod(own) * self.dtype.itemsize}"
        raise SpecError(f"{leaf_name(self.path)} must have shape {text}, got {got}; {fix}")

    def _check_text(self, dtype: np.dtype) -> None:
        """Raise SpecError unless `dtype`, which is not the leaf's, is a narrower string type."""
        fix = f"convert it with {self._conversion}, or declare {dtype} in the example at both ends"
        if self.dtype.kind in "SU" and dtype.kind == self.dtype.kind:
            if dtype.itemsize <= self.dtype.itemsize:
                return
            fix = "shorten it, or declare wider strings in the example at both ends"
        raise SpecError(f"{leaf_name(self.path)} must be {self.dtype}, got {dtype}; {fix}")

    @property
    def _conversion(self) -> str:
        dtype = str(self.dtype) if self.dtype.names is not None else repr(str(self.dtype))
        return f"np.asarray(value, {dtype})"

    def _from_scalar(self, value: Any, mode: int, given: np.generic | None = None) -> np.ndarray:
        if mode == STACKED or self.shape != ():
            raise SpecError(
                f"{leaf_name(self.path)} must be an array ({self}), got the Python "
                f"{type(value).__name__} {value!r:.40}; only 0-d leaves take Python scalars, so "
                f"make it one of shape {self.shape}"
            )
        try:
            # An overflow shows as an exception or as another value; its warning would add nothing.
            with np.errstate(all="ignore"):
                array = np.array(value, self.dtype)
                fits = self._kept(value, array[()])
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            what = f"the Python {type(value).__name__} {value!r:.40}" if given is None else repr(given)
            raise SpecError(
                f"{leaf_name(self.path)} is {self.dtype} and cannot hold {what} unchanged; convert it on purpose with "
                f"{self._conversion}, or declare a dtype that holds it"
            )
        return array

    def _kept(self, value: Any, stored: Any) -> bool:
        """Whether `stored`, which numpy made from the Python scalar, still is that value."""
        kind = kind_of(self.dtype)
        if isinstance(value, bool):
            return kind == "b"
        if isinstance(value, int):
            if kind == "i":
                return int(stored) == value
            return kind in "fc" and isfinite(stored.real) and int(stored.real) == value
        if isinstance(value, float):
            return kind in "fc" and _rounds_to(value, stored.real)
        if isinstance(value, complex):
            return (
                kind == "c"
                and _rounds_to(value.real, stored.real)
                and _rounds_to(value.imag, stored.imag)
            )
        return kind == ("U" if isinstance(value, str) else "S") and stored == value


def _rounds_to(value: float, stored: Any) -> bool:
    """Whether finite stays finite, infinity stays infinity (some float8 have none), and NaN stays NaN."""
    stored = float(stored)
    if isfinite(value):
        return isfinite(stored)
    return stored == value or (value != value and stored != stored)
