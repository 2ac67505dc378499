"""Samples gathered one by one come out as the payload of a frame, in pieces or in one."""

from __future__ import annotations

import gc
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Spec
from echo_net.gather import Gatherer

pytestmark = pytest.mark.every_python

EXAMPLES: dict[str, Any] = {
    "one leaf": np.zeros(3, np.float32),
    "of one byte": {"a": np.zeros((), np.uint8), "b": np.zeros((), np.bool_)},
    "two leaves": {"obs": np.zeros(4, np.float32), "reward": np.zeros((), np.float64)},
    "an empty leaf": {"a": np.zeros(2, np.int16), "nothing": np.zeros((0, 3), np.float32), "z": np.zeros((), np.int64)},
    "many leaves": [np.zeros(i % 5, np.int32) for i in range(100)],
}


def samples(example: Any, count: int) -> tuple[list[Any], bytes]:
    """Different samples, and the payload that holds them."""
    import optree

    leaves, structure = optree.tree_flatten(example)
    rng = np.random.default_rng(7)
    columns = [rng.integers(0, 2, (count, *leaf.shape)).astype(leaf.dtype) for leaf in leaves]
    return [structure.unflatten([column[i] for column in columns]) for i in range(count)], b"".join(c.tobytes() for c in columns)


@pytest.mark.parametrize("count", [1, 2, 63])
@pytest.mark.parametrize("name", EXAMPLES)
def test_columns_and_payload(name: str, count: int) -> None:
    spec = Spec.from_example(EXAMPLES[name])
    gatherer = Gatherer(spec.flattener, 1 << 20, 64)
    gatherer.limit = count
    given, expected = samples(EXAMPLES[name], count)
    assert [gatherer.take(sample) for sample in given] == [1] * count
    assert gatherer.take(given[0]) == 0  # the limit
    chunk = gatherer.collect()
    assert chunk is not None and chunk.count == count and gatherer.collect() is None
    assert b"".join(chunk.columns()) == chunk.payload() == expected
    assert all(column.readonly and len(column) for column in chunk.columns())


@pytest.mark.parametrize("count", [1, 5, 6])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_full_chunk_is_framed_as_it_lies(name: str, count: int) -> None:
    """Six samples are a full chunk. What is in front may be written again, and is the same memory."""
    spec = Spec.from_example(EXAMPLES[name])
    gatherer = Gatherer(spec.flattener, 1 << 20, 6, 11)
    gatherer.limit = count
    given, expected = samples(EXAMPLES[name], count)
    for sample in given:
        gatherer.take(sample)
    chunk = gatherer.collect()
    assert chunk is not None
    assert b"".join(chunk.columns()) == chunk.payload() == expected
    framed = chunk.framed(b"elevenbytes")
    if count < 6:
        assert framed is None
    else:
        assert framed == b"elevenbytes" + expected and chunk.framed(b"elevenbytes") is framed
        assert chunk.framed(b"ten bytes.") is None
        del chunk, gatherer
        assert framed == b"elevenbytes" + expected


def test_without_a_head_nothing_is_framed() -> None:
    gatherer = Gatherer(Spec.from_example(np.zeros(3)).flattener, 1 << 20, 1)
    gatherer.limit = 1
    gatherer.take(np.zeros(3))
    chunk = gatherer.collect()
    assert chunk is not None and chunk.framed(b"") is None


