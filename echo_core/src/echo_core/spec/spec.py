"""The description that follows from an example: per leaf a path, shape, dtype and size, the containers
around the leaves, and a fingerprint of all this, by which two processes know that they mean the same.
"""

from __future__ import annotations

import json
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import optree

from ..base.errors import NotAnArrayError, SpecError
from ..base.plural import counted
from . import device, structure
from .arrays import as_array
from .dtypes import dtype_from_json, dtype_to_json, native, refusal
from .leaf import MAX_NDIM, LeafSpec
from .pytree.flattener import Flattener
from .ragged_leaf import Ragged
from .structure import leaf_name, shown

__all__ = ["MAX_LEAVES", "MAX_NDIM", "MAX_SAMPLE_BYTES", "LeafSpec", "Spec", "leaf_from_json", "leaf_of"]

MAX_LEAVES = 4096
STEP_MARK = LeafSpec("echo", (2,), np.dtype(np.uint64))  # the first leaf of what a worker sends to a table of steps
MAX_SAMPLE_BYTES = 1 << 46  # this keeps every product of sizes within 64 bits


class Spec:
    """The contract of one table: what every sample must look like.

    It is made by `from_example` (or by `from_json`, to compare with a peer's). It is immutable, hashable,
    picklable, and safe to share between threads. Equal specs accept the same samples.

    Attributes:
        leaves: one `LeafSpec` per array, in the order in which their bytes travel (that of optree:
            dict keys are sorted).
        treedef: optree's treedef; None if the spec was made by `from_json`.
        namespace: the optree namespace in which the example's classes are registered.
    """

    leaves: tuple[LeafSpec, ...]
    treedef: optree.PyTreeSpec | None
    namespace: str
    structure: Any

    def __init__(
        self,
        leaves: tuple[LeafSpec, ...],
        structure: Any,
        treedef: optree.PyTreeSpec | None = None,
        namespace: str = "",
    ) -> None:
        self.leaves = leaves
        self.structure = structure
        self.treedef = treedef
        self.namespace = namespace
        if self.sample_bytes > MAX_SAMPLE_BYTES:
            raise SpecError(f"one sample would take {self.sample_bytes} bytes, more than {MAX_SAMPLE_BYTES}; make the arrays of the example smaller")

    @classmethod
    def from_example(cls, example: Any, *, namespace: str = "") -> Spec:
        """Return the spec of a pytree of numpy arrays, numpy scalars or array-likes (torch, jax).

        Containers are those that optree knows: dict, list, tuple, namedtuple, None, and classes
        registered with it globally or in `namespace`. Only shapes and dtypes count; values, byte
        order and memory layout do not. A `Spec` is returned as it is.

        Raises SpecError that names the leaf for object dtypes and trees beyond the limits. It is a NotAnArrayError
        for Python scalars (their dtype would be a guess: write `np.float32(0)`) and for objects that are no arrays.
        """
        if isinstance(example, Spec):
            return example
        values, treedef = optree.tree_flatten(example, namespace=namespace)
        if len(values) > MAX_LEAVES:
            raise SpecError(f"the example has {len(values)} leaves, at most {MAX_LEAVES} are carried; stack arrays of the same shape into one")
        paths = structure.leaf_paths(treedef)
        leaves = tuple(leaf_of(path, value) for path, value in zip(paths, values))
        return cls(leaves, structure.to_json(treedef), treedef, namespace)

    @classmethod
    def from_json(cls, value: Any) -> Spec:
        """Return the spec that a peer described with `to_json`, for `difference` and sizes. It has no
        treedef. The input is not trusted: anything but a well-formed description within the limits
        raises SpecError before memory is allocated for it."""
        try:
            if "records" in value:
                varying = [leaf["path"] for leaf in value["records"]["leaves"] if leaf["axis"] is not None]
                raise SpecError(
                    f"{leaf_name(str(varying[0])[:160])} is Ragged there, but no leaf of the example here is; give the same example at both ends"
                )
            leaves, containers = value["leaves"], value["structure"]
            if len(leaves) > MAX_LEAVES:
                raise SpecError(f"a spec of {len(leaves)} leaves, at most {MAX_LEAVES} are carried")
            structure.check_depth(containers)
            return cls(tuple(leaf_from_json(leaf) for leaf in leaves), containers)
        except SpecError:
            raise
        except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
            raise SpecError(f"not a description of a spec: {error!r}; see Spec.to_json") from error

    def to_json(self) -> dict[str, Any]:
        """Return `{"leaves": [{"path", "shape", "dtype"}], "structure": ...}` with plain JSON values. The
        forms of dtype and structure are those of `dtypes.dtype_to_json` and `structure.to_json`."""
        return {
            "leaves": [
                {
                    "path": leaf.path,
                    "shape": list(leaf.shape),
                    "dtype": dtype_to_json(leaf.dtype),
                }
                for leaf in self.leaves
            ],
            "structure": self.structure,
        }

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of one sample: the sum over its leaves, without padding."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON. Two specs are equal exactly if their fingerprints are."""
        return sha256(_canonical(self.to_json()).encode()).hexdigest()

    @cached_property
    def flattener(self) -> Flattener:
        """The native fast path: checks samples, finds their leaves' memory, builds batches."""
        if self.treedef is None:
            raise SpecError("this spec came from a peer's description and has no tree to check samples against; use Spec.from_example")
        return Flattener(self.treedef, self.leaves, self.namespace)

    @property
    def declared(self) -> tuple[tuple[LeafSpec, ...], Any]:
        """The leaves and the containers of the example, which `difference` compares. What travels may be something else: see `ChunkSpec`."""
        return self.leaves, self.structure

    def check(self, sample: Any) -> None:
        """Raise SpecError that names the first leaf of `sample` that does not fit."""
        self.flattener.check(sample)

    def counted(self, number: int) -> str:
        """`1 sample`, `2 samples`: so many of what a connection with this spec carries, for messages to people."""
        return counted(number, "sample")

    def difference(self, other: Spec, here: str = "here", there: str = "there") -> str | None:
        """Return how `other` differs, in one sentence with both sides' values; None if it does not.

        `here` and `there` say whose specs these are, as in "by the learner".
        """
        if self.fingerprint == other.fingerprint:
            return None
        steps_here, steps_there = _step_in(self), _step_in(other)
        if steps_here is not None and steps_there is not None:
            return steps_here.difference(steps_there, here, there)
        if steps_here is not None or steps_there is not None:
            stepped, plain = (here, there) if steps_here is not None else (there, here)
            return (
                f"the samples {stepped} are steps of episodes and those {plain} are plain samples; a client of a table of steps (items=...) "
                "is given Steps(example), and a client of any other table the example itself"
            )
        (own, containers), (others, other_containers) = self.declared, other.declared
        if bool(own) != bool(others):
            full, some, none = (own, here, there) if own else (others, there, here)
            return (
                f"{leaf_name(full[0].path)} ({full[0]}) is declared {some} but not {none}, where samples have no leaves; a server that was "
                "made without an example takes no samples, and its clients have an empty example: Client(address, ())"
            )
        mine = {leaf.path: leaf for leaf in own}
        theirs = {leaf.path: leaf for leaf in others}
        for path, leaf in mine.items():
            twin = theirs.get(path)
            if twin is None:
                extra = [name for name in theirs if name not in mine]
                but = f", which has {shown(extra[0])} instead" if extra else ""
                return f"{leaf_name(path)} ({leaf}) is declared {here} but not {there}{but}"
            if (str(leaf), leaf.shape, leaf.dtype) != (str(twin), twin.shape, twin.dtype):
                return f"{leaf_name(path)} is {leaf} {here} but {twin} {there}"
        for path, leaf in theirs.items():
            if path not in mine:
                return f"{leaf_name(path)} ({leaf}) is declared {there} but not {here}"
        for one, two in zip(own, others):
            if one.path != two.path:
                return (
                    f"the leaves are the same but {shown(one.path)} comes where {shown(two.path)} "
                    f"comes {there}; use plain dicts, whose keys are sorted, at both ends"
                )
        return f"the arrays are the same but their containers differ: {_short(containers)} {here}, {_short(other_containers)} {there}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.leaves, self.structure, self.treedef, self.namespace)

    def __repr__(self) -> str:
        shown_leaves = ", ".join(f"{leaf.path or 'array'}: {leaf}" for leaf in self.leaves[:8])
        more = f", ... {len(self.leaves)} leaves" if len(self.leaves) > 8 else ""
        return f"Spec({shown_leaves}{more}; {self.sample_bytes} bytes)"


