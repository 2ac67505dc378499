"""Samples that show whether they arrived. Each holds its maker, its number, and a filler that follows
from both, so that a lost, doubled, misplaced or torn sample is detected on any transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import optree

import echo_core
from echo_core.spec.ragged_leaf import Ragged

__all__ = [
    "MOST_ROWS",
    "RECORD_EXAMPLE",
    "RECORD_LENGTHS",
    "Pair",
    "Tally",
    "assert_same",
    "example",
    "random_like",
    "record",
    "record_table",
    "records",
    "rich_example",
    "sample",
    "stacked",
]

FILLER = 48  # bytes


def example(filler: int = FILLER) -> dict[str, Any]:
    """A tree of three leaves: `maker` and `number` int64 (), `filler` uint8 (filler,)."""
    return {
        "maker": np.zeros((), np.int64),
        "number": np.zeros((), np.int64),
        "filler": np.zeros(filler, np.uint8),
    }


def sample(maker: int, number: int, filler: int = FILLER) -> dict[str, Any]:
    """Sample `number` (from 0) of `maker`."""
    return {
        "maker": np.array(maker, np.int64),
        "number": np.array(number, np.int64),
        "filler": _fill(np.array([maker]), np.array([number]), filler)[0],
    }


def stacked(maker: int, first: int, count: int, filler: int = FILLER) -> dict[str, Any]:
    """Samples `first` to `first + count - 1` of `maker`, in the form that `send_batch` takes."""
    makers, numbers = np.full(count, maker, np.int64), np.arange(first, first + count)
    return {"maker": makers, "number": numbers, "filler": _fill(makers, numbers, filler)}


def _fill(makers: np.ndarray, numbers: np.ndarray, filler: int) -> np.ndarray:
    seeds = makers.astype(np.uint64) * 31 + numbers.astype(np.uint64) * 7
    return (seeds[:, None] + np.arange(filler, dtype=np.uint64)).astype(np.uint8)


class Tally:
    """The samples that have arrived. It is not thread-safe: use one per consumer, then `merge` them."""

    def __init__(self) -> None:
        self.numbers: dict[int, list[int]] = {}
        self.count = 0

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Add a batch that has the shapes of `stacked`; fails at the first torn sample."""
        makers, numbers, filler = batch["maker"], batch["number"], batch["filler"]
        torn = (filler != _fill(makers, numbers, filler.shape[1])).any(axis=1)
        assert not torn.any(), (
            f"sample {numbers[torn][0]} of {makers[torn][0]} is torn: {filler[torn][0]}"
        )
        for maker in np.unique(makers):
            self.numbers.setdefault(int(maker), []).extend(numbers[makers == maker].tolist())
        self.count += len(makers)

    def merge(self, others: Iterable[Tally]) -> Tally:
        """Merge several tallies into one; use it if the order across consumers does not matter (`in_order=False`)."""
        for other in others:
            self.count += other.count
            for maker, numbers in other.numbers.items():
                self.numbers.setdefault(maker, []).extend(numbers)
        return self

    def check(self, expected: Mapping[int, int], in_order: bool = True) -> None:
        """Check that the samples 0 to count - 1 of every maker arrived, each once and in order, and that no other samples did."""
        assert sorted(self.numbers) == sorted(maker for maker, count in expected.items() if count)
        for maker, count in expected.items():
            numbers = self.numbers.get(maker, [])
            missing = set(range(count)) - set(numbers)
            assert not missing, f"{len(missing)} samples of {maker} lost, first {min(missing)}"
            doubled = len(numbers) - len(set(numbers))
            assert not doubled, f"{doubled} samples of {maker} arrived more than once"
            if in_order:
                assert numbers == list(range(count)), f"samples of {maker} arrived out of order"
            else:
                assert sorted(numbers) == list(range(count)), f"{maker} never made some of these"


class Pair(NamedTuple):
    """A namedtuple, for trees that cannot be rebuilt from JSON alone."""

    left: Any
    right: Any


