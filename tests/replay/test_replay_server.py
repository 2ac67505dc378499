"""A server of replay tables: in this process, and from workers and learners over TCP."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, NStep, Queue, Sequences, Server, SpecError, Table
from echo_core.base.errors import EchoError, HandshakeRefused, UnknownTableError
from echo_testing.processes import until

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]

EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}
OTHER = {"frame": np.zeros((3, 2), np.uint8), "number": np.int64(0)}
TCP = "tcp://127.0.0.1:0"


def item(number: int) -> dict:
    return {"number": np.int64(number), "filler": np.full(5, number, np.float32)}


def items(start: int, stop: int) -> dict:
    numbers = np.arange(start, stop)
    return {"number": numbers, "filler": np.repeat(numbers.astype(np.float32), 5).reshape(-1, 5)}


def whole(batch: dict) -> None:
    assert (batch["filler"] == batch["number"][:, None]).all()


def test_in_process() -> None:
    server = Server(EXAMPLE, 16, sampler="prioritized", capacity=100, seed=1)
    keys = [server.submit(item(i)) for i in range(30)]
    more = server.submit_batch(items(30, 130))
    assert len(set(keys) | set(more.tolist())) == 130
    sample = server.sample(timeout=5)
    batch, info = sample
    whole(batch)
    assert batch["number"].shape == (16,) and (batch["number"] >= 30).all()
    assert sample.keys.dtype == np.uint64 and sample.probabilities.dtype == np.float64 and sample.weights.dtype == np.float32
    assert set(sample.keys.tolist()) <= set(more.tolist())
    assert info.store_size == 100 and info.inserted == 130 and 1 <= info.effective_sample_size <= 16 + 1e-9
    assert server.update_priorities(sample.keys, np.full(16, 1e6)) == 0
    assert server.update_priorities(keys, np.ones(30)) == 30  # gone
    again = server.sample(timeout=5)
    assert np.isin(again.keys, sample.keys).all()
    assert again.weights.max() == 1
    stats = server.stats()
    assert stats["table/default/size"] == 100 and stats["table/default/gone"] == 30 and stats["table/default/blocked"] == ""
    server.close()
    assert server.sample(timeout=1) is None


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_bad_priorities_hurt_nobody(bad: float) -> None:
    with Server(EXAMPLE, 4, TCP, sampler="prioritized", capacity=64) as server, Client(server.address, EXAMPLE) as client:
        server.submit_batch(items(0, 64))
        sample = server.sample()
        priorities = np.ones(4)
        priorities[2] = bad
        for update in (server.update_priorities, client.update_priorities):
            with pytest.raises(ValueError, match=str(sample.keys[2])):
                update(sample.keys, priorities)
        # At the table, too, whatever a client sends.
        blob = sample.keys.tobytes() + priorities.tobytes()
        with pytest.raises(EchoError, match=str(sample.keys[2])):
            client.request("update_priorities", {"n": 4}, blob)
        with pytest.raises(ValueError, match="priority"):
            server.submit(item(1), priority=bad)
        assert len(server.table()) == 64
        whole(server.sample().batch)
        whole(client.sample(8).batch)


def test_zero_is_refused_where_it_would_never_be_drawn() -> None:
    sampler = {"type": "prioritized", "eps": 0.0}
    with Server(EXAMPLE, 4, TCP, sampler=sampler, capacity=100) as server, Client(server.address, EXAMPLE) as client:
        server.submit_batch(items(0, 64))
        keys = server.sample().keys
        priorities = np.array([1.0, 2.0, 0.0, 3.0])
        for update in (server.update_priorities, client.update_priorities):
            with pytest.raises((ValueError, EchoError), match=f"priority 0.0 of key {keys[2]} must be positive: .* never be drawn"):
                update(keys, priorities)
        with pytest.raises(ValueError, match="never be drawn"):
            server.submit(item(1), priority=0)
        with pytest.raises(ValueError, match="of sample 1 must be positive"):
            server.submit_batch(items(0, 2), priorities=[1, 0])
        client.send(item(2), priority=0.0)
        client.wait(30)
        until(lambda: server.stats()["table/default/refused"] == 1, "the table refuses it", 30)
        assert len(server.table()) == 64
        assert server.update_priorities(keys, priorities + 1) == 0


def test_workers_send_into_rows_and_a_remote_learner_samples() -> None:
    with Server(EXAMPLE, 32, TCP, sampler="prioritized", capacity=500) as server:

        def work(worker: int) -> None:
            with Client(server.address, EXAMPLE) as client:
                for i in range(300):
                    client.send(item(worker * 1000 + i))
                client.send_batch(items(worker * 1000 + 300, worker * 1000 + 700))

        threads = [threading.Thread(target=work, args=(w,)) for w in range(3)]
        for thread in threads:
            thread.start()
        with Client(server.address, EXAMPLE, name="learner") as learner:
            for _ in range(20):
                sample = learner.sample(64, timeout=20)
                whole(sample.batch)
                assert sample.weights.max() == pytest.approx(1)
                learner.update_priorities(sample.keys, np.random.default_rng(0).random(64))
            for thread in threads:
                thread.join()
            assert server.stats()["table/default/inserts"] == 2100
            assert len(server.table()) == 500
            # More than one message carries.
            big = learner.sample(40_000, timeout=20, beta=1.0)
            whole(big.batch)
            assert big.info.store_size == 500 and big.weights.max() == 1 and big.weights.min() > 0
            for count, sample in enumerate(learner.dataset_iter(128, prefetch=3)):
                whole(sample.batch)
                if count == 10:
                    break
            assert learner.update_priorities(big.keys, np.ones(40_000)) == 0
            assert learner.table().delete(big.keys[:1]) == 1
            assert learner.update_priorities(big.keys[:1], [1.0]) == 1
            keys = learner.table().insert(items(9000, 9010), priorities=np.full(10, 1e9))
            assert np.isin(learner.sample(16).keys, keys).all()


def test_several_tables() -> None:
    tables = [
        Table("replay", EXAMPLE, capacity=1000, sampler="prioritized"),
        Table("queue", OTHER, capacity=64, sampler="fifo", rate_limiter=Queue(64)),
    ]
    with Server(tables=tables, batch_size=8, transport=TCP) as server:
        with Client(server.address, EXAMPLE, tables={"queue": OTHER}) as client:
            for i in range(40):
                client.send(item(i))
                client.send({"frame": np.full((3, 2), i, np.uint8), "number": np.int64(i)}, table="queue")
            client.wait()
            assert len(server.tables["replay"]) == len(server.tables["queue"]) == 40
            whole(server.sample(timeout=5).batch)
            got = [server.sample(timeout=5, table="queue").batch["number"].tolist() for _ in range(5)]
            assert [number for batch in got for number in batch] == list(range(40))
            with pytest.raises(EchoTimeoutError, match="queue"):
                server.sample(timeout=0.01, table="queue")
            remote = client.sample(4)
            whole(remote.batch)
            with pytest.raises(UnknownTableError, match="other"):
                client.send(item(1), table="other")
        with Client(server.address, OTHER, table="queue") as only:
            only.send_batch({"frame": np.zeros((8, 3, 2), np.uint8), "number": np.arange(8)})
            assert only.sample(8, timeout=5).batch["number"].tolist() == list(range(8))
        with pytest.raises(HandshakeRefused, match="no table 'nope'"):
            Client(server.address, OTHER, table="nope", timeout=2)
        with pytest.raises(SpecError, match="frame"):
            Client(server.address, EXAMPLE, table="queue", timeout=2)
        with pytest.raises(UnknownTableError, match="'replay', 'queue'"):
            server.sample(table="nope")


def test_a_full_queue_makes_workers_wait_until_it_is_sampled() -> None:
    with Server(EXAMPLE, 5, TCP, sampler="fifo", capacity=20, rate_limiter=Queue(20)) as server:
        with Client(server.address, EXAMPLE) as client:
            client.send_batch(items(0, 100))
            seen: list[int] = []
            while len(seen) < 100:
                seen += server.sample(timeout=10).batch["number"].tolist()
            assert seen == list(range(100))
            client.wait(10)
        assert server.stats()["table/default/blocked"] == "samples"


def test_one_batch_out_of_several_tables() -> None:
    tables = [Table(name, EXAMPLE, capacity=100, sampler="prioritized") for name in ("demo", "online")]
    with Server(tables=[*tables, Table("other", OTHER, capacity=10, sampler="uniform")], batch_size=16) as server:
        server.submit_batch(items(0, 50), table="demo")
        server.submit_batch(items(1000, 1100), table="online")
        batch, parts, weights = server.sample_mixture({"demo": 1, "online": 3}, timeout=5)
        whole(batch)
        assert (batch["number"][:4] < 50).all() and (batch["number"][4:] >= 1000).all() and weights.shape == (16,)
        assert parts["online"].batch["number"].tolist() == batch["number"][4:].tolist()
        for name, part in parts.items():
            assert server.update_priorities(part.keys, np.full(len(part.keys), 2.0), table=name) == 0
        assert len(server.sample_mixture({"demo": 0.001, "online": 1}, n=10).parts["demo"].keys) == 1
        with pytest.raises(ConfigError, match="frame"):
            server.sample_mixture({"demo": 1, "other": 1})
        with pytest.raises(ConfigError, match="positive share"):
            server.sample_mixture({"demo": 0, "online": 1})
        with pytest.raises(ConfigError, match="positive share"):
            server.sample_mixture({"demo": "1", "online": 1})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match="shares must map"):
            server.sample_mixture(["demo", "online"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sampler": "uniform"}, "needs a capacity"),
        ({"sampler": "uniform", "capacity": 10, "rate_limiter": Queue(20)}, "raise capacity"),
        ({"sampler": "fifo", "capacity": 10, "rate_limiter": Queue(4)}, "wait for each other"),
        ({"sampler": "fifo", "capacity": 4}, "cannot draw 8 of 4"),
        ({"rate_limiter": Queue(4)}, "needs a capacity"),
        ({"sampler": {"type": "uniform", "capacity": 5}, "capacity": 6}, "given twice"),
    ],
)
def test_what_can_never_work_is_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Server(EXAMPLE, 8, **arguments)


def test_items_by_key_from_another_process() -> None:
    with Server(EXAMPLE, 4, TCP, sampler="prioritized", capacity=50_000) as server, Client(server.address, EXAMPLE) as client:
        n = 40_000  # more than fit into one message
        keys = server.submit_batch(items(0, n), priorities=np.linspace(1, 2, n))
        remote = client.table()
        batch, here = remote.peek(keys)
        assert here.all() and batch["number"].tolist() == [*range(n)]
        whole(batch)
        server.table().delete(keys[5:7])
        fresh = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
        assert (~remote.update_items(keys, {"filler": fresh})).nonzero()[0].tolist() == [5, 6]
        batch, here = remote.peek(keys[:10])
        assert here.tolist() == [True] * 5 + [False] * 2 + [True] * 3
        assert (batch["filler"][here] == fresh[:10][here]).all() and batch["number"][here].tolist() == [0, 1, 2, 3, 4, 7, 8, 9]
        best, priorities = remote.top(3)
        assert (best == keys[: -4 : -1]).all() and (np.diff(priorities) < 0).all()
        counts, edges = remote.priority_histogram(10)
        assert (counts == server.table().priority_histogram(10)[0]).all() and len(edges) == 11
        with pytest.raises(SpecError, match="no leaf 'filter'"):
            remote.update_items(keys[:1], {"filter": fresh[:1]})
        with pytest.raises(SpecError, match="leaf 'filler' must be float32, got float64"):
            remote.update_items(keys[:1], {"filler": fresh[:1].astype(np.float64)})
        with pytest.raises(EchoError, match="leaves must be paths"):
            client.request("update_items", {"n": 1, "leaves": ["nothing"]}, b"\0" * 8)


@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_how_many_is_a_number_from_1(n: Any) -> None:
    with Server(EXAMPLE, 4, TCP, sampler="prioritized", capacity=100) as server, Client(server.address, EXAMPLE) as client:
        server.submit_batch(items(0, 10))
        for call in (client.sample, server.table().top):
            with pytest.raises(ValueError, match=f"must be a whole number .*1, not {n}"):
                call(n)


def test_a_priority_that_the_table_refuses_is_refused_before_any_other_of_the_call() -> None:
    example, n = {"number": np.int64(0)}, 100_000  # more than travel in one message
    sampler = {"type": "prioritized", "eps": 0.0}
    with Server(example, 4, TCP, sampler=sampler, capacity=n) as server, Client(server.address, example) as client:
        keys = server.submit_batch({"number": np.arange(n)})
        priorities = np.full(n, 2.0)
        priorities[-1] = 0
        with pytest.raises(EchoError, match=f"priority 0.0 of key {keys[-1]} must be positive"):
            client.update_priorities(keys, priorities)
        assert server.table().counters()["updated"] == 0
        with pytest.raises(ValueError, match="priority nan of sample 1 "):
            client.table().insert({"number": np.arange(3)}, priorities=[1, np.nan, 1])
        with pytest.raises(EchoError, match="^97920 of 100000 were inserted; among the others, counted from the first of them: priority 0.0 of sample 2079"):
            client.table().insert({"number": np.arange(n)}, priorities=priorities)


def test_the_time_is_that_of_all_messages_of_a_batch() -> None:
    with Server(EXAMPLE, 4, TCP, sampler="uniform", capacity=100) as server, Client(server.address, EXAMPLE) as client:
        server.submit_batch(items(0, 10))
        with pytest.raises(EchoTimeoutError, match="of 200,000 items in time; draw fewer"):
            client.sample(200_000, timeout=0.0005)
        with pytest.raises(EchoError, match="n must be a whole number from 1 to"):
            client.sample(100_000_000)
        assert client.sample(5).keys.size == 5


def test_a_mixture_of_different_items_is_refused_before_any_is_drawn() -> None:
    step = {"number": np.int64(0), "reward": np.float32(0)}
    tables = [Table(name, step, capacity=50, items=items, sampler="uniform") for name, items in (("a", Sequences(3)), ("b", Sequences(5)), ("c", NStep(1)))]
    with Server(tables=tables, batch_size=8) as server:
        for table in tables:
            writer = server.table(table.name).writer()
            for i in range(20):
                writer.send({"number": np.int64(i), "reward": np.float32(1)})
        for other in "bc":
            with pytest.raises(ConfigError, match=f"the same items and stacks, but 'a', '{other}' differ"):
                server.sample_mixture({"a": 1, other: 1}, timeout=1)
        with pytest.raises(ConfigError, match="n must be a whole number, not 4.5"):
            server.sample_mixture({"a": 1}, timeout=1, n=4.5)  # type: ignore[arg-type]
        assert server.table("a").counters()["samples"] == 0


def test_a_mixture_for_a_learner_in_another_process() -> None:
    tables = [Table(name, EXAMPLE, capacity=100, sampler="uniform") for name in ("demo", "online")]
    with Server(tables=tables, batch_size=16, transport=TCP) as server:
        server.submit_batch(items(0, 50), table="demo")
        server.submit_batch(items(1000, 1100), table="online")
        with Client(server.address, EXAMPLE, table="demo", tables={"online": EXAMPLE}) as client:
            batch, parts, weights = client.sample_mixture({"demo": 1, "online": 3}, 16, timeout=30)
            whole(batch)
            assert (batch["number"][:4] < 50).all() and (batch["number"][4:] >= 1000).all() and weights.shape == (16,)
            assert parts["online"].batch["number"].tolist() == batch["number"][4:].tolist()
            assert client.update_priorities(parts["online"].keys, np.ones(12), table="online") == 0


def test_the_first_table_is_known_by_its_own_name() -> None:
    tables = [Table(name, EXAMPLE, capacity=20, sampler="prioritized", seed=0) for name in ("replay", "other")]
    with Server(tables=tables, batch_size=4, transport=TCP) as server, Client(server.address, EXAMPLE) as client:
        client.send({name: leaf[0] for name, leaf in items(0, 1).items()}, table="replay")
        client.send_batch(items(1, 3), table="replay")
        client.send_batch(items(3, 5), table="replay", priorities=[1.0, 2.0])
        client.wait()
        assert len(server.table("replay")) == 5 and len(server.table("other")) == 0
        assert client.table("replay").top(5)[0].tolist() == server.table("replay").top(5)[0].tolist()
        sample = client.sample(4, table="replay")
        assert client.update_priorities(sample.keys, np.ones(4), table="replay") == 0
        for call in (lambda: client.table("other"), lambda: client.send(items(0, 1), table="othre")):
            with pytest.raises(UnknownTableError, match=r"no example for table 'oth.*Client\(\.\.\., tables="):
                call()
    with Server(EXAMPLE, 4, TCP) as server, Client(server.address, EXAMPLE) as client, pytest.raises(UnknownTableError, match="'replay'"):
        client.send({name: leaf[0] for name, leaf in items(0, 1).items()}, table="replay")


def test_a_client_with_an_invalid_example_leaves_no_connection() -> None:
    tables = [Table(name, EXAMPLE, capacity=10, sampler="uniform") for name in ("a", "b")]
    with Server(tables=tables, batch_size=2, transport=TCP) as server:
        with pytest.raises(SpecError) as kept:
            Client(server.address, EXAMPLE, table="a", tables={"b": {"x": "not an array"}})
        assert server.stats()["transport/tcp/connections_total"] == 0 and kept
