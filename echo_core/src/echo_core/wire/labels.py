"""What travels with a sample into a replay table: its priority, and the version of the policy that made it.

A connection that carries them has one hidden leaf more, behind the sample's own: two u64, the bits of the priority (a double; all ones:
the sampler chooses) and the version (all ones: the one published last). So every transport carries labels without knowing of them, and
connections without labels are what they were. A table that keeps versions takes labelled connections only, under its own name; any other
table takes both, labelled ones under its name with `SUFFIX`. The other end of the leaf is store/replay/labelled/label_leaf.hpp.
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

SUFFIX = "\x1flabels"  # no table can be called so: names are printable
NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LEAF = LeafSpec("(labels)", (2,), np.dtype(np.uint64))


class UnlabelledError(SpecError):
    """The learner's table keeps policy versions, and the connection carries none. `Client` then makes one that does."""


def labelled(spec: Spec) -> Spec:
    """The spec of connections that carry labels: `(sample, labels)`, whose leaves keep their paths."""
    if spec.treedef is None:
        return Spec((*spec.leaves, LEAF), [spec.structure, None])
    pair: Any = (spec.treedef.unflatten([0] * len(spec.leaves)), 0)
    treedef = optree.tree_structure(pair, namespace=spec.namespace)
    return Spec((*spec.leaves, LEAF), structure.to_json(treedef), treedef, spec.namespace)


def wants_labels(mine: Spec, described: dict[str, Any]) -> bool:
    """Whether a peer's description is that of `mine` with labels."""
    leaves = described.get("leaves")
    return isinstance(leaves, list) and len(leaves) == len(mine.leaves) + 1 and labelled(mine).to_json() == described


class TableSpecs(dict[str, Spec]):
    """The specs of connections to a server's tables, by what they are called in a handshake. Only the tables' own names are listed."""

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
    """Which version of the policy makes the samples that are sent now; None: the one published last."""

    version: int | None = None


class LabelledConnection:
    """Sends samples with their labels through a connection whose spec is `labelled(spec)`. Thread-safe.

    Args:
        connection: made for that spec.
        spec: of the samples.
        held: what this worker says of its policy.
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
            self._spec.flattener.batch_tobytes(samples)  # says what is wrong with it
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
