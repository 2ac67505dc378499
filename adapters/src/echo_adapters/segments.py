"""Packed batches for functions that are compiled for fixed shapes, as in JAX: which sample each row belongs to, and where in it the row is.

    rows = padded_rows(sample, 1024)                             # few different shapes
    ids = segment_ids(sample.offsets["t"], len(rows["tokens"]))
    sums = jax.ops.segment_sum(rows["logprobs"], ids, num_segments=len(sample.lengths["t"]))    # drops the rows of no sample
    attend = ids[:, None] == ids[None, :]                        # a sample attends to itself only

This module needs numpy only; JAX takes its results as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import optree

from echo_core.spec.packed import PackedBatch

__all__ = ["padded_rows", "positions", "segment_ids"]


def segment_ids(offsets: npt.ArrayLike, length: int | None = None) -> npt.NDArray[np.int32]:
    """Return for each row the number of its sample: int32 of shape `(length,)`, ascending.

    Args:
        offsets: of one axis, as `sample.offsets["t"]`: shape `(n + 1,)`, beginning with 0.
        length: of the result; None is the number of rows. Rows beyond those of the samples get the number n, which `jax.ops.segment_sum(...,
            num_segments=n)` and its like drop.

    Raises:
        ValueError: `offsets` are no offsets, or `length` is less than the number of rows.
    """
    at, rows = _checked(offsets, length)
    return np.repeat(np.arange(len(at), dtype=np.int32), np.append(np.diff(at), rows - at[-1]))


def positions(offsets: npt.ArrayLike, length: int | None = None) -> npt.NDArray[np.int32]:
    """Return for each row its place within its sample, from 0: int32 of shape `(length,)`. Arguments and errors as of `segment_ids`; rows beyond
    those of the samples count from 0, too."""
    at, rows = _checked(offsets, length)
    return np.arange(rows, dtype=np.int32) - np.repeat(at.astype(np.int32), np.append(np.diff(at), rows - at[-1]))


def padded_rows(sample: Any, multiple: int) -> Any:
    """Return the batch's tree with ragged leaves whose number of rows is rounded up to a multiple of `multiple`; the rows beyond are zero.

    Unlike `sample.padded()`, which pads each sample, this pads the whole batch once. Leaves that have to grow are copied.

    Raises:
        ValueError: `multiple` is less than 1.
    """
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, not {multiple}")
    packed: PackedBatch = getattr(sample, "packed", sample)
    leaves = []
    for leaf, array in zip(packed.spec.leaves, optree.tree_leaves(packed.batch, namespace=packed.spec.namespace)):
        more = -len(array) % multiple if leaf.axis >= 0 else 0
        leaves.append(np.concatenate([array, np.zeros((more, *leaf.shape), leaf.dtype)]) if more else array)
    return packed.spec.flattener.unflatten(leaves)


def _checked(offsets: npt.ArrayLike, length: int | None) -> tuple[npt.NDArray[np.int64], int]:
    at = np.asarray(offsets)
    if at.ndim != 1 or at.dtype.kind not in "iu" or not len(at) or at[0] != 0 or (np.diff(at.astype(np.int64)) < 0).any():
        raise ValueError(f"offsets must be whole numbers that begin with 0 and never fall, not {at!r:.80}")
    at = at.astype(np.int64)
    rows = int(at[-1]) if length is None else length
    if rows < at[-1]:
        raise ValueError(f"length is {rows}, but the samples have {at[-1]} rows")
    return at, rows
