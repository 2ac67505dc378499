"""A leaf of a trajectory's row. It also takes numbers of other dtypes, and refuses the values that its dtype cannot hold.

Floating-point numbers are rounded to the leaf's precision, but never to infinity. All other numbers must keep their value:
integers and bools among each other, floating-point numbers as integers, and integers as floating-point numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.errors import SpecError
from . import device
from .dtypes import kind_of
from .leaf import EXACT, LeafSpec
from .structure import leaf_name

__all__ = ["CastingLeaf"]

NUMBERS = "bifc"  # the kinds of `kind_of`


@dataclass(frozen=True)
class CastingLeaf(LeafSpec):
    """See above."""

    def convert(self, value: Any, mode: int = EXACT, n: int = -1) -> np.ndarray | device.Lent:
        """Like `LeafSpec.convert`, for numbers of every dtype. Raises SpecError that names the leaf and the first value that does not fit."""
        array: np.ndarray | device.Lent
        if isinstance(value, (bool, int, float, complex)):
            array = np.asarray(value)
            if self.shape and not isinstance(value, np.generic):
                return super().convert(value, mode, n)
        elif isinstance(value, (str, bytes)):
            return super().convert(value, mode, n)
        else:
            array = self._as_array(value)
        numbers = kind_of(array.dtype) in NUMBERS and kind_of(self.dtype) in NUMBERS
        if isinstance(array, device.Lent) or not numbers or array.dtype == self.dtype:
            return super().convert(value, mode, n)
        self._check_shape(array, mode, n)
        return self._cast(array)

    def _cast(self, array: np.ndarray) -> np.ndarray:
        if kind_of(array.dtype) == "c" and kind_of(self.dtype) != "c":
            raise SpecError(f"{leaf_name(self.path)} is {self.dtype} and cannot hold {array.dtype}; give its real part")
        with np.errstate(all="ignore"):  # what does not fit is found by comparison
            cast = array.astype(self.dtype, order="C")
            lost = _lost(array.real, cast.real) | _lost(array.imag, cast.imag)
        if lost.any():
            at = tuple(int(i) for i in np.argwhere(lost)[0])
            raise SpecError(
                f"{leaf_name(self.path)} is {self.dtype} and cannot hold {array[at].item()!r}{f' at {at}' if at else ''}; "
                "convert it on purpose, or declare a dtype that holds it"
            )
        return cast


def _lost(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which real numbers of `after`, which was cast from `before`, are neither the same nor the same after rounding."""
    rounded = kind_of(before.dtype) == kind_of(after.dtype) == "f"
    before, after = _extended(before), _extended(after)
    same: np.ndarray = (before == after) | (np.isnan(before) & np.isnan(after))
    if rounded:
        same |= np.isfinite(before) & np.isfinite(after)
    return ~same


def _extended(numbers: np.ndarray) -> np.ndarray:
    """The same numbers in a type that has all integers of 64 bits and all floating-point numbers of 64 bits."""
    return (numbers.astype(np.float64) if numbers.dtype.isbuiltin == 2 else numbers).astype(np.longdouble)
