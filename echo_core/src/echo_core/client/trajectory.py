"""Collects a worker's steps into one sample for its learner.

    example = {"step": {"obs": np.zeros((64, 4), np.float32)},       # 64 calls of add("step", ...)
               "episode": {"return": np.zeros((), np.float32)}}      # one of add("episode", ...)
    trajectory = TrajectoryAccumulator(example)
    ...
    client.send(trajectory.build())

The arrays are allocated once. A whole row is checked before any of it is copied.

Episodes of varying length have timescales of `Ragged` leaves, to which `add` appends rows:

    example = {"step": {"obs": Ragged(np.float32, (4,), most=1000)}, "episode": {"return": np.zeros((), np.float32)}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..base.errors import SpecError, did_you_mean
from ..spec.casting import CastingLeaf
from ..spec.leaf import LeafSpec
from ..spec.pytree.flattener import Flattener
from ..spec.ragged import RaggedSpec, has_ragged
from ..spec.row_writer import RowWriter
from ..spec.spec import Spec

__all__ = ["TrajectoryAccumulator"]


class TrajectoryAccumulator:
    """A pre-allocated sample with several timescales, filled row by row.

    The top-level keys of `example` are the timescales, of three kinds:

    * **buffered**: all leaves have the same leading dimension N > 1. N calls of `add` fill it,
      each with a tree of rows: leaves of shape `leaf.shape[1:]`, or `(1, *leaf.shape[1:])`.
    * **single-item**: a leaf is 0-d, or all leaves have leading dimension 1. One call of `add`
      fills it; the leaves have the example's shape, without or with a leading 1.
    * **growing**: all leaves are `Ragged`, of one axis. Each call of `add` appends a tree of rows, up to the axis' `most`, and `build` returns
      the whole episode, of any length. Growing timescales of the same axis must have the same number of rows then.

    Numbers are cast to the example's dtypes: floating-point numbers are rounded, all others must keep their value. A
    fraction or NaN in an integer leaf and an overflow are refused. A Python scalar is accepted where a row is 0-d. Nothing is
    broadcast. One accumulator belongs to one thread.

    Args:
        example: dict of timescale name → pytree of arrays; also the example of server and client.
        namespace: optree namespace of the example's classes.

    Raises:
        TypeError: `example` is not a dict.
        SpecError: a timescale is empty, its leaves' leading dimensions differ, or only some of its leaves are Ragged; the message names the leaf.
    """

    def __init__(self, example: Mapping[str, Any], *, namespace: str = "") -> None:
        if not isinstance(example, dict):
            raise TypeError(
                f"the example must be a dict of timescales, got a {type(example).__name__}; write "
                'for instance {"step": example}'
            )
        whole = RaggedSpec.from_example(example, namespace=namespace) if has_ragged(example, namespace=namespace) else None
        self.spec: Spec | RaggedSpec = Spec.from_example(example, namespace=namespace) if whole is None else whole
        self._scales: dict[str, _Timescale | _GrowingTimescale] = {}
        for name, tree in example.items():
            if whole is not None and has_ragged(tree, namespace=namespace):
                self._scales[name] = _GrowingTimescale(name, RaggedSpec.from_example(tree, namespace=namespace), whole)
            else:
                self._scales[name] = _Timescale(name, Spec.from_example(tree, namespace=namespace))

    def add(self, name: str, data: Any) -> None:
        """Copy `data` into the next row of timescale `name`.

        Raises SpecError with the names of timescale and leaf if the data does not fit, IndexError if the
        timescale is full, or a growing one has `most` rows, and KeyError if there is no such timescale. An `add` that raises changes nothing.
        """
        scale = self._scales.get(name)
        if scale is None:
            hint = did_you_mean(str(name), map(str, self._scales))
            raise KeyError(f"no timescale {name!r}; the timescales are {list(self._scales)}{hint}")
        filled = scale.filled
        if isinstance(scale, _GrowingTimescale):
            scale.make_room()
        elif filled >= scale.capacity:
            raise IndexError(
                f"Timescale {name!r} has {scale.capacity} slots, but you tried to add at index {filled}; "
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
            if not scale.complete
        ]
        if missing:
            raise SpecError(
                f"the trajectory is incomplete, missing {', '.join(missing)}; add() them, or "
                "reset() to drop the rows that were added"
            )
        self._check_growing()
        sample = {name: scale.tree(copy) for name, scale in self._scales.items()}
        self.reset()
        return sample

    def _check_growing(self) -> None:
        """Raise SpecError unless growing timescales of one axis have the same number of rows."""
        first: dict[str, tuple[str, int]] = {}
        for name, scale in self._scales.items():
            if isinstance(scale, _GrowingTimescale):
                other, rows = first.setdefault(scale.axis, (name, scale.filled))
                if rows != scale.filled:
                    raise SpecError(
                        f"timescale {name!r} has {scale.filled} rows and timescale {other!r} has {rows}, but both have the axis {scale.axis!r}, "
                        "whose leaves have one length in a sample; add the missing rows, or give one of them another axis="
                    )

    def reset(self) -> None:
        """Drop all rows that were added since the last `build()`, for example when an episode is abandoned."""
        for scale in self._scales.values():
            scale.filled = 0

    @property
    def is_full(self) -> bool:
        """Whether every timescale is full, so that `build()` will succeed. Growing timescales count as full."""
        return all(scale.complete for scale in self._scales.values())

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows added so far to each timescale."""
        return {name: scale.filled for name, scale in self._scales.items()}

    @property
    def capacities(self) -> dict[str, int]:
        """The number of rows that fill each timescale; of a growing one, the most rows."""
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

    @property
    def complete(self) -> bool:
        return self.filled == self.capacity

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


