"""Samples of varying length: how an example declares them, and what follows from such an example.

    example = {"tokens": Ragged(np.int32, most=8192), "logprobs": Ragged(np.float32), "reward": np.float32(0)}

A sample has any length T up to `most`. It travels as one record, which is cut into chunks of one size: transports carry chunks as they carry any
samples. record_format.hpp describes the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import optree

from ..base.errors import SpecError
from ..base.plural import counted
from . import structure
from .dtypes import dtype_to_json
from .leaf import MAX_NDIM, LeafSpec
from .pytree.flattener import Flattener
from .ragged_leaf import MOST_ROWS, Ragged, RaggedLeaf, has_ragged
from .spec import MAX_LEAVES, MAX_SAMPLE_BYTES, Spec, leaf_from_json, leaf_of
from .structure import leaf_name

__all__ = ["CHUNK_BYTES", "CHUNK_HEAD_BYTES", "MOST_AXES", "RECORD_HEADER_BYTES", "ChunkSpec", "Ragged", "RaggedLeaf", "RaggedSpec", "has_ragged"]

# These are the numbers of record_format.hpp.
CHUNK_BYTES = 1024
CHUNK_HEAD_BYTES = 16
RECORD_HEADER_BYTES = 32
MOST_AXES = 4

USUAL_MOST = 4096  # rows of an axis for which no leaf says more
CHUNKS = LeafSpec("(records)", (CHUNK_BYTES,), np.dtype(np.uint8))


class RaggedSpec:
    """What follows from an example with `Ragged` leaves. Immutable, hashable and picklable; threads may share it.

    Attributes:
        leaves: one `RaggedLeaf` per leaf of the example, in the order in which their bytes lie in a record (that of optree: dict keys are sorted).
        axes: the names of the axes, in order of their first leaves.
        most: the greatest length of each axis.
        treedef: optree's treedef; None if the spec was made by `from_json`.
        namespace: the optree namespace of the example's classes.
    """

    def __init__(self, leaves: tuple[RaggedLeaf, ...], structure: Any, treedef: optree.PyTreeSpec | None = None, namespace: str = "") -> None:
        named = {leaf.axis: leaf for leaf in reversed(leaves) if leaf.axis >= 0}
        self.leaves, self.structure, self.treedef, self.namespace = leaves, structure, treedef, namespace
        self.axes = tuple(named[i].axis_name for i in sorted(named))
        self.most = tuple(named[i].most for i in sorted(named))
        if not self.axes:
            raise SpecError("none of the leaves is Ragged: a record needs a leaf that varies in length")
        if self.max_record_bytes > MAX_SAMPLE_BYTES:
            raise SpecError(f"one sample could take {self.max_record_bytes} bytes, more than {MAX_SAMPLE_BYTES}; lower most= of its axes")

    @classmethod
    def from_example(cls, example: Any, *, namespace: str = "") -> RaggedSpec:
        """Return the spec of a pytree whose leaves are arrays, as `Spec.from_example` takes them, or `Ragged`.

        Raises:
            SpecError: no leaf is Ragged, there are more than 4 axes, two leaves of an axis state different `most`, or `Spec.from_example` would
                refuse a leaf. The message names the leaf.
        """
        if isinstance(example, RaggedSpec):
            return example
        values, treedef = optree.tree_flatten(example, namespace=namespace)
        if len(values) > MAX_LEAVES:
            raise SpecError(f"the example has {len(values)} leaves, at most {MAX_LEAVES} are carried; stack arrays of the same shape into one")
        paths = structure.leaf_paths(treedef)
        axes: dict[str, int] = {}
        stated: dict[str, tuple[int, str]] = {}  # by axis: `most`, and the leaf that states it
        for path, value in zip(paths, values):
            if not isinstance(value, Ragged):
                continue
            if axes.setdefault(value.axis, len(axes)) == MOST_AXES:
                raise SpecError(f"{leaf_name(path)} of the example has the axis {value.axis!r}, but a sample has at most {MOST_AXES} axes: {list(axes)}")
            if value.most is not None:
                most, other = stated.setdefault(value.axis, (value.most, path))
                if most != value.most:
                    raise SpecError(
                        f"{leaf_name(path)} of the example says most={value.most} for the axis {value.axis!r}, and {leaf_name(other)} says {most}; "
                        "leaves of one axis have the same length: give the same most, or another axis"
                    )
        leaves = []
        for path, value in zip(paths, values):
            if isinstance(value, Ragged):
                most = stated.get(value.axis, (USUAL_MOST, ""))[0]
                leaves.append(RaggedLeaf(path, value.shape, value.dtype, axis=axes[value.axis], axis_name=value.axis, most=most))
            else:
                fixed = leaf_of(path, value)
                leaves.append(RaggedLeaf(path, fixed.shape, fixed.dtype, fixed.swapped))
        return cls(tuple(leaves), structure.to_json(treedef), treedef, namespace)

    @classmethod
    def from_json(cls, value: Any) -> RaggedSpec:
        """Return the spec that a peer described with `to_json`; it has no treedef. The input is not trusted: anything but a well-formed
        description within the limits raises SpecError."""
        try:
            axes, leaves, containers = value["axes"], value["leaves"], value["structure"]
            if not isinstance(axes, list) or not isinstance(leaves, list) or len(leaves) > MAX_LEAVES or len(axes) > MOST_AXES:
                raise SpecError(f"a spec of at most {MAX_LEAVES} leaves and {MOST_AXES} axes was expected")
            structure.check_depth(containers)
            made = tuple(_ragged_from_json(leaf, axes) for leaf in leaves)
            first = list(dict.fromkeys(leaf.axis for leaf in made if leaf.axis >= 0))
            if first != list(range(len(axes))) or len({name for name, _ in axes}) != len(axes):
                raise SpecError("the axes must have different names, and the order of the first leaves that have them")
            return cls(made, containers)
        except SpecError:
            raise
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise SpecError(f"not a description of samples of varying length: {error!r}; see RaggedSpec.to_json") from error

    def to_json(self) -> dict[str, Any]:
        """Return `{"axes": [[name, most]], "leaves": [{"path", "shape", "dtype", "axis"}], "structure": ...}`. The axis of a leaf is an index of
        `axes`, and null for a fixed leaf; `shape` is that of one row. The rest is as in `Spec.to_json`."""
        leaves = [
            {"path": leaf.path, "shape": list(leaf.shape), "dtype": dtype_to_json(leaf.dtype), "axis": None if leaf.axis < 0 else leaf.axis}
            for leaf in self.leaves
        ]
        return {"axes": [list(pair) for pair in zip(self.axes, self.most)], "leaves": leaves, "structure": self.structure}

    @cached_property
    def fixed_bytes(self) -> int:
        """Bytes of the fixed leaves of one sample."""
        return sum(leaf.fixed_bytes for leaf in self.leaves)

    @cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """For each axis the bytes of one row of all its leaves."""
        return tuple(sum(leaf.row_bytes for leaf in self.leaves if leaf.axis == axis) for axis in range(len(self.axes)))

    def record_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes of a record, its header included, of a sample with these lengths of the axes."""
        return RECORD_HEADER_BYTES + self.fixed_bytes + sum(n * row for n, row in zip(lengths, self.row_bytes, strict=True))

    @cached_property
    def max_record_bytes(self) -> int:
        """Bytes of the largest record."""
        return self.record_bytes(self.most)

    @cached_property
    def chunk_spec(self) -> ChunkSpec:
        """The spec of what travels: chunks, together with the description of the samples."""
        return ChunkSpec(self)

    @cached_property
    def flattener(self) -> Flattener:
        """Takes a sample's containers apart and puts them together. Its leaves are the fixed leaves, and single rows of the ragged ones."""
        if self.treedef is None:
            raise SpecError("this spec came from a peer's description and has no tree to check samples against; use RaggedSpec.from_example")
        return Flattener(self.treedef, self.leaves, self.namespace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedSpec) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json()))

    def __reduce__(self) -> tuple[Any, ...]:
        return RaggedSpec, (self.leaves, self.structure, self.treedef, self.namespace)

    def __repr__(self) -> str:
        shown = ", ".join(f"{leaf.path or 'array'}: {leaf}" for leaf in self.leaves[:8])
        more = f", ... {len(self.leaves)} leaves" if len(self.leaves) > 8 else ""
        return f"RaggedSpec({shown}{more}; at most {self.max_record_bytes} bytes)"


