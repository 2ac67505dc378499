"""Looking at samples of varying length in a running server."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core import EchoError, EchoTimeoutError, MinSize, Queue, Ragged, Server, Table
from echo_core.base.errors import ProtocolError
from echo_core.client import observer as observers
from echo_core.client.observer import Observer
from echo_core.spec.ragged import RaggedSpec

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]

MOST = 3_000_000
EXAMPLE = {"tokens": Ragged(np.int32, most=MOST), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}


def sample(task: int, length: int) -> dict:
    return {"tokens": np.arange(length, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": task}


def served(example=EXAMPLE, **options) -> Server:
    options = {"sampler": "fifo", "rate_limiter": Queue(100), "max_bytes": 64 << 20, **options}
    return Server(tables=[Table("r", example, capacity=100, **options)], batch_size=1, transport="tcp://127.0.0.1:0", client_memory=1 << 30).start()


def test_the_newest_items_are_seen_whole_and_none_is_taken() -> None:
    example = {**EXAMPLE, "tokens": Ragged(np.int32, most=300_000)}
    with served(example) as server, Observer(server.address) as observer:
        with pytest.raises(EchoTimeoutError, match="table 'r' holds no item"):
            observer.tap(timeout=0.1)
        keys = [server.submit(sample(task, length)) for task, length in enumerate([3, 0, 5, 300_000, 7, 0])]
        look = observer.tap(5)  # 1.2 MB, in several messages
        assert [one["task"].item() for one in look.samples] == [1, 2, 3, 4, 5] and look.keys == keys[1:]
        for task, length, one, row in zip(range(1, 6), [0, 5, 300_000, 7, 0], look.samples, look.rows):
            for name, value in sample(task, length).items():
                np.testing.assert_array_equal(one[name], value)
            assert [leaf.shape for leaf in row] == [(task % 10, 2), (), (length,)]
        assert look.leaves[2].shape == (300_012,) and look.spec == RaggedSpec.from_example(example)
        assert len(observer.tap(1000).samples) == 6
        assert server.stats()["table/r/samples"] == 0


def test_a_sample_that_is_larger_than_a_look_is_refused() -> None:
    huge = {"x": Ragged(np.uint8, most=20 << 20)}
    with served(huge, rate_limiter=MinSize(1), sampler="uniform") as server, Observer(server.address) as observer:
        server.submit({"x": np.zeros(10, np.uint8)})
        assert len(observer.tap(4).samples) == 1  # the others could be too large
        server.submit({"x": np.zeros(20 << 20, np.uint8)})
        with pytest.raises(EchoError, match="the newest sample has 20,971,5.* bytes, but a look has at most 16,777,216"):
            observer.tap(4)


@pytest.mark.parametrize(("lengths", "extra"), [([10, 5], 0), ([-1, 5], 0), ([0, 5], 1), ([0, 6], 0)])
def test_looks_that_lie_are_refused(lengths: list[int], extra: int) -> None:
    data = np.array(lengths, np.int32).tobytes() + bytes(28 + extra)
    with pytest.raises(ProtocolError):
        observers._packed(RaggedSpec.from_example(EXAMPLE), 1, data)
