"""Collects a worker's steps into one sample for its learner.

    example = {"step": {"obs": np.zeros((64, 4), np.float32)},       # 64 calls of add("step", ...)
               "episode": {"return": np.zeros((), np.float32)}}      # one of add("episode", ...)
    trajectory = TrajectoryAccumulator(example)
    ...
    client.send(trajectory.build())

The arrays are allocated once. A whole row is checked before any of it is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.errors import SpecError, did_you_mean
from ..spec.casting import CastingLeaf
from ..spec.leaf import LeafSpec
from ..spec.pytree.flattener import Flattener
from ..spec.row_writer import RowWriter
from ..spec.spec import Spec

__all__ = ["TrajectoryAccumulator"]


class TrajectoryAccumulator:
    """A pre-allocated sample with several timescales, filled row by row.

    The top-level keys of `example` are the timescales, of two kinds:

    * **buffered**: all leaves have the same leading dimension N > 1. N calls of `add` fill it,
      each with a tree of rows: leaves of shape `leaf.shape[1:]`, or `(1, *leaf.shape[1:])`.
    * **single-item**: a leaf is 0-d, or all leaves have leading dimension 1. One call of `add`
      fills it; the leaves have the example's shape, without or with a leading 1.

    Numbers are cast to the example's dtypes: floating-point numbers are rounded, all others must keep their value. A
    fraction or NaN in an integer leaf and an overflow are refused. A Python scalar is accepted where a row is 0-d. Nothing is
    broadcast. One accumulator belongs to one thread.

    Args:
        example: dict of timescale name → pytree of arrays; also the example of server and client.
        namespace: optree namespace of the example's classes.

    Raises:
        TypeError: `example` is not a dict.
        SpecError: a timescale is empty, or its leaves' leading dimensions differ; the message names the leaf.
    """

    def __init__(self, example: Mapping[str, Any], *, namespace: str = "") -> None:
        if not isinstance(example, dict):
            raise TypeError(
                f"the example must be a dict of timescales, got a {type(example).__name__}; write "
                'for instance {"step": example}'
            )
        self.spec = Spec.from_example(example, namespace=namespace)
        self._scales = {
            name: _Timescale(name, Spec.from_example(tree, namespace=namespace))
            for name, tree in example.items()
        }

    def add(self, name: str, data: Any) -> None:
        """Copy `data` into the next row of timescale `name`.

        Raises SpecError with the names of timescale and leaf if the data does not fit, IndexError if the
        timescale is full, and KeyError if there is no such timescale. An `add` that raises changes nothing.
        """
        scale = self._scales.get(name)
        if scale is None:
            hint = did_you_mean(str(name), map(str, self._scales))
            raise KeyError(f"no timescale {name!r}; the timescales are {list(self._scales)}{hint}")
        filled = scale.filled
        if filled >= scale.capacity:
            raise IndexError(
                f"timescale {name!r} is full with {scale.capacity} of {scale.capacity} rows; "
                "build() the trajectory or reset() it first"
            )
        try:
            scale.writer.write(filled, data)
        except SpecError as error:
            raise SpecError(f"timescale {name!r}: {error}") from error
        scale.filled = filled + 1

    def build(self, *, copy: bool = False) -> dict[str, Any]:
        """Return the finished sample; the counters start again at zero.

        Its arrays are the accumulator's own. The next `add()` overwrites them, which is safe and free
        of cost for `client.send(trajectory.build())`. With `copy=True` the caller gets copies to keep.
        Raises SpecError if rows are missing; the message says which.
        """
        missing = [
            f"{scale.capacity - scale.filled} of {scale.capacity} rows of {name!r}"
            for name, scale in self._scales.items()
            if scale.filled < scale.capacity
        ]
        if missing:
            raise SpecError(
                f"the trajectory is incomplete, missing {', '.join(missing)}; add() them, or "
                "reset() to drop the rows that were added"
            )
        self.reset()
        return {name: scale.tree(copy) for name, scale in self._scales.items()}

    def reset(self) -> None:
        """Drop all rows that were added since the last `build()`, for example when an episode is abandoned."""
        for scale in self._scales.values():
            scale.filled = 0

    @property
    def is_full(self) -> bool:
        """Whether every timescale is full, so that `build()` will succeed."""
        return all(scale.filled == scale.capacity for scale in self._scales.values())

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows added so far to each timescale."""
        return {name: scale.filled for name, scale in self._scales.items()}

    @property
    def capacities(self) -> dict[str, int]:
        """The number of rows that fill each timescale."""
        return {name: scale.capacity for name, scale in self._scales.items()}

    # The original Echo keeps these three under the names below, and programs that were written for it read them.

    @property
    def _counts(self) -> dict[str, int]:
        return self.capacities

    @property
    def _slot(self) -> dict[str, int]:
        return self.counts

    @property
    def _tree(self) -> dict[str, Any]:
        return {name: scale.tree(copy=False) for name, scale in self._scales.items()}

    def __repr__(self) -> str:
        rows = ", ".join(f"{n}: {s.filled}/{s.capacity}" for n, s in self._scales.items())
        return f"TrajectoryAccumulator({rows})"


class _Timescale:
    """The arrays of one timescale and the writer that fills their rows."""

    __slots__ = ("_arrays", "_flattener", "capacity", "filled", "writer")

    def __init__(self, name: str, spec: Spec) -> None:
        leaves = spec.leaves
        if not leaves:
            raise SpecError(f"timescale {name!r} has no arrays; give it one, or remove it")
        single = any(not leaf.shape for leaf in leaves) or all(
            leaf.shape[0] == 1 for leaf in leaves
        )
        if single:
            rows = [leaf.shape[1:] if leaf.shape[:1] == (1,) else leaf.shape for leaf in leaves]
        else:
            self._check_leading(name, leaves)
            rows = [leaf.shape[1:] for leaf in leaves]
        self.capacity = 1 if single else leaves[0].shape[0]
        self.filled = 0
        self._arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        row_leaves = tuple(
            CastingLeaf(leaf.path, shape, leaf.dtype) for leaf, shape in zip(leaves, rows)
        )
        self._flattener = Flattener(spec.flattener.treedef, row_leaves, spec.namespace)
        self.writer = RowWriter(self._flattener, self._arrays)

    @staticmethod
    def _check_leading(name: str, leaves: tuple[LeafSpec, ...]) -> None:
        first = leaves[0]
        for leaf in leaves:
            if leaf.shape[0] != first.shape[0]:
                raise SpecError(
                    f"timescale {name!r}: leaf {leaf.path!r} has leading dimension {leaf.shape[0]}, "
                    f"leaf {first.path!r} has {first.shape[0]}; give every leaf the same leading dimension, "
                    "the number of rows, or make one leaf 0-d for a timescale of a single item"
                )
        if first.shape[0] == 0:
            raise SpecError(f"timescale {name!r} has 0 rows; give its leaves N > 1 rows, or 1")

    def tree(self, copy: bool) -> Any:
        return self._flattener.unflatten([a.copy() if copy else a for a in self._arrays])
