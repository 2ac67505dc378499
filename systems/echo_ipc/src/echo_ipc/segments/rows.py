"""A table of the newest rows for replay: one process adds, others sample, and no row is ever torn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from echo_core.base.errors import CheckpointError, ConfigError, EchoTimeoutError, SpecError

from .. import _native
from ..arrays import tensors
from ..arrays.schema import Schema
from .handle import Handle, closed
from .memory import Memory

__all__ = ["Rows"]

TRIES = 20  # of drawing rows again that were written over meanwhile, before additions are held up
MAGIC = b"echo-ipc rows 1\n"
PART = 1 << 24  # bytes that are saved or loaded at a time
Draw = Callable[[int, int, int], np.ndarray]  # (first, end, n): the numbers of n rows of those from `first` to before `end`


class Rows(Handle):
    """A table of the newest `capacity` rows, in shared memory. Rows have numbers, from 0 on, in the order in which they were added.

    Samples are drawn without a lock: a row that was written over while it was copied is noticed and drawn again. Rows of an adder that was killed are
    never sampled. Any number of processes may add; they wait for each other.

    Args:
        columns: a mapping as for `Cell`, with the shape of one row; None with `name`: those of the process that made the table.
        capacity: how many rows it keeps.
        name: attach to the table with this name.
        mode: "rw", or "r" to attach read-only.

    Raises what `Cell` raises, and ConfigError if the capacity is below one.
    """

    _live: _native.NativeRows | None

    def __init__(self, columns: Any, capacity: int | None = None, *, name: str | None = None, mode: str = "rw") -> None:
        if mode not in ("rw", "r"):
            raise ConfigError(f"mode must be 'rw' or 'r', not {mode!r}")
        wanted = None if columns is None else Schema.of(columns, packed=True)
        if name is not None:
            memory = Memory.attach(name, _native.ROWS, mode)
        elif wanted is None or capacity is None or capacity < 1 or mode == "r":
            raise ConfigError("a new table of rows needs columns, a capacity of at least 1 and mode='rw'; to attach to one, give its name")
        else:
            text = wanted.to_json()
            size = _native.NativeRows.size(len(text), capacity, wanted.nbytes)
            memory = Memory.create(_native.ROWS, text, (capacity, wanted.nbytes), size, f"this table of {capacity:,} rows")
        self._adopt(memory, {})
        if wanted is not None and name is not None:
            wanted.check_same(self.schema, name)

    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        self.schema = Schema.from_json(memory.mapping.schema)
        self.capacity, nbytes = memory.mapping.words[:2]
        if self.schema.nbytes != nbytes:
            raise ConfigError(f"the description of {memory.name} does not fit its rows; install the same echo-ipc for all processes")
        super().__init__(memory, _native.NativeRows(memory.mapping))
        fields = self.schema.fields
        self._layout = _native.FieldLayout([f.dtype for f in fields], [f.shape for f in fields], [f.offset for f in fields], True)
        self._whole = _native.FieldLayout([np.dtype(np.uint8)], [(nbytes,)], [0], True)
        self._generator = np.random.default_rng()

    def _use(self) -> _native.NativeRows:
        native = self._live
        if native is None:
            raise closed(self)
        return native

    @property
    def row_bytes(self) -> int:
        """Size of a row. Its columns lie in it one after another, each aligned to its elements."""
        return self.schema.nbytes

    @property
    def committed(self) -> int:
        """How many rows were added so far: the number of the next one."""
        return self._use().committed

    def __len__(self) -> int:
        """How many rows can be sampled now."""
        first, end = self._use().window()
        return end - first

    def window(self) -> tuple[int, int]:
        """The numbers of the rows that can be sampled now: the first, and one past the last."""
        return self._use().window()

    def storage(self) -> np.ndarray:
        """The memory of all rows, uint8 [capacity, row_bytes]. Row i is at i % capacity. Nothing protects who reads here from rows being added."""
        native = self._use()
        return np.ndarray((self.capacity, self.row_bytes), np.uint8, native.mapping, native.data)

    def columns(self) -> dict[str, Any]:
        """Views of `storage()`, nested like the columns: each [capacity, *shape] and not contiguous."""
        native, capacity = self._use(), self.capacity
        views = []
        for field in self.schema.fields:
            inner = np.empty(field.shape, field.dtype).strides if field.nbytes else (0,) * len(field.shape)
            start = native.data + field.offset
            views.append(np.ndarray((capacity, *field.shape), field.dtype, native.mapping, start, (self.row_bytes, *inner)))
        return self.schema.tree(views)

    def wait(self, more_than: int = 0, timeout: float | None = None) -> bool:
        """Sleep until more than this many rows were committed; False if `timeout` (seconds; None: for ever) passed first."""
        return self._use().wait(more_than, timeout)

    # ---- adding

    def add(self, columns: Any, timeout: float | None = None) -> int:
        """Add rows. Returns the number of the first.

        Args:
            columns: arrays or tensors like the schema, each [n, *shape] with its dtype; n at most `capacity`.
            timeout: seconds to wait for another adder; None: for ever.

        Raises:
            SpecError: a column is missing, too much, or of another shape or dtype, or the columns have different lengths. Nothing was added.
            ValueError: there are more rows than the table keeps.
            EchoTimeoutError: another process was adding for so long.
            ClosedError: the table was closed.
        """
        return self._add(self.schema.leaves(columns), timeout)

    def _add(self, columns: list[Any], timeout: float | None = None) -> int:
        """As add(), with the columns in the order of the schema."""
        native, arrays = self._use(), list(columns)
        while (number := native.add(self._layout, arrays, timeout)) < 0:
            index = -1 - number
            if index == len(arrays):
                raise EchoTimeoutError(f"another process was adding rows to {self.name} for {timeout} s; is it stopped?")
            arrays[index] = self.schema.fitted(arrays, index, rows=True)
        return number

    def _add_as_they_are(self, columns: list[Any]) -> bool:
        """Add columns if all of them have the dtypes and shapes of the schema and are not too many; otherwise nothing was added."""
        return len(columns[0]) <= self.capacity and self._use().add(self._layout, columns) >= 0

    # ---- sampling

    def sample(self, n: int, *, seed: int | None = None, generator: np.random.Generator | None = None, out: Any = None) -> tuple[dict[str, Any], np.ndarray]:
        """`n` rows that are drawn uniformly, with replacement, of those that the table has.

        Args:
            n: how many.
            seed: for a generator that is used for this call only.
            generator: which draws the rows; without it and without a seed, one of this object that is seeded by the system.
            out: arrays [n, *shape] to copy into, like the schema; without it, new ones are made.

        Returns:
            The batch, nested like the schema, and the numbers of its rows, uint64 [n].

        The draw depends only on the generator and on which rows the table has; a row that was written over while it was copied is drawn again.

        Raises:
            ValueError: the table has no rows yet.
            SpecError: an array of `out` does not fit.
            ClosedError: the table was closed.
        """
        arrays, draw = self._targets(n, out), self._draw(seed, generator)
        numbers, _ = self._gather(self._layout, arrays, draw(*self._readable(), n), draw)
        return (self.schema.tree(arrays) if out is None else out), numbers

    def sample_packed(
        self, n: int, *, seed: int | None = None, generator: np.random.Generator | None = None, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `sample`, but with whole rows: uint8 [n, row_bytes], which `out` may be."""
        packed = np.empty((n, self.row_bytes), np.uint8) if out is None else out
        if packed.shape != (n, self.row_bytes) or packed.dtype != np.uint8 or not packed.flags.c_contiguous:
            raise SpecError(f"out must be a contiguous uint8[{n}, {self.row_bytes}], not {packed.dtype.name}{list(packed.shape)}")
        draw = self._draw(seed, generator)
        return packed, self._gather(self._whole, [packed], draw(*self._readable(), n), draw)[0]

    def read(self, numbers: Any, *, out: Any = None) -> tuple[dict[str, Any], np.ndarray]:
        """The rows with these numbers. Returns the batch, and which of its rows are valid (bool [n]): others are not in the table, or were written
        over while they were copied."""
        wanted = np.ascontiguousarray(numbers, np.uint64)
        arrays, stale = self._targets(len(wanted), out), np.empty(len(wanted), np.uint64)
        bad = self._use().gather(wanted, self._layout, arrays, stale)
        valid = np.ones(len(wanted), np.bool_)
        valid[stale[:bad].astype(np.intp)] = False
        return (self.schema.tree(arrays) if out is None else out), valid

    def _draw(self, seed: int | None, generator: np.random.Generator | None) -> Draw:
        if seed is not None and generator is not None:
            raise ConfigError("give a seed or a generator, not both")
        draws = np.random.default_rng(seed) if seed is not None else generator or self._generator
        return lambda first, end, n: draws.integers(first, end, n, np.uint64)

    def _targets(self, n: int, out: Any) -> list[np.ndarray]:
        if out is None:
            return [np.empty((n, *field.shape), field.dtype) for field in self.schema.fields]
        leaves = self.schema.leaves(out)
        for name, leaf in zip(self.schema.names, leaves):
            if not tensors.is_in_memory_of(leaf):
                raise SpecError(f"{name!r} of out must be an array or a tensor in the CPU's memory")
        arrays = [tensors.as_array(leaf) for leaf in leaves]
        for index, array in enumerate(arrays):
            error = self.schema.unfit(index, array, rows=True)
            if error is None and (len(array) != n or not array.flags.c_contiguous or not array.flags.writeable):
                error = SpecError(f"{self.schema.names[index]!r} of out must be contiguous, writable, and have {n} rows")
            if error is not None:
                raise error
        return arrays

    def _readable(self) -> tuple[int, int]:
        """`window()`. Raises ValueError if there are no rows."""
        native = self._use()
        first, end = native.window()
        if first == end and end and native.mapping.writable:  # an addition is just writing over all there is
            with _native.Alone(native):
                first, end = native.window()
        if first == end:
            raise ValueError(f"{self.name} has no rows to sample; add some first, or wait() for them")
        return first, end

    def _gather(self, layout: _native.FieldLayout, arrays: list[np.ndarray], numbers: np.ndarray, draw: Draw) -> tuple[np.ndarray, int]:
        """Copy the rows with these numbers; those that were written over are drawn again. Returns the numbers, and how many were drawn again."""
        native, stale = self._use(), np.empty(len(numbers), np.uint64)
        bad = native.gather(numbers, layout, arrays, stale)
        tries = redrawn = 0
        while bad:
            tries, redrawn = tries + 1, redrawn + bad
            places = stale[:bad].astype(np.intp)
            few = [np.empty((len(places), *array.shape[1:]), array.dtype) for array in arrays]
            window = self._readable()
            with _native.Alone(native) if tries > TRIES and native.mapping.writable else nullcontext():
                again = draw(*(native.window() if tries > TRIES else window), len(places))
                bad = native.gather(again, layout, few, stale)
            for array, new in zip(arrays, few):
                array[places] = new
            numbers[places] = again
            stale[:bad] = places[stale[:bad].astype(np.intp)]
        return numbers, redrawn

    def stats(self) -> dict[str, int]:
        """Figures of all processes together: `committed`, rows so far; `readable`, rows that can be sampled; `reserved`, the upper mark of rows
        that were begun; `broken`, additions of processes that were killed; `repairs`, how often a process was killed with the lock."""
        return self._use().figures()

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the rows into a file, which replaces one of that name when it is complete. Returns how many.

        Rows that are written over meanwhile are left out: the file has the newest ones, in order.
        """
        native, where = self._use(), os.fspath(path)
        first, end = native.window()
        part = max(1, PART // self.row_bytes)
        temporary = f"{where}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                head = json.dumps({"schema": json.loads(self.schema.to_json()), "row_bytes": self.row_bytes}).encode()
                file.write(MAGIC + len(head).to_bytes(8, "little") + head)
                count = 0
                for start in range(first, end, part):
                    numbers = np.arange(start, min(start + part, end), dtype=np.uint64)
                    packed, stale = np.empty((len(numbers), self.row_bytes), np.uint8), np.empty(len(numbers), np.uint64)
                    bad = native.gather(numbers, self._whole, [packed], stale)
                    keep = np.ones(len(numbers), np.bool_)
                    keep[stale[:bad].astype(np.intp)] = False
                    file.write(packed[keep].data)
                    count += int(keep.sum())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, where)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
        return count

    def load(self, path: str | os.PathLike[str]) -> int:
        """Add the rows of a file that `save` wrote; of more rows than the table keeps, the newest. Returns how many were added.

        Raises CheckpointError if the file is not complete, and SpecError if it has other columns.
        """
        where = os.fspath(path)
        with open(where, "rb") as file:
            start = file.read(len(MAGIC) + 8)
            if start[: len(MAGIC)] != MAGIC:
                raise CheckpointError(f"{where} is no file of rows")
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(start[len(MAGIC) :], "little")
            try:
                if length > size - file.tell():  # read() would ask for as much memory, or refuse the number
                    raise ValueError("the file ends before it does")
                head = json.loads(file.read(length))
                there = Schema.from_json(json.dumps(head["schema"]).encode())
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise CheckpointError(f"{where} is damaged: its description cannot be read ({error})") from None
            self.schema.check_same(there, where)
            size -= file.tell()
            if size % self.row_bytes:
                raise CheckpointError(f"{where} is damaged: it does not end with a whole row")
            count = min(size // self.row_bytes, self.capacity)
            file.seek(size - count * self.row_bytes, os.SEEK_CUR)
            left = count
            while left:
                some = min(left, max(1, min(PART // self.row_bytes, self.capacity)))
                packed = np.fromfile(file, np.uint8, some * self.row_bytes).reshape(-1, self.row_bytes)
                if len(packed) != some or self._use().add(self._whole, [packed]) < 0:
                    raise CheckpointError(f"{where} became shorter while it was read")
                left -= some
        return count
