"""The labels of a sample that is sent into a replay table: its priority, and the policy version that made it.

A connection with labels has one additional hidden leaf behind the sample's own leaves. It holds two u64: the bits of the priority (a
double; all ones: the sampler chooses) and the policy version (all ones: the version published last). Every transport therefore carries
labels without knowing them, and connections without labels are unaffected. A table that keeps versions accepts only labelled connections,
under its own name. Any other table accepts both; labelled ones use its name with `SUFFIX`. The learner's end of the leaf is
store/replay/labelled/label_leaf.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import optree

from ..base.errors import SpecError
from ..spec import structure
from ..spec.leaf import LeafSpec
from ..spec.spec import Spec
from ..store.local_insert import new_priorities

if TYPE_CHECKING:
    from .transport import Connection

__all__ = ["LEAF", "SUFFIX", "Held", "LabelledConnection", "TableSpecs", "UnlabelledError", "labelled", "wants_labels"]

SUFFIX = "\x1flabels"  # no table can have such a name, because names are printable
NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LEAF = LeafSpec("(labels)", (2,), np.dtype(np.uint64))


class UnlabelledError(SpecError):
    """The learner's table keeps policy versions, but the connection has no labels. `Client` then makes a connection with labels."""


def labelled(spec: Spec) -> Spec:
    """The spec of connections with labels: `(sample, labels)`. The sample's leaves keep their paths."""
    if spec.treedef is None:
        return Spec((*spec.leaves, LEAF), [spec.structure, None])
    pair: Any = (spec.treedef.unflatten([0] * len(spec.leaves)), 0)
    treedef = optree.tree_structure(pair, namespace=spec.namespace)
    return Spec((*spec.leaves, LEAF), structure.to_json(treedef), treedef, spec.namespace)


def wants_labels(mine: Spec, described: dict[str, Any]) -> bool:
    """Whether a peer's description is the spec `mine` with labels."""
    leaves = described.get("leaves")
    return isinstance(leaves, list) and len(leaves) == len(mine.leaves) + 1 and labelled(mine).to_json() == described


class TableSpecs(dict[str, Spec]):
    """The specs of connections to a server's tables, by their names in a handshake. Iteration lists only the tables' own names."""

    def __init__(self, specs: dict[str, Spec], first: Spec) -> None:
        super().__init__(specs)
        self._first = first

    def get(self, name: str, default: Any = None) -> Any:
        if not name.endswith(SUFFIX):
            return super().get(name, default)
        base = name.removesuffix(SUFFIX)
        spec = super().get(base) if base else self._first
        return default if spec is None else spec if spec.leaves[-1:] == (LEAF,) else labelled(spec)


@dataclass
class Held:
    """The policy version that makes the samples sent now; None means the version published last."""

    version: int | None = None


class LabelledConnection:
    """Sends samples with their labels through a connection whose spec is `labelled(spec)`. Thread-safe.

    Args:
        connection: a connection with that spec.
        spec: the spec of the samples.
        held: this worker's policy version.
    """

    def __init__(self, connection: Connection, spec: Spec, held: Held) -> None:
        self.connection = connection
        self._spec, self._held = spec, held

    def send(self, sample: Any, timeout: float | None, priority: float | None, policy_version: int | None) -> None:
        given = None if priority is None else new_priorities([priority], 1)
        self.connection.send((sample, self._labels(1, given, policy_version)[0]), timeout)

    def send_batch(self, samples: Any, timeout: float | None, priorities: npt.ArrayLike | None, policy_version: int | None) -> None:
        first: Any = next(iter(optree.tree_leaves(samples, namespace=self._spec.namespace)), None)
        shape = np.shape(first)
        if not shape:
            self._spec.flattener.batch_tobytes(samples)  # raises an error that names the fault
        given = None if priorities is None else new_priorities(priorities, shape[0])
        self.connection.send_batch((samples, self._labels(shape[0], given, policy_version)), timeout)

    def _labels(self, n: int, priorities: npt.NDArray[np.float64] | None, version: int | None) -> npt.NDArray[np.uint64]:
        if version is None:
            version = self._held.version
        elif isinstance(version, bool) or not hasattr(type(version), "__index__") or not 0 <= version < int(NOTHING):
            raise ValueError(f"policy_version must be a whole number from 0 to {int(NOTHING) - 1}, not {version!r}")
        labels = np.empty((n, 2), np.uint64)
        labels[:, 0] = NOTHING if priorities is None else priorities.view(np.uint64)
        labels[:, 1] = NOTHING if version is None else version
        return labels
