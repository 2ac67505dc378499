"""The weights of an actor, from a learner to its collectors: `SharedWeightSync` as unilab.ipc has it, on a `Cell`."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from echo_core.base.errors import ConfigError, SpecError, did_you_mean

from .arrays import tensors
from .arrays.schema import Field
from .segments.cell import Cell

__all__ = ["SharedWeightSync"]

_SPAWN_CTX = multiprocessing.get_context("spawn")


class SharedWeightSync:
    """The newest weights, written whole and read whole, however many processes do it, even if one of them is killed meanwhile.

    Args:
        param_shapes: the shape of each parameter.
        create: make the memory; False: attach to that which another object made.
        shm_name: `name` of that object. It is ignored, with a warning, if the memory is made here.
        lock: is kept as `_lock` and never used; no lock is needed.
        dtypes: the dtype of each parameter that is not float32, when the memory is made. A process that attaches adopts the dtypes with which it was made.

    Raises:
        ConfigError: `create=False` without a name.
        SpecError: a name or a shape is not that of the memory.
        SegmentGoneError, SecurityError, MemoryError: as with `Cell`.

    Attributes:
        trace_recorder: an object with `add_slice` and `add_counter`, which is told how long each read and write took; None: nobody.
        trace_thread_time: whether it is also told how much processor time this thread used.
    """

    def __init__(
        self,
        param_shapes: Mapping[str, Any],
        *,
        create: bool = True,
        shm_name: str | None = None,
        lock: Any = None,
        dtypes: Mapping[str, Any] | None = None,
    ) -> None:
        self.trace_recorder: Any = None
        self.trace_thread_time = False
        self._lock = lock
        shapes = {name: tuple(int(n) for n in shape) for name, shape in param_shapes.items()}
        if create:
            if shm_name is not None:
                warnings.warn(f"shm_name={shm_name!r} is ignored, because create=True makes new memory; `name` tells its name", stacklevel=2)
            kinds = dict(dtypes or {})
            strange = next((name for name in kinds if name not in shapes), None)
            if strange is not None:
                raise SpecError(f"dtypes has {strange!r}, which is no parameter{did_you_mean(strange, list(shapes))}")
            self._cell = Cell({name: (shape, kinds.get(name, "float32")) for name, shape in shapes.items()})
        elif shm_name is None:
            raise ConfigError("create=False needs shm_name: `name` of the object that made the memory")
        else:
            self._cell = Cell(None, name=shm_name)
            try:
                self._check(shapes)
            except BaseException:
                self._cell.close()
                raise

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Any], **kwargs: Any) -> Self:
        """New memory with these weights as version 1, and with their dtypes unless `dtypes` tells others. With create=False: attach, and write them."""
        values = {name: value if hasattr(value, "dtype") else np.asarray(value) for name, value in state_dict.items()}
        if kwargs.get("create", True):
            given = dict(kwargs.pop("dtypes", None) or {})
            kwargs["dtypes"] = {name: tensors.dtype_of(value) for name, value in values.items()} | given
        found = cls({name: value.shape for name, value in values.items()}, **kwargs)
        found.write_weights(state_dict)
        return found

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        there = {field.name: field.shape for field in self._cell.schema.fields}
        for name, shape in shapes.items():
            if name not in there:
                raise SpecError(f"the weights {self.name} have no parameter {name!r}{did_you_mean(name, list(there))}; both sides need the same network")
            if there[name] != shape:
                raise SpecError(f"{name!r} of the weights {self.name} has the shape {there[name]}, not {shape}; both sides need the same network")
        more = next((name for name in there if name not in shapes), None)
        if more is not None:
            raise SpecError(f"the weights {self.name} also have a parameter {more!r}, which param_shapes lacks; both sides need the same network")

    @property
    def name(self) -> str:
        """By which other processes attach."""
        return self._cell.name

    @property
    def version(self) -> int:
        """How often weights were written so far. Raises ClosedError after close()."""
        return self._cell.version

    # ---- writing and reading

    def write_weights(self, state_dict: Mapping[str, Any]) -> None:
        """Write all parameters as the next version. Entries of `state_dict` that are no parameters are left out.

        A value of another dtype is converted: between floats as usual, and otherwise only if no number changes.

        Raises:
            SpecError: a parameter is missing, has another shape, or cannot be converted. Nothing was written.
            ClosedError: after close().
        """
        started = self._clock()
        tree = self._select(state_dict)
        try:
            version = self._cell.write(tree)
        except SpecError:
            version = self._cell.write({field.name: _converted(field, tree[field.name]) for field in self._cell.schema.fields})
        self._trace(started, "weight_sync/write_weights_d2h", "weight_sync/write_thread_cpu_us", {"version": version, "mode": "sync"})

    def read_weights_into(self, state_dict: Mapping[str, Any], *, newer_than: int | None = None, timeout: float | None = None) -> int:
        """Copy the newest weights into the tensors or arrays of `state_dict`. Returns their version; 0 if none were written yet, and then nothing is copied.

        Args:
            newer_than: wait for a version above this one. None: take what there is.
            timeout: seconds to wait; None: for ever.

        Raises:
            SpecError: a parameter is missing, has another shape, or cannot be converted.
            EchoTimeoutError: there was no such version in time.
            ClosedError: after close().
        """
        started = self._clock()
        tree = self._select(state_dict)
        try:
            version = self._cell.read_into(tree, newer_than, timeout)
        except SpecError as error:
            version = self._read_converted(tree, newer_than, timeout, error)
        self._trace(started, "weight_sync/read_weights_into_cpu_actor", "weight_sync/read_thread_cpu_us", {"version": version})
        return version

    def wait_for_version(self, version: int, timeout: float | None = None) -> bool:
        """Sleep until there is this version or a later one. False if `timeout` (seconds; None: for ever) passed first."""
        return self._cell.wait(version - 1, timeout)

    def stats(self) -> dict[str, int]:
        """As `Cell.stats`."""
        return self._cell.stats()

    def _select(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {name: state_dict[name] for name in self._cell.schema.names}
        except KeyError as error:
            name = error.args[0]
            raise SpecError(f"there is no parameter {name!r} in the state_dict{did_you_mean(name, list(state_dict))}") from None

    def _read_converted(self, tree: dict[str, Any], newer_than: int | None, timeout: float | None, error: SpecError) -> int:
        """Read what has another dtype than its target into an array of its own, and convert that."""
        own: dict[str, np.ndarray] = {}
        for field in self._cell.schema.fields:
            leaf = tree[field.name]
            if hasattr(leaf, "dtype") and tuple(leaf.shape) == field.shape and tensors.dtype_of(leaf) != field.dtype:
                if field.dtype == np.uint16:
                    raise error  # these are the bits of bfloat16, or nobody knows
                own[field.name] = np.empty(field.shape, field.dtype)
        if not own:
            raise error
        version = self._cell.read_into(tree | own, newer_than, timeout)
        if version:
            for name, array in own.items():
                _give(name, array, tree[name])
        return version

    def _clock(self) -> tuple[int, int | None]:
        if self.trace_recorder is None:
            return 0, None
        return time.perf_counter_ns(), time.thread_time_ns() if self.trace_thread_time else None

    def _trace(self, started: tuple[int, int | None], name: str, counter: str, args: dict[str, Any]) -> None:
        recorder = self.trace_recorder
        if recorder is None:
            return
        recorder.add_slice(name, category="weight_sync", start_ns=started[0], end_ns=time.perf_counter_ns(), args=args)
        if started[1] is not None:
            recorder.add_counter(counter, (time.thread_time_ns() - started[1]) / 1000, category="weight_sync")

    # ---- the end, and other processes

    def close(self) -> None:
        """Stop using the memory here. Others can still attach to memory that this object made, until cleanup()."""
        self._cell.close()

    def cleanup(self) -> None:
        """Close, and give up the name. Processes that are attached keep the memory."""
        self._cell.cleanup()

    def __getstate__(self) -> dict[str, Any]:
        return {"_cell": self._cell, "_lock": self._lock, "trace_recorder": None, "trace_thread_time": self.trace_thread_time}


def _converted(field: Field, value: Any) -> Any:
    """`value` with the dtype of the field, if its numbers can have it. The cell checks everything else, and its errors name the entry."""
    if tensors.is_tensor(value) and str(value.dtype) == "torch.bfloat16" and field.dtype != np.uint16:
        value = value.detach().float()
    array = tensors.as_array(value)
    if array.dtype == field.dtype or array.shape != field.shape or field.dtype == np.uint16 or array.dtype.kind not in "biufc":
        return array
    return exact(field.name, array, field.dtype)


def exact(name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array with another dtype. Raises SpecError that names it if that is no usual conversion and changes a number."""
    if np.can_cast(array.dtype, dtype, "safe" if array.dtype.kind in "biu" else "same_kind"):
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        found = array.astype(dtype)
        if not np.array_equal(found.astype(array.dtype), array):
            raise SpecError(f"{name!r} is {array.dtype.name} and has numbers that {dtype.name} cannot hold; use the same dtype on both sides (dtypes=)")
    return found


def _give(name: str, array: np.ndarray, target: Any) -> None:
    if not tensors.is_tensor(target):
        target[...] = exact(name, array, target.dtype)
    elif str(target.dtype) == "torch.bfloat16":
        tensors.copy_back(target.detach(), np.ascontiguousarray(_bits(array)))
    else:
        tensors.copy_back(target, exact(name, array, tensors.dtype_of(target)))


def _bits(array: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 that are nearest to these numbers."""
    import torch

    found: np.ndarray = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
    return found
