"""The store gives back what was put into it: every dtype and layout, bit for bit and in order."""

from __future__ import annotations

import numpy as np
import optree
import pytest

from echo_core import EchoTimeoutError, Server
from echo_testing.samples import Tally, assert_same, example, random_like, rich_example, sample

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


def test_every_dtype_arrives_bit_exact_and_in_order() -> None:
    tree = rich_example()
    server = Server(tree, batch_size=3)
    samples = [random_like(tree, seed) for seed in range(6)]
    for one in samples:
        server.submit(one)
    for start in (0, 3):
        batch, _ = server.sample(timeout=5)
        for row in range(3):
            rows = optree.tree_map(lambda leaf, row=row: leaf[row, ...], batch)
            assert_same(rows, optree.tree_map(np.asarray, samples[start + row]))


def test_a_batch_of_every_dtype_arrives_bit_exact() -> None:
    tree = rich_example()
    server = Server(tree, batch_size=4)
    samples = random_like(tree, seed=1, lead=(10,))
    assert server.submit_batch(samples) == 10
    for start in (0, 4):
        batch, _ = server.sample(timeout=5)
        wanted = optree.tree_map(lambda leaf, start=start: leaf[start : start + 4], samples)
        assert_same(batch, wanted)


@pytest.mark.parametrize("leaves", [1, 63, 64, 65, 150])
def test_any_number_of_leaves(leaves: int) -> None:
    tree = {f"leaf{i:03}": np.zeros(i % 4, np.int32) for i in range(leaves)}
    server = Server(tree, batch_size=2)
    samples = random_like(tree, seed=2, lead=(4,))
    server.submit(optree.tree_map(lambda leaf: leaf[0], samples))
    server.submit_batch(optree.tree_map(lambda leaf: leaf[1:], samples))
    for start in (0, 2):
        wanted = optree.tree_map(lambda leaf, start=start: leaf[start : start + 2], samples)
        assert_same(server.sample(timeout=5).batch, wanted)


def test_samples_without_bytes_are_counted_like_others() -> None:
    server = Server({"a": np.zeros((0, 3), np.float32), "b": np.zeros(0, np.int8)}, batch_size=2)
    empty = {"a": np.zeros((0, 3), np.float32), "b": np.zeros(0, np.int8)}
    server.submit(empty)
    with pytest.raises(EchoTimeoutError):
        server.sample(timeout=0)
    server.submit(empty)
    batch, info = server.sample(timeout=5)
    assert (batch["a"].shape, batch["b"].shape) == ((2, 0, 3), (2, 0))
    assert info.samples_inserted_total == 2
    with pytest.raises(EchoTimeoutError):
        server.sample(timeout=0)


def test_leaves_without_axes_become_vectors() -> None:
    server = Server(np.zeros((), np.int16), batch_size=3)
    server.submit(np.array(1, np.int16))
    server.submit(np.int16(2))
    server.submit(3)
    batch, _ = server.sample(timeout=5)
    assert batch.dtype == np.int16
    assert batch.tolist() == [1, 2, 3]


def test_memory_layout_and_byte_order_are_adapted() -> None:
    server = Server({"x": np.zeros((3, 4), np.float32)}, batch_size=4)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    server.submit({"x": np.asfortranarray(values)})
    server.submit({"x": np.repeat(values, 2, axis=1)[:, ::2]})
    server.submit({"x": values.astype(">f4")})
    frozen = values.copy()
    frozen.flags.writeable = False
    server.submit({"x": frozen})
    batch, _ = server.sample(timeout=5)
    assert (batch["x"] == values).all()


def test_the_samples_arrays_may_be_changed_at_once() -> None:
    server = Server(example(), batch_size=16)
    one = sample(0, 0)
    for number in range(16):
        for name, value in sample(5, number).items():
            one[name][...] = value
        server.submit(one)
    tally = Tally()
    tally.add(server.sample(timeout=5).batch)
    tally.check({5: 16})
