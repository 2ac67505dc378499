"""Rollouts from collectors to a learner: `RolloutRingBuffer` as unilab.ipc has it, on a `Ring`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from echo_core.base.errors import ConfigError, EchoTimeoutError, SpecError

from .arrays import tensors
from .collector_error import CollectorDiedError
from .segments.ring import ReadSlot, Ring, WriteSlot

__all__ = ["RolloutRingBuffer"]

#: The fields of a rollout, and the shape of each from (environments, steps, width of observations, of actions, of the critic's observations).
_FIELD_SHAPES: dict[str, Callable[[int, int, int, int, int], tuple[int, ...]]] = {
    "obs": lambda envs, steps, obs, action, critic: (envs, steps, obs),
    "critic": lambda envs, steps, obs, action, critic: (envs, steps, critic),
    "actions": lambda envs, steps, obs, action, critic: (envs, steps, action),
    "log_probs": lambda envs, steps, obs, action, critic: (envs, steps),
    "rewards": lambda envs, steps, obs, action, critic: (envs, steps),
    "dones": lambda envs, steps, obs, action, critic: (envs, steps),
    "truncated": lambda envs, steps, obs, action, critic: (envs, steps),
    "last_obs": lambda envs, steps, obs, action, critic: (envs, obs),
    "last_critic": lambda envs, steps, obs, action, critic: (envs, critic),
}


class RolloutRingBuffer:
    """A ring of rollouts. The slot that is being written and the one that is being read belong to nobody else, so neither is ever mixed with another.

    Args:
        num_envs, num_steps, obs_dim, action_dim: sizes of a rollout: "obs" is float32 [num_envs, num_steps, obs_dim], "rewards" [num_envs, num_steps].
        critic_dim: width of "critic" and "last_critic"; 0: there are none.
        num_slots: how many rollouts can be ready at once, besides those that are being written and read.
        create: make the memory; False: attach to that which another object made.
        shm_name_prefix: `name` of that object. It is ignored, with a warning, if the memory is made here.
        policy: what happens when `num_slots` rollouts are ready: "drop_oldest", "block", "drop_newest" or "error"; see `Ring`.
        producers: how many processes write at once.
        fields: more fields, or other ones under the same names, as {name: (shape of one rollout, dtype)}.

    Raises:
        ConfigError: a number is below one, there is no such policy, or a name is missing.
        SpecError: the memory has other sizes.
        SegmentGoneError, SecurityError, MemoryError: as with `Ring`.
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int,
        obs_dim: int,
        action_dim: int,
        *,
        critic_dim: int = 0,
        num_slots: int = 4,
        create: bool = True,
        shm_name_prefix: Mapping[str, str] | None = None,
        policy: str = "drop_oldest",
        producers: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs, self.num_steps, self.obs_dim, self.action_dim = num_envs, num_steps, obs_dim, action_dim
        self.critic_dim, self.num_slots = critic_dim, num_slots
        names = [name for name in _FIELD_SHAPES if critic_dim or name not in ("critic", "last_critic")]
        schema: dict[str, Any] = {name: (_FIELD_SHAPES[name](num_envs, num_steps, obs_dim, action_dim, critic_dim), "float32") for name in names}
        schema |= fields or {}
        if create:
            if shm_name_prefix is not None:
                warnings.warn("shm_name_prefix is ignored, because create=True makes new memory; `name` tells its name", stacklevel=2)
            self._ring = Ring(schema, num_slots, producers=producers, policy=policy)
        elif not shm_name_prefix:
            raise ConfigError("create=False needs shm_name_prefix: `name` of the object that made the memory")
        else:
            if len(set(shm_name_prefix.values())) > 1:
                raise SpecError("shm_name_prefix has more than one name; it must be `name` of one RolloutRingBuffer")
            self._ring = Ring(schema, name=next(iter(shm_name_prefix.values())))
            if self._ring.slots != num_slots:
                there = self._ring.slots
                self._ring.close()
                raise SpecError(f"num_slots is {num_slots}, but the ring was made with {there}; use the same number on both sides")
        self._begin()

    def _begin(self) -> None:
        self._writing: WriteSlot | None = None
        self._reading: ReadSlot | None = None
        self._write_ptr, self._read_ptr = _Pointer(self._ring, "write"), _Pointer(self._ring, "read")

    @property
    def name(self) -> dict[str, str]:
        """What an object that attaches gets as `shm_name_prefix`: for each field the name of the memory, which is one for all."""
        return dict.fromkeys(self._ring.schema.names, self._ring.name)

    @property
    def slot_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field of one rollout."""
        return {field.name: field.shape for field in self._ring.schema.fields}

    @property
    def closed(self) -> bool:
        return self._ring.closed

    @property
    def policy(self) -> str:
        return self._ring.policy

    @property
    def lost(self) -> int:
        """How many rollouts the policy has dropped so far."""
        return self.stats()["lost"]

    def stats(self) -> dict[str, int]:
        """As `Ring.stats`."""
        return self._ring.stats()

    def attach_sync_primitives(self, write_ptr: Any, read_ptr: Any) -> None:
        """Nothing has to be attached: positions lie in the memory. Raises SpecError if these belong to another ring."""
        for pointer in (write_ptr, read_ptr):
            if isinstance(pointer, _Pointer) and pointer.name != self._ring.name:
                raise SpecError(f"these pointers belong to {pointer.name}, not to {self._ring.name}; use `name` and pointers of the same object")

    # ---- the collector's side

    def _claimed(self) -> WriteSlot:
        if self._writing is None or not self._writing.held:
            self._writing = self._ring.claim()
        return self._writing

    @property
    def write_slot(self) -> int:
        """Which slot is being written. It belongs to this object from now until signal_write_done()."""
        return self._claimed().index

    @property
    def write_buffer(self) -> dict[str, np.ndarray]:
        """The arrays of the rollout that is being written: the same ones until signal_write_done(). With policy="block" this waits for room.

        They must not be used after signal_write_done(). Raises RingFullError (policy "error") and ClosedError.
        """
        return dict(self._claimed().arrays)

    def signal_write_done(self) -> None:
        """Hand the rollout over. If write_buffer was not used before, it has whatever was in the memory."""
        slot = self._claimed()
        self._writing = None
        slot.commit()

    # ---- the learner's side

    def watch_producers(self, alive: Callable[[], bool] | None) -> None:
        """From now on wait_for_data() raises CollectorDiedError when `alive()` is False and nothing is left to read."""
        error = CollectorDiedError(f"the producers of {self._ring.name} are dead")
        self._ring.watch(None if alive is None else lambda: None if alive() else error)

    def available(self) -> int:
        """How many rollouts can be read, with the one that is being read."""
        return min(self._ring.available() + (self._reading is not None), self.num_slots)

    def wait_for_data(self, timeout: float = 60.0) -> bool:
        """Sleep until there is a rollout to read. False if there was none for `timeout` seconds.

        Raises CollectorDiedError or ConnectionClosedError if nobody is left who could write one.
        """
        return self._reading is not None or self._ring.wait(timeout)

    def _taken(self) -> ReadSlot:
        if self._reading is None:
            try:
                self._reading = self._ring.take(timeout=0)
            except EchoTimeoutError:
                raise EchoTimeoutError(f"there is no rollout to read in {self._ring.name}; ask wait_for_data() first") from None
        return self._reading

    @property
    def read_slot(self) -> int:
        """Which slot is being read. It belongs to this object from now until advance_read(). Raises EchoTimeoutError if there is none to read."""
        return self._taken().index

    def read_numpy_views(self) -> dict[str, np.ndarray]:
        """The arrays of the oldest rollout, in the shared memory. Nobody writes there until advance_read(); afterwards they must not be used.

        Raises EchoTimeoutError if there is none to read.
        """
        return dict(self._taken().arrays)

    def copy_read_slot_to_torch(self, destination: Mapping[str, Any]) -> None:
        """Copy the oldest rollout into tensors, of any device.

        Raises:
            KeyError: a field has no tensor.
            ValueError: a tensor has another shape.
            TypeError: a tensor has another dtype.
            EchoTimeoutError: there is no rollout to read.
        """
        import torch

        for field in self._ring.schema.fields:
            if field.name not in destination:
                raise KeyError(f"there is no tensor for the field {field.name!r}")
            target = destination[field.name]
            if tuple(target.shape) != field.shape:
                raise ValueError(f"the tensor for {field.name!r} has the shape {tuple(target.shape)}, but the field has {field.shape}")
            if tensors.dtype_of(target) != field.dtype:
                raise TypeError(f"the tensor for {field.name!r} is {target.dtype}, but the field is {field.dtype.name}")
        for name, array in self._taken().arrays.items():
            target = destination[name].detach()
            source = torch.from_numpy(array)
            target.copy_(source.view(target.dtype) if target.dtype is torch.bfloat16 else source)

    def read_torch(self, device: str) -> dict[str, Any]:
        """The oldest rollout as new tensors on `device`. Raises EchoTimeoutError if there is none to read."""
        import torch

        # A copy first: on the CPU, from_numpy alone would give the shared memory itself.
        return {name: torch.from_numpy(array).to(device, copy=True) for name, array in self._taken().arrays.items()}

    def advance_read(self) -> None:
        """Done with the oldest rollout: give its slot back. Nothing happens if there is none."""
        slot, self._reading = self._reading, None
        if slot is None:
            try:
                slot = self._ring.take(timeout=0)
            except EchoTimeoutError:
                return
        slot.release()

    # ---- the end, and other processes

    def close(self) -> None:
        """Stop using the memory here; a rollout that is being written is dropped. Others can still attach to memory that this object made."""
        self._let_go()
        self._ring.close()

    def cleanup(self) -> None:
        """Close, and give up the name. Processes that are attached keep the memory."""
        self._let_go()
        self._ring.cleanup()

    def _let_go(self) -> None:
        if self._writing is not None and self._writing.held and not self._ring.closed:
            self._writing.abort()
        if self._reading is not None and not self._ring.closed:
            self._reading.release()
        self._writing = self._reading = None

    def __getstate__(self) -> dict[str, Any]:
        sizes = ("num_envs", "num_steps", "obs_dim", "action_dim", "critic_dim", "num_slots", "_ring")
        return {name: getattr(self, name) for name in sizes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class _Pointer:
    """How many rollouts were written, or read. It looks like a `multiprocessing.Value`, but only reads: positions move with the rollouts."""

    def __init__(self, ring: Ring, which: str) -> None:
        self._ring, self._which = ring, which

    @property
    def name(self) -> str:
        return self._ring.name

    @property
    def value(self) -> int:
        written = self._ring.written
        return written if self._which == "write" else max(0, written - self._ring.available())

    def get_lock(self) -> _NoLock:
        return _NoLock()


class _NoLock:
    """Looks like a lock. Nothing has to be locked to read a number."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *exc: object) -> None:
        pass