class ChunkSpec(Spec):
    """The spec of a connection that carries records: its samples are chunks. Two of them are equal only if the examples are.

    Args:
        records: the spec of the samples.
    """

    def __init__(self, records: RaggedSpec) -> None:
        self.records = records
        one_leaf: Any = 0
        super().__init__((CHUNKS,), 0, optree.tree_structure(one_leaf))

    @classmethod
    def from_json(cls, value: Any) -> Spec:
        """Return the spec that a peer described. A description of samples of fixed size is taken, too: `difference` says which leaf differs."""
        if not isinstance(value, dict) or "records" not in value:
            return Spec.from_json(value)
        made = cls(RaggedSpec.from_json(value["records"]))
        if value != made.to_json():
            raise SpecError(f"the chunks of its records are not {CHUNKS}; install the same version of echo-core at both ends")
        return made

    def to_json(self) -> dict[str, Any]:
        """Return the description of the chunks as `Spec.to_json` does, with that of the samples under the key "records"."""
        return {**super().to_json(), "records": self.records.to_json()}

    def counted(self, number: int) -> str:
        """`2 chunks (1 KiB each) of samples`: a connection does not know how many samples its chunks are."""
        return f"{counted(number, 'chunk')} ({CHUNK_BYTES // 1024} KiB each) of samples"

    @property
    def declared(self) -> tuple[tuple[LeafSpec, ...], Any]:
        return self.records.leaves, self.records.structure

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkSpec, (self.records,)

    def __repr__(self) -> str:
        return f"ChunkSpec({self.records!r})"


def _ragged_from_json(value: Any, axes: list[Any]) -> RaggedLeaf:
    plain = leaf_from_json(value)
    axis = value["axis"]
    if axis is None:
        return RaggedLeaf(plain.path, plain.shape, plain.dtype)
    if type(axis) is not int or not 0 <= axis < len(axes):
        raise SpecError(f"{leaf_name(plain.path)}: {axis!r:.80} is not one of {len(axes)} axes")
    name, most = axes[axis]
    if not isinstance(name, str) or not 0 < len(name) <= 64 or type(most) is not int or not 0 < most <= MOST_ROWS:
        raise SpecError(f"{leaf_name(plain.path)}: {axes[axis]!r:.80} is not an axis")
    if len(plain.shape) >= MAX_NDIM:
        raise SpecError(f"{leaf_name(plain.path)} has too many axes")
    return RaggedLeaf(plain.path, plain.shape, plain.dtype, axis=axis, axis_name=name, most=most)
