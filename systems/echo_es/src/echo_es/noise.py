"""The noise of evolution strategies: every process computes the same numbers from a few integers, so no candidate has to travel.

Two sources:

- `NoiseTable` is one long array of normal numbers. The perturbation of a pair is the slice that starts at `offsets(...)[pair]`. To look it
  up costs a copy, which is many times cheaper than to draw it again.
- `normals()` draws the rows of one generation. Any range of rows can be drawn alone, and equals these rows of the whole.

numpy does not promise that another version draws the same normal numbers. Therefore both have a digest that processes compare:
`NoiseTable.digest` and `stream_digest()`.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from functools import lru_cache
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from echo_core import ConfigError

from .arguments import whole

__all__ = ["TABLE_SIZE", "NoiseTable", "normals", "philox", "shared_table", "stream_digest", "table_needed"]

TABLE_SIZE = 25_000_000  # float32: 100 MB

_OFFSETS = 1000  # a table has at least so many offsets for each perturbation of a generation, so that two of them are rarely equal
_LENGTHS = 10  # and it is at least so many times as long as a perturbation: a search can move only in as many directions as there are offsets

_BLOCK = 16_384  # numbers that one generator draws at least, so that making generators costs little beside drawing
_tables: WeakValueDictionary[tuple[int, int], NoiseTable] = WeakValueDictionary()
_making = threading.Lock()
_LOW = np.uint64(0xFFFF_FFFF)
_SHIFT = np.uint64(32)


def philox(seed: int, epoch: int, first: int, count: int) -> NDArray[np.uint64]:
    """`count` random integers of 64 bits for the places `first`, `first + 1`, ... of `epoch`, uint64 of shape (count,).

    This is Philox4x32-10 with `seed` as its key and (place, epoch) as its counter. It is written out here because it has to give the same
    numbers with every version of numpy. All arguments are taken modulo 2**64.
    """
    places = np.arange(count, dtype=np.uint64) + np.uint64(first % 2**64)
    c0, c1 = places & _LOW, places >> _SHIFT
    c2, c3 = np.full(count, epoch & 0xFFFF_FFFF, np.uint64), np.full(count, (epoch >> 32) & 0xFFFF_FFFF, np.uint64)
    k0, k1 = seed & 0xFFFF_FFFF, (seed >> 32) & 0xFFFF_FFFF
    for _ in range(10):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> _SHIFT) ^ c1 ^ np.uint64(k0), right & _LOW, (left >> _SHIFT) ^ c3 ^ np.uint64(k1), left & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFF_FFFF, (k1 + 0xBB67AE85) & 0xFFFF_FFFF
    return c0 | c1 << _SHIFT


class NoiseTable:
    """Normal numbers in one float32 array of shape (size,), made from `seed`, or given as `values` where another process made them.

    Raises ConfigError if `size` is not positive, or if `values` is not a float32 array of this size.
    """

    def __init__(self, seed: int = 0, size: int = TABLE_SIZE, *, values: NDArray[np.float32] | None = None) -> None:
        whole("size of a noise table", size, 1)
        if values is None:
            values = np.random.Generator(np.random.PCG64(seed)).standard_normal(size, dtype=np.float32)
        elif values.dtype != np.float32 or values.shape != (size,):
            raise ConfigError(f"values: the noise table must be float32 of shape ({size},), not {values.dtype} of shape {values.shape}")
        values.flags.writeable = False
        self.seed = seed
        self.size = size
        self.values = values
        self._digest: str | None = None

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that are equal in two processes exactly when their tables are."""
        if self._digest is None:
            self._digest = hashlib.blake2b(self.values, digest_size=16).hexdigest()
        return self._digest

    def offsets(self, dims: int, seed: int, epoch: int, first: int, count: int) -> NDArray[np.int64]:
        """Where the perturbations of the pairs `first` to `first + count` of `epoch` begin, int64 of shape (count,).

        Raises ConfigError if the table has fewer than `dims` numbers.
        """
        if dims > self.size:
            raise ConfigError(f"the noise table has {self.size} numbers and cannot perturb {dims} parameters: make it larger, or use noise='seeds'")
        return (philox(seed, epoch, first, count) % np.uint64(self.size - dims + 1)).astype(np.int64)

    def rows(self, offsets: NDArray[np.int64], dims: int) -> NDArray[np.float32]:
        """The perturbations that begin at `offsets`, float32 of shape (len(offsets), dims), in memory of their own."""
        taken: NDArray[np.float32] = np.lib.stride_tricks.sliding_window_view(self.values, dims)[offsets]
        return taken


def table_needed(dims: int, places: int) -> int:
    """How many numbers a table must have for `places` perturbations of `dims` parameters in each generation.

    A smaller table gives the same few perturbations again and again. In 150 generations on a quadratic function of 1,000 parameters, a table of
    1.5 times their number left 57 % of the error, one of 3 times 27 %, one of 10 times 19 %, and drawing from seeds 17 %.
    """
    return max(_LENGTHS * dims, dims - 1 + _OFFSETS * places)


def shared_table(seed: int = 0, size: int = TABLE_SIZE) -> NoiseTable:
    """The table of this seed and size, which all who hold it share. The first call makes it in about half a second."""
    with _making:
        table = _tables.get((seed, size))
        if table is None:
            table = _tables[seed, size] = NoiseTable(seed, size)
        return table


class _Seed(np.random.bit_generator.ISeedSequence):
    """The first state of a generator from three integers: the same as numpy's SeedSequence offers, at a quarter of its time."""

    def __init__(self, seed: int, epoch: int, block: int) -> None:
        self._digest = hashlib.blake2b(struct.pack("<3Q", seed % 2**64, epoch, block)).digest()

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.unsignedinteger]:
        return np.frombuffer(self._digest, dtype, n_words)


def normals(seed: int, epoch: int, start: int, stop: int, dims: int, dtype: DTypeLike = np.float64) -> NDArray[np.floating]:
    """The rows `start` to `stop` of the normal numbers of `epoch`, shape (stop - start, dims), `dtype` float64 or float32.

    A range costs at most 16,384 numbers more than its own.
    """
    rows = max(1, _BLOCK // dims)
    first = start - start % rows
    out = np.empty((stop - first, dims), dtype)
    for begin in range(first, stop, rows):
        generator = np.random.Generator(np.random.SFC64(_Seed(seed, epoch, begin // rows)))  # type: ignore[arg-type]  # the stubs lack ISeedSequence
        generator.standard_normal(out=out[begin - first : begin - first + rows], dtype=out.dtype.type)
    return out[start - first :]


@lru_cache(maxsize=1)
def stream_digest() -> str:
    """32 hexadecimal digits that are equal in two processes whose `normals()` agree."""
    return hashlib.blake2b(normals(1, 2, 0, 3, 4096).tobytes() + normals(1, 2, 0, 3, 4096, np.float32).tobytes(), digest_size=16).hexdigest()