def rich_example() -> Any:
    """A nested tree with every kind of dtype and shape that Echo carries."""
    numbers: dict[str, np.ndarray] = {}
    for index, dtype in enumerate(["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"]):
        numbers[f"kind_{dtype}"] = np.zeros((index % 3 + 1, 5), dtype)
    tree: dict[str, Any] = {
        "numbers": numbers,
        "scalars": [np.zeros((), np.float32), np.zeros((), np.bool_), np.zeros((), "M8[ns]")],
        "empty": (np.zeros((0, 3), np.float32), np.zeros(0, np.int8)),
        "times": {"when": np.zeros(3, "M8[us]"), "took": np.zeros((2, 2), "m8[s]")},
        "text": Pair(np.zeros(2, "U7"), np.zeros(3, "S5")),
        "record": np.zeros(4, [("id", "<u4"), ("pose", "<f8", (3,)), ("flag", "u1")]),
        "raw": np.zeros(2, "V6"),
        "nothing": None,
        "deep": [{"a": [{"b": (np.zeros((2, 1, 3), np.int16),)}]}],
        "image": np.zeros((24, 24, 3), np.uint8),
    }
    try:
        import ml_dtypes
    except ImportError:
        pass
    else:
        tree["brain"] = np.zeros((3, 4), ml_dtypes.bfloat16)
    return tree


def random_like(tree: Any, seed: int, lead: tuple[int, ...] = ()) -> Any:
    """Arrays of `tree`'s dtypes and shapes (with `lead` in front) with random bits. They include NaN
    payloads, negative zeros and not-a-time, but bools and text are valid."""
    rng = np.random.default_rng(seed)

    def fill(leaf: np.ndarray) -> np.ndarray:
        shape = (*lead, *leaf.shape)
        if leaf.dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(np.bool_)
        if leaf.dtype.kind in "US":
            letters = rng.integers(97, 123, (*shape, 8), dtype=np.uint8)
            return letters.view("S8")[..., 0].astype(leaf.dtype)
        count = int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize
        return rng.integers(0, 256, count, np.uint8).view(leaf.dtype).reshape(shape)

    return optree.tree_map(fill, tree)


def assert_same(got: Any, wanted: Any, namespace: str = "") -> None:
    """Check that containers (with the classes of optree's `namespace`), dtypes, shapes and bits are equal, including NaN and padding."""
    got_leaves, got_tree = optree.tree_flatten(got, namespace=namespace)
    leaves, tree = optree.tree_flatten(wanted, namespace=namespace)
    assert got_tree == tree
    paths = optree.tree_paths(wanted, namespace=namespace)
    for path, mine, theirs in zip(paths, got_leaves, leaves):
        assert mine.dtype == theirs.dtype, f"leaf {path} is {mine.dtype}, not {theirs.dtype}"
        assert mine.shape == theirs.shape, f"leaf {path} is {mine.shape}, not {theirs.shape}"
        assert mine.tobytes() == theirs.tobytes(), f"leaf {path} arrived with other bits"


# ---- samples of varying length ------------------------------------------------------------------------------------------

MOST_ROWS = 200_000  # rows of 4 bytes: such a record is larger than a message of most transports
RECORD_EXAMPLE = {"tokens": Ragged(np.int32, most=MOST_ROWS), "boxes": Ragged(np.float32, (2,), "box", 9), "number": np.int64(0)}
#: At both sides of the end of a chunk, and of every size from nothing to the most.
RECORD_LENGTHS = [0, 1, 237, 238, 239, 240, 241, 242, 5000, 30_000, MOST_ROWS]


def record(number: int, length: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {"tokens": random.integers(0, 1 << 20, length, np.int32), "boxes": random.random((number % 10, 2), np.float32), "number": number}


def records(first: int, count: int) -> list[dict[str, Any]]:
    return [record(first + i, RECORD_LENGTHS[i % len(RECORD_LENGTHS)]) for i in range(count)]


def record_table(**options: Any) -> echo_core.Table:
    return echo_core.Table("records", RECORD_EXAMPLE, capacity=1000, max_bytes=64 << 20, sampler="fifo", rate_limiter=echo_core.Queue(1000), **options)
