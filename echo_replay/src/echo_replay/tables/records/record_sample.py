"""What a table of samples of varying length gives: a packed batch, and what a draw says about its items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import optree

from echo_core.base.errors import SpecError
from echo_core.spec.packed import PackedBatch

if TYPE_CHECKING:
    from echo_core.spec.ragged import RaggedSpec

__all__ = ["PackedSample", "RecordSample"]


class PackedSample:
    """Base of what has a `PackedBatch`, whose `batch`, `offsets`, `lengths`, `row` and `padded` are its own.

    Attributes:
        packed: the `PackedBatch`.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: PackedBatch) -> None:
        self.packed = packed

    @property
    def batch(self) -> Any:
        """The example's tree: leaves of shape `(sum of the lengths, *shape)`, and `(n, *shape)` for leaves that are not Ragged."""
        return self.packed.batch

    @property
    def offsets(self) -> dict[str, npt.NDArray[np.int32]]:
        """By axis: where the rows of each item begin, and the end of the last one; int32 of shape `(n + 1,)`."""
        return self.packed.offsets

    @property
    def lengths(self) -> dict[str, npt.NDArray[np.int32]]:
        """By axis: the length of each item, int32 of shape `(n,)`."""
        return self.packed.lengths

    def row(self, index: int) -> Any:
        """One item, as it was sent. See `PackedBatch.row`."""
        return self.packed.row(index)

    def padded(self, multiple: int = 64, fill: Any = 0) -> tuple[Any, dict[str, npt.NDArray[np.bool_]]]:
        """A copy in which all items have the same length: `(batch, masks)`. See `PackedBatch.padded`."""
        return self.packed.padded(multiple, fill)


class RecordSample(PackedSample):
    """A batch of samples of varying length; unpacks as `batch, info = server.sample()`.

    Attributes:
        packed: the `PackedBatch`. `batch`, `offsets`, `lengths`, `row` and `padded` are its own.
        info, keys, probabilities, weights: as in `Sample`, of shape (n,). They are None in what `peek` returns.

    The arrays are writable and belong to this batch alone. They are valid for as long as anything refers to them.
    """

    __slots__ = ("_columns", "_lease", "info")
    __match_args__ = ("batch", "info")

    def __init__(
        self, spec: RaggedSpec, arrays: Sequence[npt.NDArray[Any]], offsets: Sequence[npt.NDArray[np.int32]], info: Any = None, lease: Any = None
    ) -> None:
        super().__init__(PackedBatch(spec, arrays, offsets))
        self.info, self._lease = info, lease
        self._columns: dict[str, Any] | None = None

    def _column(self, name: str) -> Any:
        if self._lease is None:
            return None
        if self._columns is None:
            self._columns = self._lease.draw_columns()
        return self._columns[name]

    @property
    def keys(self) -> Any:
        return self._column("keys")

    @property
    def probabilities(self) -> Any:
        return self._column("probabilities")

    @property
    def weights(self) -> Any:
        return self._column("weights")

    def with_batch(self, batch: Any) -> RecordSample:
        """Return the same figures with another batch of the same lengths, such as a copy of this one's. The result holds nothing of this sample.

        Raises SpecError if a leaf has another number of rows.
        """
        spec = self.packed.spec
        arrays = optree.tree_leaves(batch, namespace=spec.namespace)
        for leaf, mine, other in zip(spec.leaves, self.packed.arrays, arrays, strict=True):
            if len(other) != len(mine):
                raise SpecError(f"leaf {leaf.path!r} has {len(other)} rows, and this batch has {len(mine)}: with_batch() takes a batch of the same lengths")
        offsets = [self.offsets[axis].copy() for axis in spec.axes]
        info = self.info.copied() if hasattr(self.info, "copied") else self.info
        return RecordSample(spec, arrays, offsets, info, None if self._lease is None else self._lease.copied())

    def __iter__(self) -> Iterator[Any]:
        yield self.batch
        yield self.info

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.batch, self.info)[index]

    def __repr__(self) -> str:
        return f"RecordSample({self.packed!r}, info={self.info!r})"