class _GrowingTimescale:
    """The arrays of a timescale of Ragged leaves. They grow as rows are added, and are used again for the next episode.

    Args:
        name: of the timescale.
        spec: of its own leaves.
        whole: of the example, which may state `most` of the axis elsewhere.
    """

    __slots__ = ("_arrays", "_flattener", "axis", "capacity", "filled", "name", "writer")

    complete = True  # an episode has any length

    def __init__(self, name: str, spec: RaggedSpec, whole: RaggedSpec) -> None:
        for leaf in spec.leaves:
            if leaf.axis != 0:
                kind = "has a fixed shape" if leaf.axis < 0 else f"has the axis {leaf.axis_name!r}"
                raise SpecError(
                    f"timescale {name!r}: leaf {leaf.path!r} {kind}, but the timescale grows along {spec.axes[0]!r}; put it into another timescale"
                )
        self.name, self.axis = name, spec.axes[0]
        self.capacity = whole.most[whole.axes.index(self.axis)]
        self.filled = 0
        rows = tuple(CastingLeaf(leaf.path, leaf.shape, leaf.dtype) for leaf in spec.leaves)
        self._flattener = Flattener(spec.flattener.treedef, rows, spec.namespace)
        self._arrays = [np.zeros((min(64, self.capacity), *leaf.shape), leaf.dtype) for leaf in rows]
        self.writer = RowWriter(self._flattener, self._arrays)

    def make_room(self) -> None:
        """Make room for one more row. Raises IndexError if the axis has no more."""
        rows = len(self._arrays[0])
        if self.filled < rows:
            return
        if rows == self.capacity:
            raise IndexError(
                f"Timescale {self.name!r} has {rows} rows, the most of its axis {self.axis!r}; build() the trajectory or reset() it first, "
                "or raise most= in the example at both ends"
            )
        self._arrays = [np.concatenate([array, np.zeros_like(array[: self.capacity - rows])]) for array in self._arrays]
        self.writer = RowWriter(self._flattener, self._arrays)

    def tree(self, copy: bool) -> Any:
        used = [array[: self.filled] for array in self._arrays]
        return self._flattener.unflatten([array.copy() if copy else array for array in used])
