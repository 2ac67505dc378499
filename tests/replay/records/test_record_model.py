"""Tables of records beside a model in plain Python: histories of writers that send chunks, cut off, lie and leave, and of learners that draw."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_chunks import Worker, record

from echo_core import EchoError, EchoTimeoutError, MinSize, Queue, Ragged, Table
from echo_core.spec.ragged import RaggedSpec

pytestmark = pytest.mark.needs("echo-samplers")

HISTORIES = int(os.environ.get("ECHO_RECORD_HISTORIES", "1000"))
MOST = 300
SPEC = RaggedSpec.from_example({"a": Ragged(np.int64, most=MOST), "b": Ragged(np.uint8, (3,), "other", 40), "id": np.int32(0)})
LENGTHS = st.sampled_from([0, 1, 2, 60, 120, 125, 126, 127, 200, MOST])
CLIENTS = 4


def made(number: int, n: int) -> list[np.ndarray]:
    other = n % 41
    return [
        np.arange(n, dtype=np.int64) * 3 + number,
        ((np.arange(other * 3) + number) % 251).astype(np.uint8).reshape(other, 3),
        np.array(number, np.int32),
    ]


def tree(arrays: list[np.ndarray]) -> Any:
    return SPEC.treedef.unflatten(arrays)


@dataclass
class Client:
    worker: Worker
    left: list[bytes] = field(default_factory=list)  # chunks of the open record that were not sent yet
    number: int = -1
    length: int = 0
    first: bool = False  # the next chunk begins a record
    open: bool = False  # the table has a part of a record


class Model:
    """A queue: what was completed, in order. Records of one client may wait outside the table, but nothing overtakes or is lost."""

    def __init__(self, capacity: int, pool: int) -> None:
        self.table = Table("m", tree([Ragged(np.int64, most=MOST), Ragged(np.uint8, (3,), "other", 40), np.int32(0)]), capacity=capacity,
                           max_bytes=pool, sampler="fifo", rate_limiter=Queue(capacity)).open(1)
        self.clients = [Client(Worker(self.table, client + 1)) for client in range(CLIENTS)]
        self.complete: list[tuple[int, int]] = []  # (number, length) of records that nobody has drawn, in order
        self.numbers = iter(range(1 << 30))
        self.lost = self.lies = 0

    def begin(self, which: int, n: int) -> None:
        client = self.clients[which]
        client.number, client.length = next(self.numbers), n
        client.left = client.worker.cut(record(SPEC, made(client.number, n)))
        client.first = True

    def put(self, client: Client, chunk: bytes) -> bool:
        """Send one chunk. Returns False if it found no room."""
        try:
            client.worker.put(chunk, timeout=0)
        except EchoTimeoutError:
            return False
        if client.first and client.open:  # the record before it was cut off
            self.lost += 1
        client.first, client.open = False, True
        return True

    def send(self, which: int, chunks: int) -> None:
        client = self.clients[which]
        while client.left and chunks and self.put(client, client.left[0]):
            client.left.pop(0)
            chunks -= 1
            if not client.left:
                client.open = False
                self.complete.append((client.number, client.length))

    def lie(self, which: int, n: int) -> None:
        """A whole record whose header says that it has one row more."""
        client = self.clients[which]
        client.left, client.first = [], True
        for chunk in client.worker.cut(record(SPEC, made(next(self.numbers), n), [n + 1, n % 41, 0, 0])):
            first = client.first
            if not self.put(client, chunk):
                return
            if n == MOST:
                self.lies += first
                client.open = False
        if n < MOST:
            self.lies += 1
            client.open = False

    def leave(self, which: int) -> None:
        client = self.clients[which]
        self.table.forget(which + 1)
        self.lost += client.open
        client.left, client.open = [], False

    def submit(self, n: int) -> None:
        number = next(self.numbers)
        try:
            self.table.submit(tree(made(number, n)), timeout=0)
        except EchoTimeoutError:
            return
        self.complete.append((number, n))

    def draw(self, n: int) -> None:
        size = len(self.table)
        try:
            batch = self.table.sample(n, timeout=0)
        except (EchoTimeoutError, EchoError, ValueError):
            assert size < n
            return
        self.took(batch, n)

    def draw_units(self, units: int) -> None:
        size = len(self.table)
        try:
            batch = self.table.sample(units={"t": units}, timeout=0)
        except EchoTimeoutError:
            return
        n = len(batch.packed)
        assert n >= 1 and batch.offsets["t"][-1] <= units
        if n < size:  # what comes next did not fit
            assert sum(length for _, length in self.complete[: n + 1]) > units
        self.took(batch, n)

    def took(self, batch: Any, n: int) -> None:
        assert len(batch.packed) == n
        for i in range(n):
            number, length = self.complete.pop(0)
            for leaf, array, wanted in zip(SPEC.leaves, SPEC.treedef.flatten_up_to(batch.row(i)), made(number, length)):
                assert np.array_equal(array, wanted), (leaf.path, number)

    def check(self) -> None:
        stats = self.table.stats()
        assert stats["evicted"] == 0
        assert stats["size"] + stats["records_waiting"] == len(self.complete)
        assert stats["records_incomplete"] == self.lost
        assert stats["records_refused"] == self.lies
        held = self.complete[: stats["size"]]
        assert stats["units_t"] == sum(length for _, length in held)
        assert stats["bytes_used"] == sum(-(-sum(x.nbytes for x in made(0, length)) // 512) * 512 for _, length in held)


WHO = st.integers(0, CLIENTS - 1)
STEPS = st.one_of(
    st.tuples(st.just("begin"), WHO, LENGTHS),
    st.tuples(st.just("send"), WHO, st.integers(1, 9)),
    st.tuples(st.just("send"), WHO, st.integers(1, 9)),
    st.tuples(st.just("lie"), WHO, LENGTHS),
    st.tuples(st.just("leave"), WHO),
    st.tuples(st.just("submit"), LENGTHS),
    st.tuples(st.just("draw"), st.integers(1, 3)),
    st.tuples(st.just("draw_units"), st.integers(MOST, 900)),
)


@given(st.integers(1, 6), st.integers(3072, 9000), st.lists(STEPS, min_size=10, max_size=80))
@settings(max_examples=HISTORIES, deadline=None)
def test_a_queue_gives_every_complete_record_once_and_in_order(capacity: int, pool: int, steps: list[tuple[Any, ...]]) -> None:
    model = Model(capacity, pool)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.check()
    for which in range(CLIENTS):
        model.leave(which)
    while model.complete:
        model.draw(1)
    model.check()


@given(st.integers(1, 9), st.integers(3072, 12000), st.lists(st.tuples(WHO, LENGTHS, st.sampled_from(["put", "put", "draw", "delete", "units"])), max_size=80))
@settings(max_examples=HISTORIES, deadline=None)
def test_a_table_that_evicts_keeps_the_newest_items(capacity: int, pool: int, steps: list[tuple[int, int, str]]) -> None:
    table = Table("m", tree([Ragged(np.int64, most=MOST), Ragged(np.uint8, (3,), "other", 40), np.int32(0)]), capacity=capacity, max_bytes=pool,
                  sampler="uniform", rate_limiter=MinSize(1)).open(1)
    workers = [Worker(table, client + 1) for client in range(CLIENTS)]
    held: dict[int, tuple[int, int]] = {}  # by key: number and length
    for number, (which, n, what) in enumerate(steps):
        if what == "put" and number % 2:
            workers[which].put(*workers[which].cut(record(SPEC, made(number, n))), timeout=0)
            held[int(table.newest(1)[0])] = number, n
        elif what == "put":
            held[table.submit(tree(made(number, n)), timeout=0)] = number, n
        elif what == "delete" and held:
            assert table.delete([next(iter(held))]) == 1
        elif what == "draw" and held:
            batch = table.sample(2 if table.sampler.replacement else 1, timeout=0)
            for i, key in enumerate(batch.keys.tolist()):
                for array, wanted in zip(SPEC.treedef.flatten_up_to(batch.row(i)), made(*held[key])):
                    assert np.array_equal(array, wanted)
        elif what == "units" and held:
            try:
                batch = table.sample(units={"t": 500}, timeout=0)
            except EchoTimeoutError:
                continue
            assert batch.offsets["t"][-1] <= 500
            for i, key in enumerate(batch.keys.tolist()):
                for array, wanted in zip(SPEC.treedef.flatten_up_to(batch.row(i)), made(*held[key])):
                    assert np.array_equal(array, wanted)
        keys = table.keys().tolist()
        order = list(held)
        assert keys == order[len(order) - len(keys) :], "what is gone came first"
        held = {key: held[key] for key in keys}
        stats = table.stats()
        assert stats["bytes_used"] == sum(-(-sum(x.nbytes for x in made(0, length)) // 512) * 512 for _, length in held.values())
        assert stats["units_t"] == sum(length for _, length in held.values())