@pytest.mark.parametrize("nbytes", [16, 32, 64, 128, 256, 512])
def test_leaves_with_nothing_between_them_begin_apart(nbytes: int) -> None:
    """At the same offset modulo 4 KiB they would throw each other out of the cache. It costs some samples of room, not many."""
    example = [np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)]
    free = min(65536, (4 << 20) // (2 * nbytes))
    room = Gatherer(Spec.from_example(example).flattener, 4 << 20, 65536, 32).room
    assert free - 256 < room <= free
    assert 256 <= room * nbytes % 4096 <= 4096 - 256


def test_a_column_keeps_its_memory() -> None:
    """A chunk's memory is used again once nobody can see it; while somebody holds a column, somebody can."""
    example = {"x": np.zeros(1000, np.float64)}
    gatherer = Gatherer(Spec.from_example(example).flattener, 16_000, 2)
    gatherer.limit = 100
    held = []
    for number in range(20):
        gatherer.take({"x": np.full(1000, number, np.float64)})
        chunk = gatherer.collect()
        assert chunk is not None
        held += chunk.columns()
        del chunk
    gc.collect()
    assert [np.frombuffer(column)[[0, -1]].tolist() for column in held] == [[n, n] for n in range(20)]


LARGE = np.zeros(8 << 20, np.float32)  # copying it takes so long that a thread which waits for the interpreter is awake before it is done


@pytest.mark.parametrize("copy", ["take", "tobytes", "batch_tobytes"])
def test_others_run_while_a_large_sample_is_copied(copy: str) -> None:
    spec = Spec.from_example(LARGE)
    gatherer = Gatherer(spec.flattener, 64 << 20, 8)
    gatherer.limit = 1 << 30
    call = gatherer.take if copy == "take" else getattr(spec.flattener, copy)
    argument = LARGE[None] if copy == "batch_tobytes" else LARGE
    inside = over = False
    seen = threading.Event()

    def look() -> None:
        while not over:
            if inside:
                seen.set()
            time.sleep(0)

    watcher = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # nobody is interrupted: the thread that runs beside the copy was let
    watcher.start()
    try:
        for _ in range(100):
            inside = True
            call(argument)
            inside = False
            gatherer.collect()
            if seen.is_set():
                break
    finally:
        over = True
        sys.setswitchinterval(interval)
        watcher.join()
    assert seen.is_set()


def test_threads_that_take_large_samples_together() -> None:
    """Each sample comes whole and once, those of a thread in their order, and none before it is copied."""
    example = np.zeros(1 << 20, np.int32)
    threads, each = 3, 40
    gatherer = Gatherer(Spec.from_example(example).flattener, 18 << 20, 100)
    gatherer.limit = 1 << 30

    def flood(thread: int) -> None:
        for number in range(each):
            assert gatherer.take(np.full_like(example, 1 + thread * each + number)) in (1, 2)

    workers = [threading.Thread(target=flood, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    came: list[int] = []
    while len(came) < threads * each:
        oldest = gatherer.collect() if len(came) % 2 else None
        for chunk in gatherer.settle() if oldest is None else [oldest]:
            rows = np.frombuffer(chunk.columns()[0], np.int32).reshape(chunk.count, -1)
            assert rows[-1, -1]  # which is copied last
            assert (rows == rows[:, :1]).all() and rows[:, 0].all()
            came += rows[:, 0].tolist()
    for worker in workers:
        worker.join()
    assert gatherer.taken == len(came) and gatherer.collect() is None
    for thread in range(threads):
        own = range(1 + thread * each, 1 + (thread + 1) * each)
        assert [n for n in came if n in own] == list(own)


@pytest.mark.parametrize("copy", ["take", "tobytes"])
def test_arrays_that_are_taken_out_of_a_sample_while_it_is_copied(copy: str) -> None:
    """They are kept until then: of memory that went back to the kernel not a byte could be read."""
    sample = {"x": np.ones(1 << 22, np.int32)}
    spec = Spec.from_example(sample)
    gatherer = Gatherer(spec.flattener, 18 << 20, 100)
    gatherer.limit = 1 << 30
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            sample["x"] = np.ones(1 << 22, np.int32)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(30):
            if copy == "tobytes":
                data = spec.flattener.tobytes(sample)
            else:
                gatherer.take(sample)
                chunk = gatherer.collect()
                assert chunk is not None
                data = chunk.payload()
            assert (np.frombuffer(data, np.int32) == 1).all()
    finally:
        over.set()
        swapper.join()


def test_a_sample_that_sends_another_of_its_own() -> None:
    """Code that a leaf runs when it is converted may come back here."""
    example = np.zeros(40_000, np.int32)
    gatherer = Gatherer(Spec.from_example(example).flattener, 1 << 20, 100)
    gatherer.limit = 2

    class Leaf:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            assert gatherer.take(example) == 1
            return example + 1

    assert gatherer.take(Leaf()) == 1
    chunk = gatherer.collect()
    assert chunk is not None
    assert np.frombuffer(chunk.payload(), np.int32).reshape(2, -1)[:, 0].tolist() == [0, 1]
