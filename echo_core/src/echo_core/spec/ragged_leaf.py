"""A leaf whose first dimension varies from sample to sample: how an example declares it, and what its values must look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import optree

from ..base.errors import SpecError
from . import device
from .dtypes import native, refusal
from .leaf import MAX_NDIM, LeafSpec
from .structure import leaf_name

__all__ = ["MOST_ROWS", "Ragged", "RaggedLeaf", "has_ragged"]

MOST_ROWS = (1 << 31) - 1  # of one sample, because offsets are int32


class Ragged:
    """A leaf of an example whose first dimension varies from sample to sample. In a sample it is an array of shape `(T, *shape)`, 0 <= T <= most.

    Args:
        dtype: of the elements.
        shape: of one row; () for a leaf of shape (T,).
        axis: the name of the dimension that varies. All leaves of one axis have the same T in a sample. An example has up to 4 axes.
        most: the greatest T. It belongs to the axis: leaves of one axis that state it must agree, and None (the default) takes what another leaf
            of the axis states, and 4096 if none does.

    Raises:
        SpecError: the dtype cannot be carried. ValueError: the shape, the axis or `most` is invalid.
    """

    __slots__ = ("axis", "dtype", "most", "shape")

    def __init__(self, dtype: npt.DTypeLike, shape: int | Sequence[int] = (), axis: str = "t", most: int | None = None) -> None:
        given = np.dtype(dtype)
        if (reason := refusal(given)) is not None:
            raise SpecError(f"Ragged: {reason}")
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if len(sizes) >= MAX_NDIM or any(isinstance(n, bool) or not hasattr(type(n), "__index__") or n < 0 for n in sizes):
            raise ValueError(f"Ragged: shape must be the sizes of one row, at most {MAX_NDIM - 1} whole numbers from 0 up, not {shape!r:.80}")
        if not isinstance(axis, str) or not axis or len(axis) > 64:
            raise ValueError(f"Ragged: axis must be a name of at most 64 characters, not {axis!r:.80}")
        if most is not None and (isinstance(most, bool) or not hasattr(type(most), "__index__") or not 0 < most <= MOST_ROWS):
            raise ValueError(f"Ragged: most must be a whole number from 1 to {MOST_ROWS}, not {most!r:.80}")
        self.dtype, self.shape, self.axis = native(given), tuple(int(n) for n in sizes), axis
        self.most = None if most is None else int(most)

    def __repr__(self) -> str:
        most = "" if self.most is None else f", most={self.most}"
        return f"Ragged({self.dtype}, {self.shape}, axis={self.axis!r}{most})"


def has_ragged(example: Any, *, namespace: str = "") -> bool:
    """Whether a leaf of this example is `Ragged`."""
    return any(isinstance(leaf, Ragged) for leaf in optree.tree_leaves(example, namespace=namespace))


@dataclass(frozen=True)
class RaggedLeaf(LeafSpec):
    """One leaf of a `RaggedSpec`. A fixed leaf is as in `Spec`. Of a ragged leaf, `shape` and `nbytes` are those of one row.

    Attributes:
        axis: the index of its axis in `RaggedSpec.axes`; -1 for a fixed leaf.
        axis_name, most: of its axis; "" and 0 for a fixed leaf.
    """

    axis: int = -1
    axis_name: str = ""
    most: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a ragged leaf; 0 for a fixed leaf."""
        return self.nbytes if self.axis >= 0 else 0

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a fixed leaf; 0 for a ragged leaf."""
        return self.nbytes if self.axis < 0 else 0

    def __str__(self) -> str:
        if self.axis < 0:
            return super().__str__()
        return f"{self.dtype} {self._rows} with {self.axis_name} <= {self.most}"

    @property
    def _rows(self) -> str:
        """The shape of a sample's array, such as "(t, 4)"."""
        return f"({', '.join(map(str, (self.axis_name, *self.shape)))}{'' if self.shape else ','})"

    def array_of(self, value: Any) -> np.ndarray:
        """Return `value` as a C-contiguous array of this leaf in the host's memory, of shape `(T, *shape)` or, if it is fixed, `shape`.

        An array that fits is returned itself. Raises SpecError.
        """
        if self.axis < 0:
            array = self.convert(value)
            return array.landed() if isinstance(array, device.Lent) else array
        array = self._as_array(value)
        if array.ndim != len(self.shape) + 1 or array.shape[1:] != self.shape:
            raise SpecError(
                f"{leaf_name(self.path)} must have shape {self._rows} with any {self.axis_name} up to {self.most}, got {array.shape}; "
                "a sample is one array of rows, and several samples are given to send_batch as a list of samples"
            )
        if native(array.dtype) != self.dtype:
            self._check_text(native(array.dtype))
        if isinstance(array, device.Lent):
            array = array.landed()
        return array.astype(self.dtype, order="C", copy=False)