def _step_in(spec: Spec) -> Spec | None:
    """Return what the user calls a step, if this is the spec of a step with its mark (steps/steps.py in echo_replay has it); otherwise None."""
    containers: Any = spec.structure  # a peer may have sent anything
    entries = containers.get("dict") if isinstance(containers, dict) else None
    if spec.leaves[:1] != (STEP_MARK,) or not isinstance(entries, list) or len(entries) != 2:
        return None
    mark, step = entries
    if mark != ["echo", 0] or not isinstance(step, list) or len(step) != 2 or step[0] != "step":
        return None
    leaves = tuple(LeafSpec(leaf.path.removeprefix("step").removeprefix("/"), leaf.shape, leaf.dtype) for leaf in spec.leaves[1:])
    return Spec(leaves, step[1])


def leaf_of(path: str, value: Any) -> LeafSpec:
    """Return the leaf that this value of an example declares. Raises SpecError, as `Spec.from_example` does."""
    where = f"{leaf_name(path)} of the example"
    if isinstance(value, (bool, int, float, complex, str, bytes)) and not isinstance(value, np.generic):
        like = {bool: "bool_", int: "int64", float: "float32", complex: "complex64"}
        hint = f"np.{like.get(type(value), 'array')}({value!r:.40})"
        if isinstance(value, (str, bytes)):
            hint = f"np.array({value!r:.40}, dtype='{'U' if isinstance(value, str) else 'S'}32')"
        raise NotAnArrayError(f"{where} is the Python {type(value).__name__} {value!r:.40}, which leaves its dtype to be guessed; say it, for instance {hint}")
    if isinstance(value, Ragged):
        raise SpecError(
            f"{where} is Ragged, and here all samples have one size; samples of varying length are sent to a table, or to a server without tables, "
            "whose example has the Ragged leaf"
        )
    array = as_array(value, where)
    if isinstance(array, device.Lent):
        return LeafSpec(path, array.shape, array.dtype)
    reason = refusal(array.dtype)
    if reason is not None:
        raise SpecError(f"{where}: {reason}")
    if array.ndim > MAX_NDIM:
        raise SpecError(f"{where} has {array.ndim} axes, at most {MAX_NDIM} are carried; merge some")
    return LeafSpec(path, array.shape, native(array.dtype), swapped=not array.dtype.isnative)


def leaf_from_json(value: Any) -> LeafSpec:
    """Do the inverse of an entry of `Spec.to_json`. The input is not trusted; raises SpecError."""
    path, shape = value["path"], value["shape"]
    if not isinstance(path, str) or len(path) > 4096:
        raise SpecError("a leaf's path must be text of at most 4096 characters")
    if len(shape) > MAX_NDIM or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise SpecError(f"{leaf_name(path)}: {shape!r:.80} is not a shape Echo carries")
    dtype = dtype_from_json(value["dtype"])
    if dtype.hasobject or dtype.subdtype is not None:
        raise SpecError(f"{leaf_name(path)}: {dtype} is not a dtype Echo carries")
    return LeafSpec(path, tuple(shape), dtype)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _short(value: Any) -> str:
    text = _canonical(value)
    return text if len(text) <= 160 else text[:157] + "..."
