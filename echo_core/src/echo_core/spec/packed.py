"""Samples of varying length as one batch: each leaf is one array in which the samples' rows follow one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import SpecError, did_you_mean
from .leaf import LeafSpec
from .ragged import RaggedLeaf, RaggedSpec

__all__ = ["PackedBatch", "offsets_of"]

Int32s = npt.NDArray[np.int32]


def offsets_of(lengths: npt.NDArray[Any]) -> list[Int32s]:
    """For each axis where the rows of each sample begin, and the end of the last one; `lengths` has shape (n, axes), and no sum above 2^31 - 1."""
    return [np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths.T]


class PackedBatch:
    """A batch of n samples of varying length, without padding.

    Args:
        spec: of the samples.
        arrays: one for each leaf, in the spec's order: shape `(sum of the lengths, *shape)` for a ragged leaf, `(n, *shape)` for a fixed one. They
            are used as they are.
        offsets: for each axis, in the spec's order, int32 of shape `(n + 1,)`: where the rows of each sample begin, and the end of the last one.

    Attributes:
        spec: as given.
        offsets: by axis: what flash-attention calls `cu_seqlens`, and `torch.nested` offsets.

    Its arrays are views of the memory of `arrays`, and every part of a batch keeps that memory. Nothing is copied except by `padded`.
    """

    def __init__(self, spec: RaggedSpec, arrays: Sequence[npt.NDArray[Any]], offsets: Sequence[Int32s]) -> None:
        self.spec = spec
        self._arrays, self._offsets = list(arrays), list(offsets)
        self.offsets: dict[str, Int32s] = dict(zip(spec.axes, self._offsets, strict=True))

    @classmethod
    def joined(cls, parts: Sequence[PackedBatch]) -> PackedBatch:
        """The samples of several batches of one spec, one after another, as one batch with memory of its own.

        Raises:
            ValueError: there is no part. SpecError: their specs differ, or an axis would have more than 2^31 - 1 rows, which int32 cannot number.
        """
        if not parts:
            raise ValueError("at least one batch is needed")
        spec = parts[0].spec
        for part in parts[1:]:
            if difference := spec.chunk_spec.difference(part.spec.chunk_spec, "in the first batch", "in another one"):
                raise SpecError(f"batches of one spec are joined: {difference}")
        offsets = []
        for axis, name in enumerate(spec.axes):
            lengths = np.concatenate([np.diff(part._offsets[axis]) for part in parts])
            ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            if ends[-1] >= 1 << 31:
                raise SpecError(f"the joined batch would have {ends[-1]} rows along the axis {name!r}, and offsets of 32 bits number {(1 << 31) - 1}")
            offsets.append(ends.astype(np.int32))
        return cls(spec, [np.concatenate(arrays) for arrays in zip(*(part._arrays for part in parts))], offsets)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """One packed array for each leaf, in the spec's order."""
        return tuple(self._arrays)

    @property
    def batch(self) -> Any:
        """The example's tree of packed arrays."""
        return self.spec.flattener.unflatten(self._arrays)

    @property
    def lengths(self) -> dict[str, Int32s]:
        """By axis: the length of each sample, int32 of shape `(n,)`."""
        return {name: np.diff(offsets) for name, offsets in self.offsets.items()}

    def __len__(self) -> int:
        return len(self._offsets[0]) - 1

    def row(self, index: int) -> Any:
        """One sample, as it was sent: the example's tree of arrays, with leaves of shape `(T, *shape)` or, if they are fixed, `shape`.

        Raises IndexError if there is no such sample; a negative index counts from the end.
        """
        return self.spec.flattener.unflatten(self.leaves(index))

    def leaves(self, index: int) -> list[npt.NDArray[Any]]:
        """The arrays of one sample, in the spec's order. As `row`."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"sample {index} of a batch of {n}")
        index %= n
        leaves = []
        for leaf, array in zip(self.spec.leaves, self._arrays):
            if leaf.axis < 0:
                leaves.append(array[index, ...])
            else:
                at = self._offsets[leaf.axis]
                leaves.append(array[at[index] : at[index + 1]])
        return leaves

    def __iter__(self) -> Iterator[Any]:
        return (self.row(i) for i in range(len(self)))

    def __getitem__(self, part: slice) -> PackedBatch:
        """Consecutive samples, `packed[8:16]`, as a batch of their own, whose offsets begin at 0. Raises TypeError for anything but such a slice."""
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise TypeError(f"a packed batch has parts of consecutive samples, such as packed[8:16], and no [{part!r}]; row({part!r}) returns one sample")
        begin, end, _ = part.indices(len(self))
        end = max(begin, end)
        arrays = []
        for leaf, array in zip(self.spec.leaves, self._arrays):
            at = self._offsets[leaf.axis] if leaf.axis >= 0 else None
            arrays.append(array[begin:end] if at is None else array[at[begin] : at[end]])
        return PackedBatch(self.spec, arrays, [at[begin : end + 1] - at[begin] for at in self._offsets])

    def padded(self, multiple: int = 64, fill: Any = 0) -> tuple[Any, dict[str, npt.NDArray[np.bool_]]]:
        """A copy in which all samples have the same length.

        Args:
            multiple: the length of each axis is that of its longest sample, rounded up to a multiple of this, so that a compiled function sees few
                different shapes.
            fill: the value of elements that no sample has; or a dict of such values by the path of the leaf, for instance
                `{"tokens": pad_token_id}`, and 0 for the others.

        Returns:
            `(batch, masks)`: the example's tree with leaves of shape `(n, length, *shape)` or `(n, *shape)`; and for each axis bool of shape
            `(n, length)`, true where a sample has elements.

        Raises:
            ValueError: `multiple` is less than 1. SpecError: a leaf cannot hold the value of `fill`, or there is no such leaf.
        """
        if isinstance(multiple, bool) or not hasattr(type(multiple), "__index__") or multiple < 1:
            raise ValueError(f"multiple must be a whole number from 1 up, not {multiple!r}")
        fills = self._fills(fill)
        n, lengths = len(self), [np.diff(offsets) for offsets in self._offsets]
        most = [-(-int(each.max(initial=0)) // multiple) * multiple for each in lengths]
        leaves = []
        for leaf, array in zip(self.spec.leaves, self._arrays):
            if leaf.axis < 0:
                leaves.append(array.copy())
                continue
            out = np.zeros((n, most[leaf.axis], *leaf.shape), leaf.dtype)
            if (value := fills.get(leaf.path)) is not None:
                out[...] = value
            at = self._offsets[leaf.axis].tolist()
            for i in range(n):
                out[i, : at[i + 1] - at[i]] = array[at[i] : at[i + 1]]
            leaves.append(out)
        masks = {name: np.arange(length) < each[:, None] for name, each, length in zip(self.spec.axes, lengths, most)}
        return self.spec.flattener.unflatten(leaves), masks

    def _fills(self, fill: Any) -> dict[str, Any]:
        """By the path of a ragged leaf: the value to fill it with, where that is not zero."""
        ragged: dict[str, RaggedLeaf] = {leaf.path: leaf for leaf in self.spec.leaves if leaf.axis >= 0}
        if not isinstance(fill, Mapping):
            fill = {} if isinstance(fill, (int, float)) and fill == 0 else dict.fromkeys(ragged, fill)
        made = {}
        for path, value in fill.items():
            if path not in ragged:
                raise SpecError(f"fill has a value for {path!r}, which is no Ragged leaf of the batch{did_you_mean(str(path), list(ragged))}")
            try:
                made[path] = LeafSpec(path, (), ragged[path].dtype).convert(value)
            except SpecError as error:
                raise SpecError(f"fill: {error}; a dict gives each leaf its own value, such as fill={{{path!r}: 0}}") from error
        return made

    def __repr__(self) -> str:
        return f"PackedBatch({len(self)} samples, {', '.join(f'{name}: {int(at[-1] - at[0])}' for name, at in self.offsets.items())} rows)"
