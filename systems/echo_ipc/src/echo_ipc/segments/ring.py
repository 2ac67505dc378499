"""Rollouts from producers to consumers, filled and read in place: nobody writes into a slot that somebody else holds."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np

from echo_core.base.errors import ClosedError, ConfigError, EchoError, EchoTimeoutError

from .. import _native
from ..arrays.schema import Schema
from .handle import Handle, closed
from .memory import Memory

__all__ = ["POLICIES", "ReadSlot", "Ring", "RingFullError", "WriteSlot"]

#: The policies for a rollout that is ready while `slots` others already are.
POLICIES = ("drop_oldest", "block", "drop_newest", "error")


class RingFullError(EchoError, queue.Full):
    """The ring has the policy "error" and no room."""


class _Slot:
    """A slot that this process holds. It is given back at the latest when this object is collected.

    Attributes:
        arrays: its arrays, nested like the ring's fields. They lie in the shared memory: use them only while the slot is held.
        index: which of the ring's slots it is.
    """

    def __init__(self, ring: Ring, hold: _native.Hold) -> None:
        self._ring, self._hold = ring, hold
        self.index = hold.slot
        self.held = True
        self.arrays: dict[str, Any] = ring._views(hold.slot)

    def _check(self) -> None:
        if not self.held:
            raise ClosedError("this slot was given back already; take or claim another one")


class WriteSlot(_Slot):
    """A slot to fill. As a context manager it commits, or aborts if the block raises."""

    def commit(self) -> int | None:
        """Make the slot ready to be taken. Returns the number of the rollout; None if the policy "drop_newest" dropped it.

        Raises ClosedError if the slot was given back or the ring was closed, or in a process that did not claim it.
        """
        self._check()
        number = self._hold.commit()
        self.held = False
        if number == -2:
            raise ClosedError("another process claimed this slot; it must be committed where it was claimed")
        return None if number == -1 else number

    def abort(self) -> None:
        """Give the slot back as if it had not been claimed. Raises ClosedError if that was done already."""
        self._check()
        self._hold.release()
        self.held = False

    def write(self, tree: Any) -> None:
        """Copy arrays or tensors with the names, shapes and dtypes of the fields into the slot. Raises SpecError that names an entry that does not fit."""
        self._check()
        schema = self._ring.schema
        arrays = schema.leaves(tree)
        while (outcome := self._hold.write(self._ring._layout, arrays)) < 0:
            arrays[-1 - outcome] = schema.fitted(arrays, -1 - outcome)

    def __enter__(self) -> WriteSlot:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if self.held:
            self.commit() if kind is None else self.abort()


class ReadSlot(_Slot):
    """A rollout to read. As a context manager it is released at the end.

    Attributes:
        number: how many rollouts were committed before it. If it is more than one above the number before, those between were dropped, or
            another consumer took them.
    """

    def __init__(self, ring: Ring, hold: _native.Hold) -> None:
        super().__init__(ring, hold)
        self.number = hold.number

    def release(self) -> None:
        """Give the slot back. The arrays may be written over from now on. Raises ClosedError if that was done already."""
        self._check()
        self._hold.release()
        self.held = False

    def __enter__(self) -> ReadSlot:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.held:
            self.release()


class Ring(Handle):
    """A ring of slots in shared memory, each with the same arrays.

    `slots` of them may be ready to be taken at once; besides, every producer and every consumer can hold one. Rollouts are taken in the order in which they
    were committed. If a producer is killed, what it was writing is dropped; if a consumer is killed, what it had taken can be taken again.

    Args:
        fields: a mapping as for `Cell`; None with `name`: those of the process that made the ring.
        slots: how many rollouts may be ready at once.
        producers, consumers: how many slots may be held for writing and for reading at once, in all processes together.
        policy: what happens when `slots` rollouts are ready. "drop_oldest" drops the oldest one; "block" makes `claim` wait; "drop_newest" drops
            the new one; "error" makes `claim` raise RingFullError.
        name: attach to the ring with this name. `slots`, `producers`, `consumers` and `policy` are then those of the ring.
        spin: seconds for which `claim`, `take` and `wait` look again and again before they sleep. Some microseconds save the wake-up if the other
            side is quick, at the cost of a busy core. None: up to 50 microseconds while that helps, and no more once waits are long.

    Raises:
        ConfigError: a number is below one, or there is no such policy.
        SpecError, SegmentGoneError, SecurityError, MemoryError: as with `Cell`.
    """

    _live: _native.NativeRing | None

    def __init__(
        self,
        fields: Any,
        slots: int | None = None,
        *,
        producers: int = 1,
        consumers: int = 1,
        policy: str = "drop_oldest",
        name: str | None = None,
        spin: float | None = None,
    ) -> None:
        wanted = None if fields is None else Schema.of(fields)
        if name is not None:
            memory = Memory.attach(name, _native.RING)
        elif wanted is None or slots is None:
            raise ConfigError("a new ring needs fields and a number of slots; to attach to one, give its name")
        else:
            for what, number in (("slots", slots), ("producers", producers), ("consumers", consumers)):
                if number < 1:
                    raise ConfigError(f"{what} must be at least 1, not {number}")
            physical = slots + producers + consumers
            if policy not in POLICIES:
                raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
            if physical > _native.MOST_SLOTS:
                raise ConfigError(f"slots, producers and consumers are {physical} together; at most {_native.MOST_SLOTS} are possible")
            text = wanted.to_json()
            size = _native.NativeRing.size(len(text), physical, wanted.nbytes)
            words = (slots, physical, wanted.nbytes, POLICIES.index(policy), producers, consumers)
            memory = Memory.create(_native.RING, text, words, size, f"this ring of {physical} slots")
        self._adopt(memory, {"spin": spin})
        if wanted is not None and name is not None:
            wanted.check_same(self.schema, name)

    def _adopt(self, memory: Memory, state: dict[str, Any]) -> None:
        self.schema = Schema.from_json(memory.mapping.schema)
        self.slots, self._physical, nbytes, policy, self.producers, self.consumers = memory.mapping.words[:6]
        if self.schema.nbytes != nbytes or self.slots + self.producers + self.consumers != self._physical:
            raise ConfigError(f"the description of {memory.name} does not fit its slots; install the same echo-ipc for all processes")
        native = _native.NativeRing(memory.mapping)
        super().__init__(memory, native)
        self.policy = POLICIES[policy]
        self.spin: float | None = state["spin"]
        self._arrays: list[dict[str, Any] | None] = [None] * self._physical
        fields = self.schema.fields
        self._layout = _native.FieldLayout([f.dtype for f in fields], [f.shape for f in fields], [f.offset for f in fields])

    def _state(self) -> dict[str, Any]:
        return {"spin": self.spin}

    def _forget(self) -> None:
        self._arrays = [None] * self._physical
        super()._forget()

    def _use(self) -> _native.NativeRing:
        native = self._live
        if native is None:
            raise closed(self)
        return native

    def _views(self, slot: int) -> dict[str, Any]:
        """The arrays of a slot, made once."""
        found = self._arrays[slot]
        if found is None:
            found = self._arrays[slot] = self.schema.tree(self._leaves(slot))
        return found

    def _leaves(self, slot: int) -> list[np.ndarray]:
        native = self._use()
        start, mapping = native.start(slot), native.mapping
        return [np.ndarray(field.shape, field.dtype, mapping, start + field.offset) for field in self.schema.fields]

    # ---- producers

    def claim(self, timeout: float | None = None) -> WriteSlot:
        """A slot to fill, which this process holds until it commits or aborts.

        Args:
            timeout: seconds to wait for room ("block"), or for a slot that somebody holds; None: for ever.

        Raises:
            EchoTimeoutError: there was none in time.
            RingFullError: the policy is "error" and `slots` rollouts are ready or being written.
            ClosedError: the ring was closed.
        """
        outcome, hold = self._use().claim(timeout, self.spin)
        if hold is not None:
            return WriteSlot(self, hold)
        if outcome == _native.FULL and self.policy == "error":
            raise RingFullError(f"{self.name} has {self.slots} rollouts that nobody has taken; take them, or give the ring more slots or another policy")
        if outcome == _native.FULL:
            raise EchoTimeoutError(f"{self.name} had no room for {timeout} s: its {self.slots} slots are ready or being written; is a consumer alive?")
        raise EchoTimeoutError(
            f"all slots of {self.name} were held for {timeout} s; it was made for {self.producers} producers and {self.consumers} consumers, "
            "so release slots, or make it for more"
        )

    def put(self, tree: Any, timeout: float | None = None) -> int | None:
        """Claim a slot, copy `tree` into it and commit. Returns as `WriteSlot.commit`, raises as `claim` and `WriteSlot.write`."""
        with self.claim(timeout) as slot:
            slot.write(tree)
            return slot.commit()

    # ---- consumers

    def take(self, timeout: float | None = None) -> ReadSlot:
        """The oldest rollout that is ready, which this process holds until it releases it.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            EchoTimeoutError: there was none in time.
            ClosedError: the ring was closed.
        """
        _, hold = self._use().take(timeout, self.spin)
        if hold is None:
            raise EchoTimeoutError(f"nothing came into {self.name} for {timeout} s; is a producer alive?")
        return ReadSlot(self, hold)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a rollout can be taken; False if `timeout` (seconds; None: for ever) passed first. Another consumer may still take it first."""
        return self._use().wait(timeout, self.spin)

    def available(self) -> int:
        """How many rollouts can be taken now."""
        return self._use().available

    @property
    def written(self) -> int:
        """How many rollouts were committed so far: the number of the next one."""
        return self._use().written

    def stats(self) -> dict[str, int]:
        """Figures of all processes together: `written`, committed; `available`, ready now; `taken`, released by consumers; `lost`, dropped by the
        policy; `abandoned`, claims of producers that died; `returned`, rollouts of consumers that died, which can be taken again; `repairs`, how
        often a process was killed with the lock. A figure may be one short for each killed process."""
        return self._use().figures()
