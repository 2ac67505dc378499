"""The store against the simplest possible model, over any sequence of operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from echo_core import ClosedError, EchoTimeoutError, LeaseError, Server
from echo_core.server.sink import ServerSink

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one

TREE = {"number": np.zeros((), np.int64), "filler": np.zeros(5, np.uint16)}
HOLE = None  # claimed and not committed


def one(number: int) -> dict[str, np.ndarray]:
    return {"number": np.array(number), "filler": np.full(5, number % 65536, np.uint16)}


def many(first: int, count: int) -> dict[str, np.ndarray]:
    numbers = np.arange(first, first + count)
    return {"number": numbers, "filler": np.repeat(numbers.astype(np.uint16), 5).reshape(-1, 5)}


@dataclass(eq=False)
class Buffer:
    """A batch being filled: committed numbers, holes where a writer is at work."""

    slots: list[int | None] = field(default_factory=list)

    def committed(self) -> int:
        return sum(slot is not HOLE for slot in self.slots)


class StoreMachine(RuleBasedStateMachine):
    @initialize(batch_size=st.integers(1, 4), num_buffers=st.integers(2, 4))
    def open(self, batch_size: int, num_buffers: int) -> None:
        self.server = Server(TREE, batch_size, num_buffers=num_buffers, lease_timeout=0)
        self.sink = ServerSink(self.server)
        self.batch_size, self.num_buffers = batch_size, num_buffers
        self.opened: list[Buffer] = []  # in order of opening, not yet taken
        self.returned: list[tuple[Buffer, int]] = []  # aborted slots, next one last
        self.claimed: list[tuple[Any, Buffer, int]] = []
        self.leases: list[tuple[Any, list[int]]] = []
        self.closed = False
        self.next = self.inserted = self.taken = self.aborted = self.out_of_order = 0

    # ---- the model ---------------------------------------------------------------------------

    def place(self) -> tuple[Buffer, int] | None:
        """Where the next claim goes; None when the store is full."""
        if self.returned:
            return self.returned.pop()
        if not self.opened or len(self.opened[-1].slots) == self.batch_size:
            if len(self.opened) + len(self.leases) == self.num_buffers:
                return None
            self.opened.append(Buffer())
        self.opened[-1].slots.append(HOLE)
        return self.opened[-1], len(self.opened[-1].slots) - 1

    def commit(self, place: tuple[Buffer, int], number: int) -> None:
        place[0].slots[place[1]] = number
        self.inserted += 1

    def complete(self) -> Buffer | None:
        return next((b for b in self.opened if b.committed() == self.batch_size), None)

    # ---- operations --------------------------------------------------------------------------

    @rule()
    def submit(self) -> None:
        number, self.next = self.next, self.next + 1
        if self.closed:
            with pytest.raises(ClosedError):
                self.server.submit(one(number), timeout=0)
        elif (place := self.place()) is None:
            with pytest.raises(EchoTimeoutError):
                self.server.submit(one(number), timeout=0)
        else:
            self.server.submit(one(number), timeout=0)
            self.commit(place, number)

    @rule(count=st.integers(0, 9))
    def submit_batch(self, count: int) -> None:
        first, self.next = self.next, self.next + count
        done = 0
        while not self.closed and done < count and (place := self.place()) is not None:
            self.commit(place, first + done)
            done += 1
        if done == count:
            assert self.server.submit_batch(many(first, count), timeout=0) == count
        else:
            with pytest.raises(ClosedError if self.closed else EchoTimeoutError) as caught:
                self.server.submit_batch(many(first, count), timeout=0)
            assert caught.value.inserted == done

    @rule()
    def claim(self) -> None:
        if self.closed:
            with pytest.raises(ClosedError):
                self.sink.claim(timeout=0)
        elif (place := self.place()) is None:
            with pytest.raises(EchoTimeoutError):
                self.sink.claim(timeout=0)
        else:
            self.claimed.append((self.sink.claim(timeout=0), *place))

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def commit_a_slot(self, data: st.DataObject) -> None:
        slot, buffer, index = self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1)))
        number, self.next = self.next, self.next + 1
        for leaf, array in enumerate(self.sink.spec.flattener.flatten(one(number))):
            slot.buffer(leaf)[:] = array.tobytes()
        slot.commit()
        self.commit((buffer, index), number)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), how=st.sampled_from(["abort", "leave", "drop"]))
    def abort_a_slot(self, data: st.DataObject, how: str) -> None:
        slot, buffer, index = self.claimed.pop(data.draw(st.integers(0, len(self.claimed) - 1)))
        slot.buffer(0)[:4] = b"junk"
        if how == "abort":
            slot.abort()
        elif how == "leave":
            with slot:
                pass
        del slot
        self.returned.append((buffer, index))
        self.aborted += 1

    @rule()
    def sample(self) -> None:
        buffer = self.complete()
        if buffer is not None:
            # One with a hole before it is overtaken when patience with the stalled writer has ended.
            batch, info = self.server.sample(timeout=5)
            assert batch["number"].tolist() == buffer.slots
            self.out_of_order += self.opened[0] is not buffer
            self.opened.remove(buffer)
            self.taken += 1
            self.leases.append((batch, buffer.slots))
            assert info.leases_held == len(self.leases)
        elif self.closed:
            assert self.server.sample(timeout=0) is None
        elif len(self.leases) == self.num_buffers:
            with pytest.raises(LeaseError):
                self.server.sample(timeout=0)
        else:
            with pytest.raises(EchoTimeoutError) as caught:
                self.server.sample(timeout=0)
            assert not isinstance(caught.value, LeaseError)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))

    @rule()
    def refuse(self) -> None:
        with pytest.raises(ValueError, match="filler"):
            self.server.submit({"number": np.array(1), "filler": np.zeros(5, np.int16)})

    @precondition(lambda self: self.next > 20)
    @rule()
    def close(self) -> None:
        self.server.close()
        self.closed = True

    # ---- always ------------------------------------------------------------------------------

    @invariant()
    def leased_batches_are_unchanged(self) -> None:
        for batch, numbers in getattr(self, "leases", ()):
            assert batch["number"].tolist() == numbers
            assert (batch["filler"] == np.array(numbers)[:, None] % 65536).all()

    @invariant()
    def figures_agree(self) -> None:
        if hasattr(self, "server"):
            stats = self.server.stats()
            assert stats["store/samples_inserted_total"] == self.inserted
            assert stats["store/samples"] == sum(buffer.committed() for buffer in self.opened)
            assert stats["store/batches_taken_total"] == self.taken
            assert stats["store/batches_out_of_order_total"] == self.out_of_order
            assert stats["store/leases_held"] == len(self.leases)
            assert stats["store/samples_aborted_total"] == self.aborted

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.server.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
