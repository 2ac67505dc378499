"""Samples of varying length that clients look up by key, and insert by request."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from echo_core import Client, EchoError, EchoTimeoutError, MinSize, Queue, Ragged, Server, SpecError, Table
from echo_core.base.errors import ProtocolError
from echo_core.wire.blobs import MAX_BYTES, join
from echo_replay.requests.record_items import samples_of

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]

MOST = 400_000
EXAMPLE = {"tokens": Ragged(np.int32, most=MOST), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}


def sample(task: int, length: int) -> dict:
    return {"tokens": np.arange(length, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": task}


def check(item, task: int, length: int) -> None:
    for name, value in sample(task, length).items():
        np.testing.assert_array_equal(item[name], value)


def make(**options) -> Server:
    options = {"sampler": "prioritized", "rate_limiter": MinSize(1), "max_bytes": 32 << 20, **options}
    return Server(tables=[Table("r", EXAMPLE, capacity=100, **options)], batch_size=4, transport="tcp://127.0.0.1:0").start()


def test_items_are_inserted_with_priorities_and_looked_up_by_their_keys() -> None:
    with make() as server, Client(server.address, EXAMPLE) as client:
        lengths = [0, 1, 5000, MOST, 0, 300, MOST, 7]  # 3.2 MB, in several messages
        table = client.table()
        keys = table.insert([sample(i, length) for i, length in enumerate(lengths)], priorities=[1e-9, 1e-9, 1e9, *[1e-9] * 5])
        assert keys.dtype == np.uint64 and len(np.unique(keys)) == len(server.table()) == len(lengths)
        assert (client.sample(4, 10).batch["task"] == 2).all()
        assert table.delete(keys[1:2]) == 1
        asked = np.concatenate([keys, [np.uint64(77)], keys[2:3]])
        found, here = table.peek(asked)
        assert here.tolist() == [True, False, *[True] * 6, False, True]
        assert found.lengths["t"].tolist() == [0, 0, *lengths[2:], 0, 5000] and found.keys is None
        for at, task in enumerate([0, -1, 2, 3, 4, 5, 6, 7, -1, 2]):
            if here[at]:
                check(found.row(at), task, lengths[task])
            else:
                assert found.row(at)["task"] == 0 and len(found.row(at)["boxes"]) == 0
        assert server.table().stats()["samples"] == 4, "a look is no draw"
        one, here = table.peek(keys[3:4])  # larger than a message
        assert here.all() and one.packed.arrays[2].nbytes > MAX_BYTES
        check(one.row(0), 3, MOST)
        with pytest.raises(ValueError, match="at least one key"):
            table.peek([])
        assert table.insert([]).size == 0


def test_an_insert_waits_for_room_and_says_how_many_were_inserted() -> None:
    with make(sampler="fifo", rate_limiter=Queue(5)) as server, Client(server.address, EXAMPLE) as client:
        table = client.table()
        keys: list[int] = []
        thread = threading.Thread(target=lambda: keys.extend(table.insert([sample(i, i * 10) for i in range(9)], timeout=30).tolist()))
        thread.start()
        drawn = [server.sample(timeout=30, n=1) for _ in range(9)]
        thread.join(30)
        assert [int(one.keys[0]) for one in drawn] == keys
        for i, one in enumerate(drawn):
            check(one.row(0), i, i * 10)
        with pytest.raises(EchoError, match="5 of 7 items were inserted"):
            table.insert([sample(i, 1) for i in range(7)], timeout=0.2)
        with pytest.raises(EchoTimeoutError) as error:
            table.insert([sample(i, 1) for i in range(7)], timeout=0.2)
        assert error.value.inserted == 0


def test_bad_input_is_refused_before_anything_is_sent() -> None:
    with make(sampler={"type": "prioritized", "eps": 0.0}) as server, Client(server.address, EXAMPLE) as client:
        table = client.table()
        with pytest.raises(SpecError, match="list of samples"):
            table.insert(sample(1, 2))
        with pytest.raises(SpecError, match="sample 1 of the batch: leaf 'tokens'"):
            table.insert([sample(0, 1), {**sample(0, 1), "tokens": np.zeros(MOST + 1, np.int32)}])
        with pytest.raises(ValueError, match="priorit"):
            table.insert([sample(0, 1)], priorities=[1.0, 2.0])
        with pytest.raises(EchoError, match="priority 0.0 of a new item must be positive"):
            table.insert([sample(0, 1)], priorities=[0.0])
        assert len(server.table()) == 0


@pytest.mark.parametrize(
    ("lengths", "extra", "words"),
    [([0, 5], -4, "say 28"), ([10, 5], 0, "impossible length"), ([-1, 5], 0, "impossible length"), ([0, 5], 1, "has 29 bytes")],
)
def test_inserts_that_lie_are_refused(lengths: list[int], extra: int, words: str) -> None:
    with make() as server:
        blob = join(np.array(lengths, np.int32)) + bytes(28 + extra)
        with pytest.raises(ProtocolError, match=words):
            samples_of(server.table().records, 1, False, blob)
        with pytest.raises(ProtocolError, match="fewer than their lengths"):
            samples_of(server.table().records, 3, False, blob[:20])
