"""What the store refuses, by name: samples and batches that do not match, sizes that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest
from stored import GOOD, inserted

from echo_core import Server, SpecError

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


BAD: dict[str, tuple[Any, str]] = {
    "other dtype": ({"obs": {"pos": np.zeros(4, np.int32)}, "reward": np.float32(0)}, "pos"),
    "wider dtype": ({"obs": {"pos": np.zeros(4)}, "reward": np.float32(0)}, "pos"),
    "dtype of a scalar": ({"obs": GOOD["obs"], "reward": np.float64(1e39)}, "reward"),
    "other key": ({"obs": {"position": np.zeros(4, np.float32)}, "reward": np.float32(0)}, "pos"),
    "missing key": ({"obs": GOOD["obs"]}, "reward"),
    "one key more": ({**GOOD, "done": np.zeros((), np.bool_)}, "done"),
    "same bytes": ({"obs": {"pos": np.zeros((2, 2), np.float32)}, "reward": np.float32(0)}, "pos"),
    "other size": ({"obs": {"pos": np.zeros(5, np.float32)}, "reward": np.float32(0)}, "pos"),
    "several": ({"obs": {"pos": np.zeros((9, 4), np.float32)}, "reward": np.float32(0)}, "pos"),
    "objects": ({"obs": {"pos": np.array([None] * 4)}, "reward": np.float32(0)}, "pos"),
    "no tree": (np.zeros(5, np.float32), "dict|obs"),
    "nothing": (None, "dict|obs"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_sample_that_does_not_match_is_refused_by_name(case: str) -> None:
    bad, leaf = BAD[case]
    server = Server(GOOD, batch_size=2)
    server.submit(GOOD)
    with pytest.raises(SpecError, match=leaf):
        server.submit(bad)
    assert inserted(server) == 1
    server.submit(GOOD)
    assert server.sample(timeout=5).info.samples_inserted_total == 2


@pytest.mark.parametrize("case", [name for name in BAD if name != "several"])
def test_a_batch_that_does_not_match_is_refused_by_name(case: str) -> None:
    bad, leaf = BAD[case]
    server = Server(GOOD, batch_size=2)
    with pytest.raises(SpecError, match=leaf):
        server.submit_batch(optree.tree_map(lambda x: np.stack([x] * 4), bad))
    assert inserted(server) == 0


def test_the_leaves_of_a_batch_must_agree_how_many_there_are() -> None:
    server = Server(GOOD, batch_size=2)
    uneven = {"obs": {"pos": np.zeros((4, 4), np.float32)}, "reward": np.zeros(3, np.float32)}
    with pytest.raises(SpecError, match="reward"):
        server.submit_batch(uneven)
    assert inserted(server) == 0


@pytest.mark.parametrize(
    ("batch_size", "num_buffers", "said"),
    [
        (0, 3, "batch_size"),
        (-1, 3, "batch_size"),
        (1 << 24, 3, "batch_size"),
        (2.0, 3, "batch_size"),
        (True, 3, "batch_size"),
        ("2", 3, "batch_size"),
        (2, 1, "num_buffers"),
        (2, 1 << 12, "num_buffers"),
        ((1 << 24) - 1, 4095, r"2\*\*32"),
    ],
)
def test_sizes_that_cannot_be(batch_size: Any, num_buffers: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Server(GOOD, batch_size, num_buffers=num_buffers)


def test_whole_numbers_of_numpy_are_sizes_too() -> None:
    server = Server(GOOD, np.int64(2), num_buffers=np.uint8(4))
    assert (server.batch_size, server.num_buffers) == (2, 4)


def test_more_memory_than_there_is_says_how_much() -> None:
    frame = {"x": np.zeros((1 << 20,), np.float32)}
    with pytest.raises(MemoryError, match=r"7 buffers of 1000000 .*29,360,\d{3},\d{3},\d{3} bytes"):
        Server(frame, batch_size=1_000_000, num_buffers=7)
    with pytest.raises(MemoryError):  # and more than 64 bits can count
        Server({"x": np.broadcast_to(np.int64(0), (1 << 40,))}, 1 << 23)
