"""The newest value of some arrays, such as weights: written whole and read whole, however many processes write and read."""

from __future__ import annotations

from typing import Any

import numpy as np

from echo_core.base.errors import ConfigError, EchoTimeoutError, SpecError

from .. import _native
from ..arrays import tensors
from ..arrays.schema import Schema
from .handle import Handle, closed
from .memory import Memory

__all__ = ["Bytes", "Cell"]


class _Latest(Handle):
    """What both kinds of cells have."""

    _live: _native.NativeCell | None

    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        super().__init__(memory, _native.NativeCell(memory.mapping))

    def _use(self) -> _native.NativeCell:
        native = self._live
        if native is None:
            raise closed(self)
        return native

    @property
    def version(self) -> int:
        """The number of the newest value: 1 for the first, 0 before it."""
        return self._use().version

    def wait(self, newer_than: int = 0, timeout: float | None = None) -> bool:
        """Sleep until there is a version above `newer_than`. False if `timeout` (seconds; None: for ever) passed first."""
        return self._use().wait(newer_than, timeout)

    def stats(self) -> dict[str, int]:
        """Figures of all processes together: `version`; `broken`, values that a writer began and was killed before it finished; `locked`, reads
        that writers overtook so often that they took the lock; `repairs`, how often a writer was killed with the lock."""
        return self._use().figures()

    def _found(self, version: int, newer_than: int | None, timeout: float | None) -> int:
        """The version that was read; 0 if nothing was written yet and the caller did not wait for a version."""
        if version == 0 and newer_than is not None:
            raise EchoTimeoutError(f"{self.name} had no version above {newer_than} within {timeout} s; is the process that writes it alive?")
        if version == 0 and self.version:
            raise EchoTimeoutError(f"writers overtook every try to read {self.name} for a second; attach with mode='rw', which can hold them up")
        return version


def _when(newer_than: int | None, timeout: float | None) -> tuple[int, float | None]:
    """What a native read waits for: without `newer_than`, for nothing."""
    return (-1, 0.0) if newer_than is None else (newer_than, timeout)


class Cell(_Latest):
    """The newest value of some arrays, in shared memory.

    Readers never wait for writers: they copy, notice when a writer overtook them, and copy again. Writers wait for each other. A writer that is killed at any
    instruction leaves the value before, whole. Three values are stored, so the memory is three times as large as one.

    Args:
        schema: a mapping, which may be nested, from names to `(shape, dtype)` or to examples (arrays or tensors). A bfloat16 tensor is stored as its
            bits, uint16. With `name` it may be None: then the schema of the process that made the cell is used.
        name: attach to the cell with this name instead of making one.
        mode: "rw", or "r" to attach read-only: then the memory is mapped so that this process cannot write to it.

    Raises:
        SpecError: the schema is invalid, or differs from that of the cell with this name.
        SegmentGoneError: there is no such cell any more.
        SecurityError: the cell belongs to another user.
        MemoryError: there is not enough memory; it is reserved here, once and for all.
    """

    def __init__(self, schema: Any, *, name: str | None = None, mode: str = "rw") -> None:
        if mode not in ("rw", "r"):
            raise ConfigError(f"mode must be 'rw' or 'r', not {mode!r}")
        wanted = None if schema is None else Schema.of(schema)
        if name is not None:
            memory = Memory.attach(name, _native.CELL, mode)
        elif wanted is None or mode == "r":
            raise ConfigError("a new cell needs a schema and mode='rw'; to attach to one, give its name")
        else:
            text = wanted.to_json()
            memory = Memory.create(_native.CELL, text, (wanted.nbytes,), _native.NativeCell.size(len(text), wanted.nbytes), "this cell, three times its value,")
        self._adopt(memory, {})
        if wanted is not None and name is not None:
            wanted.check_same(self.schema, name)

    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        self.schema = Schema.from_json(memory.mapping.schema)
        if self.schema.nbytes != memory.mapping.words[0]:
            raise ConfigError(f"{memory.name} is a cell of bytes; attach to it with Bytes(name=...)")
        super()._adopt(memory, state)
        fields = self.schema.fields
        self._layout = _native.FieldLayout([f.dtype for f in fields], [f.shape for f in fields], [f.offset for f in fields])

    def write(self, tree: Any, timeout: float | None = None) -> int:
        """Write a whole value and wake the processes that wait for it. Returns its version.

        Args:
            tree: arrays, tensors or array-likes like the schema, with exactly its names, shapes and dtypes.
            timeout: seconds to wait for another writer; None: for ever.

        Raises:
            SpecError: an entry is missing, too much, or of another shape or dtype. Nothing was written.
            EchoTimeoutError: another writer had the cell for so long.
            ClosedError: the cell was closed.
        """
        native = self._use()
        arrays = self.schema.leaves(tree)
        while (version := native.write(self._layout, arrays, timeout)) < 0:
            arrays[-1 - version] = self.schema.fitted(arrays, -1 - version)
        if version == 0:
            raise EchoTimeoutError(f"{self.name} was being written by another process for {timeout} s; is that process stopped?")
        return version

    def read_into(self, tree: Any, newer_than: int | None = None, timeout: float | None = None) -> int:
        """Copy the newest value into the arrays or tensors of `tree`. Returns its version; 0 if nothing was written yet, and then nothing is copied.

        Args:
            tree: writable arrays or tensors with exactly the names, shapes and dtypes of the schema.
            newer_than: wait for a version above this number. None: take what there is.
            timeout: seconds to wait; None: for ever.

        Raises:
            SpecError: an entry is missing, too much, or of another shape or dtype. Nothing was copied.
            EchoTimeoutError: there was no such version in time.
            ClosedError: the cell was closed.

        After EchoTimeoutError and KeyboardInterrupt the contents of `tree` are undefined: parts of several versions may be in it.
        """
        leaves = self.schema.leaves(tree)
        version = self._use().read(self._layout, leaves, *_when(newer_than, timeout))
        if version >= 0:
            return self._found(version, newer_than, timeout)
        arrays = [tensors.as_array(leaf) for leaf in leaves]
        indirect = [i for i, leaf in enumerate(leaves) if type(leaf) is not np.ndarray and not tensors.is_in_memory_of(leaf)]
        for i in indirect:
            if not tensors.is_tensor(leaves[i]):
                raise SpecError(f"{self.schema.names[i]!r} must be an array or a tensor to be copied into, not {type(leaves[i]).__name__}")
        return self._read(arrays, newer_than, timeout, indirect, leaves)

    def _read(self, arrays: list[np.ndarray], newer_than: int | None, timeout: float | None, indirect: list[int], leaves: list[Any]) -> int:
        native = self._use()
        targets = {i: arrays[i] for i in indirect}
        while (version := native.read(self._layout, arrays, *_when(newer_than, timeout))) < 0:
            index = -1 - version
            error = self.schema.unfit(index, arrays[index])
            if error is not None:
                raise error
            if not arrays[index].flags.writeable:
                raise SpecError(f"{self.schema.names[index]!r} is read-only; give an array that can be written to")
            targets[index] = arrays[index]
            arrays[index] = np.empty(arrays[index].shape, self.schema.fields[index].dtype)
        if self._found(version, newer_than, timeout) == 0:
            return 0
        for index, target in targets.items():
            if index in indirect:
                tensors.copy_back(leaves[index], arrays[index])
            else:
                target[...] = arrays[index]
        return version

    def read(self, newer_than: int | None = None, timeout: float | None = None) -> tuple[dict[str, Any] | None, int]:
        """The newest value as new arrays, nested like the schema, and its version; (None, 0) if nothing was written yet.

        `newer_than`, `timeout` and the errors are those of `read_into`.
        """
        arrays = [np.empty(field.shape, field.dtype) for field in self.schema.fields]
        version = self._read(arrays, newer_than, timeout, [], arrays)
        return (self.schema.tree(arrays), version) if version else (None, 0)


