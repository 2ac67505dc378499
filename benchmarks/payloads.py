"""The samples every system carries: six shapes of experience, from a 20-byte transition to 1 MiB.

A payload is described once, here, and each process of a run builds the same arrays from the same
seed. That lets the learner check, during warm-up, that what arrives is what was sent: a system that
is quick because it delivers garbage would otherwise win.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Path = tuple[str, ...]
Tree = dict[str, Any]


@dataclass(frozen=True)
class Leaf:
    """One array of a sample: where it sits in the nested dict, and what it looks like."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Payload:
    """A kind of sample, the batch size it is collected in, and how many distinct ones circulate.

    ``pool`` distinct samples are built before the clock starts and sent round and round: building
    samples is the environment's work, and a single one would never leave the innermost cache.
    """

    name: str
    title: str
    leaves: tuple[Leaf, ...]
    batch_size: int
    pool: int = 16

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return tuple(leaf.path for leaf in self.leaves)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each leaf."""
        return tuple(int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize for leaf in self.leaves)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each leaf starts when a sample is sent as plain bytes, leaves in declared order."""
        return tuple(sum(self.sizes[:i]) for i in range(len(self.sizes)))

    @property
    def sample_bytes(self) -> int:
        return sum(self.sizes)

    def example(self) -> Tree:
        """A sample of zeros: what servers and clients are given to learn the shapes from."""
        return self.build([np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves])

    def samples(self, count: int | None = None) -> list[Tree]:
        """``count`` samples (default: the whole pool), equal in every process."""
        rng = np.random.default_rng(20)
        return [self._random(rng) for _ in range(self.pool if count is None else count)]

    def stacked(self, n: int) -> Tree:
        """``n`` samples of the pool as one tree whose leaves have a leading axis of ``n``."""
        pool = self.samples()
        rows = [self.arrays(pool[i % len(pool)]) for i in range(n)]
        return self.build([np.stack(column) for column in zip(*rows, strict=True)])

    def build(self, arrays: list[np.ndarray]) -> Tree:
        """The nested dict that holds ``arrays``, given in declared order."""
        tree: Tree = {}
        for path, array in zip(self.paths, arrays, strict=True):
            node = tree
            for key in path[:-1]:
                node = node.setdefault(key, {})
            node[path[-1]] = array
        return tree

    def arrays(self, tree: Tree) -> list[np.ndarray]:
        """The leaves of ``tree`` in declared order."""
        return [self.leaf(tree, path) for path in self.paths]

    @staticmethod
    def leaf(tree: Tree, path: Path) -> Any:
        for key in path:
            tree = tree[key]
        return tree

    def touch(self, tree: Tree) -> None:
        """Read one element of every leaf: all that the measured learner does with a batch."""
        for path in self.paths:
            leaf: Any = tree
            for key in path:
                leaf = leaf[key]
            leaf.item(0)

    def pack(self, tree: Tree) -> bytes:
        """A sample as plain bytes: what systems without any notion of arrays send."""
        return b"".join(self.arrays(tree))  # type: ignore[arg-type]

    def _random(self, rng: np.random.Generator) -> Tree:
        # Random bytes would do for integers, but floats stay finite so that nobody pays for NaNs.
        arrays = []
        for leaf in self.leaves:
            dtype = np.dtype(leaf.dtype)
            if dtype.kind == "f":
                arrays.append(rng.standard_normal(leaf.shape).astype(dtype))
            else:
                arrays.append(rng.integers(0, 100, leaf.shape).astype(dtype))
        return self.build(arrays)


def _flat(**leaves: tuple[tuple[int, ...], str]) -> tuple[Leaf, ...]:
    return tuple(Leaf((name,), shape, dtype) for name, (shape, dtype) in leaves.items())


PAYLOADS: dict[str, Payload] = {
    payload.name: payload
    for payload in (
        Payload("20B", "20 B", _flat(obs=((4,), "float32"), reward=((1,), "float32")), 256),
        Payload(
            "1KB",
            "1 KB",
            _flat(
                obs=((224,), "float32"),
                action=((8,), "float32"),
                reward=((1,), "float32"),
                discount=((1,), "float32"),
                logits=((22,), "float32"),
            ),
            256,
        ),
        Payload(
            "28KB",
            "28 KB",
            _flat(
                obs=((84, 84, 4), "uint8"),
                action=((1,), "int32"),
                reward=((1,), "float32"),
                done=((1,), "uint8"),
            ),
            64,
        ),
        # The bytes of the frame above in 42 equal leaves: what is left is the price of leaves.
        Payload(
            "28KB-42",
            "28 KB\n42 leaves",
            tuple(Leaf((f"part{i:02d}",), (84, 8), "uint8") for i in range(42)),
            64,
        ),
        # Nested, so that no system lives on its fast path for flat dicts alone.
        Payload(
            "220KB-43",
            "220 KB\n43 leaves",
            (
                *(Leaf(("obs", f"view{i:02d}"), (20, 70), "float32") for i in range(40)),
                Leaf(("policy", "action"), (20,), "int32"),
                Leaf(("policy", "logits"), (20, 14), "float32"),
                Leaf(("reward",), (20,), "float32"),
            ),
            16,
            pool=8,
        ),
        Payload(
            "1MB",
            "1 MB",
            _flat(frames=((1024, 1024), "uint8"), reward=((64,), "float32")),
            8,
            pool=4,
        ),
    )
}
