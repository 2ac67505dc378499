"""One packed batch of several tables of samples of varying length."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, MinSize, Ragged, Server, SpecError, Table
from echo_core.spec.packed import PackedBatch

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]

EXAMPLE = {"tokens": Ragged(np.int32, most=5000), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}
SHARES = {"demo": 1, "online": 3}


def sample(task: int) -> dict:
    return {"tokens": np.arange(task * 37 % 5001, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": np.int64(task)}


def check(mixed, batch: int) -> None:
    """The batch has the samples of both tables, in order, and the parts are views of it."""
    (tree, parts, weights), at = mixed, 0
    assert tree["task"].shape == weights.shape == (batch,) and list(parts) == ["demo", "online"]
    assert mixed.offsets["t"].dtype == np.int32 and mixed.lengths["t"].sum() == len(tree["tokens"])
    for name, low in (("demo", 0), ("online", 1000)):
        part = parts[name]
        assert np.shares_memory(part.batch["tokens"], tree["tokens"]) or not len(part.batch["tokens"])
        assert np.shares_memory(part.batch["task"], tree["task"]) and part.keys.shape == (len(part.packed),)
        for i in range(len(part.packed)):
            task = int(part.row(i)["task"])
            assert low < task <= low + 100
            for leaf, value in sample(task).items():
                np.testing.assert_array_equal(part.row(i)[leaf], value)
                np.testing.assert_array_equal(mixed.row(at)[leaf], value)
            at += 1
    assert at == batch
    padded, masks = mixed.padded(multiple=8)
    assert len(padded["tokens"]) == batch and masks["t"].sum() == mixed.offsets["t"][-1]


def make(**other) -> Server:
    options = {"capacity": 200, "max_bytes": 4 << 20, "sampler": "prioritized", "rate_limiter": MinSize(1)}
    tables = [Table("demo", EXAMPLE, **options), Table("online", EXAMPLE, **options), *(Table(name, example, **options) for name, example in other.items())]
    return Server(tables=tables, batch_size=16, transport="tcp://127.0.0.1:0").start()


def fill(server: Server) -> None:
    server.table("demo").submit_batch([sample(task) for task in range(1, 101)])
    server.table("online").submit_batch([sample(task) for task in range(1001, 1101)])


def test_a_mixture_is_one_packed_batch() -> None:
    with make() as server:
        fill(server)
        mixed = server.sample_mixture(SHARES, timeout=10)
        check(mixed, 16)
        assert [len(part.packed) for part in mixed.parts.values()] == [4, 12]
        check(server.sample_mixture(SHARES, n=5, timeout=10), 5)
        assert server.update_priorities(mixed.parts["demo"].keys, np.full(4, 9.0), table="demo") == 0
        assert mixed.parts["demo"].info.table == "demo"


def test_a_mixture_is_drawn_from_another_process_too() -> None:
    with make() as server, Client(server.address, EXAMPLE, table="demo", tables={"online": EXAMPLE}) as client:
        drawn: list = []
        thread = threading.Thread(target=lambda: drawn.append(client.sample_mixture(SHARES, 16, timeout=30)))
        thread.start()
        fill(server)  # while the draw waits
        thread.join(30)
        check(drawn[0], 16)
        keys = drawn[0].parts["online"].keys
        assert client.update_priorities(keys, np.full(12, 2.0), table="online") == 0


def test_what_cannot_be_mixed_is_refused_by_name() -> None:
    other = {**EXAMPLE, "tokens": Ragged(np.int32, most=5001)}
    with make(other=other, plain={"task": np.int64(0)}) as server:
        with pytest.raises(ConfigError, match="'tokens'.*t <= 5000 in 'demo' but .*5001"):
            server.sample_mixture({"demo": 1, "other": 1}, timeout=0)
        with pytest.raises(ConfigError, match="declared in 'demo' but not in 'plain'"):
            server.sample_mixture({"demo": 1, "plain": 1}, timeout=0)
        with pytest.raises(ValueError, match="429497 samples of up to 5000 rows could have more than 2147483647"):
            server.sample_mixture(SHARES, n=429_497, timeout=0)
        with pytest.raises(EchoTimeoutError, match="'demo'"):
            server.sample_mixture(SHARES, timeout=0)
        fill(server)
        one, two = server.sample_mixture({"demo": 1}, timeout=10), server.table("other").peek([1])[0]
        with pytest.raises(SpecError, match="batches of one spec"):
            PackedBatch.joined([one.packed, two.packed])
        with pytest.raises(ValueError, match="at least one"):
            PackedBatch.joined([])