class Bytes(_Latest):
    """The newest of some bytes of any length up to `capacity`, with the promises of `Cell`. For a value whose shape is not known beforehand.

    Args:
        capacity: the most bytes that a value may have; the memory is three times as large.
        name: attach to the one with this name instead of making one.
        mode: as with `Cell`.

    Raises what `Cell` raises.
    """

    def __init__(self, capacity: int | None = None, *, name: str | None = None, mode: str = "rw") -> None:
        if mode not in ("rw", "r"):
            raise ConfigError(f"mode must be 'rw' or 'r', not {mode!r}")
        if name is not None:
            memory = Memory.attach(name, _native.CELL, mode)
        elif capacity is None or capacity < 1 or mode == "r":
            raise ConfigError("new shared bytes need a capacity of at least 1 and mode='rw'; to attach to some, give their name")
        else:
            text = Schema([]).to_json()
            memory = Memory.create(_native.CELL, text, (capacity,), _native.NativeCell.size(len(text), capacity), "this, three times its capacity,")
        self._adopt(memory, {})

    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        if Schema.from_json(memory.mapping.schema).fields:
            raise ConfigError(f"{memory.name} is a cell of arrays; attach to it with Cell(None, name=...)")
        super()._adopt(memory, state)
        self.capacity = memory.mapping.words[0]

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> int:
        """Write a value and wake the processes that wait for it. Returns its version. ValueError if it is longer than `capacity`."""
        size = memoryview(data).nbytes
        if size > self.capacity:
            raise ValueError(f"{size:,} bytes do not fit in {self.capacity:,}; use capacity={size:,} or more where this is made")
        version = self._use().write_bytes(np.frombuffer(data, np.uint8), timeout)
        if version == 0:
            raise EchoTimeoutError(f"{self.name} was being written by another process for {timeout} s; is that process stopped?")
        return version

    def read(self, newer_than: int | None = None, timeout: float | None = None) -> tuple[bytes, int]:
        """The newest value and its version; (b"", 0) if nothing was written yet. `newer_than` and `timeout` as with `Cell.read_into`."""
        data, version = self._use().read_bytes(*_when(newer_than, timeout))
        return data, self._found(version, newer_than, timeout)
