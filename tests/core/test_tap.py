"""Looking at samples of a running server: whole ones, the newest ones, and none that anybody misses."""

from __future__ import annotations

import json
import threading
import time
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Client, EchoError, EchoTimeoutError, SecurityError, Server, Spec
from echo_core.client.observer import Look, Observer
from echo_core.server.operations.looks import MAX_LOOK_BYTES
from echo_core.spec.structure import rebuilt

pytestmark = [pytest.mark.needs("echo-tcp", "echo-samplers"), pytest.mark.every_python]

TCP = "tcp://127.0.0.1:0"
EXAMPLE = {"obs": np.zeros(3, np.float32), "step": np.int64(0)}


def filled(numbers: range) -> dict[str, Any]:
    steps = np.array(numbers, np.int64)
    return {"obs": np.repeat(steps[:, None], 3, 1).astype(np.float32), "step": steps}


def steps(look: Look) -> list[int]:
    for sample in look.samples:
        assert sample["obs"].tolist() == [sample["step"]] * 3, "a sample is seen whole"
    return [int(sample["step"]) for sample in look.samples]


def test_the_newest_of_a_stream_and_none_is_taken() -> None:
    with Server(EXAMPLE, 4, TCP) as server, Observer(server.address) as observer:
        server.submit_batch(filled(range(10)))
        assert steps(observer.tap(3)) == [7, 8, 9]
        assert steps(observer.tap(7)) == [3, 4, 5, 6, 7, 8, 9], "across the batch that is being filled and those before it"
        assert steps(observer.tap(1000)) == list(range(10))
        assert server.stats()["store/samples"] == 10
        assert [server.sample(1).batch["step"].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert steps(observer.tap(5)) == [8, 9], "what was taken is the learner's"
        look = observer.tap(1)
        assert look.keys is None and look.spec == Spec.from_example(EXAMPLE) and look.leaves[1].tolist() == [9]


def test_nothing_there_is_said_in_time() -> None:
    with Server(EXAMPLE, 4, TCP) as server, Observer(server.address) as observer:
        with pytest.raises(EchoTimeoutError, match=r"waited 0.2 s for a sample: the store has no samples"):
            observer.tap(timeout=0.2)
        with pytest.raises(ValueError, match="from 1 to 1024"):
            observer.tap(0)
        with pytest.raises(EchoError, match="from 1 to 1024"):
            observer.request("tap", {"n": "many"})
        with pytest.raises(EchoError, match="this server streams"):
            observer.tap(table="default", timeout=0)


def test_a_learner_that_takes_everything_at_once_is_looked_over_the_shoulder() -> None:
    with Server(EXAMPLE, 2, TCP) as server, Observer(server.address) as observer:
        looks: list[Look] = []
        tapping = threading.Thread(target=lambda: looks.append(observer.tap(8, timeout=30)))
        tapping.start()
        number = 0
        while tapping.is_alive():
            server.submit_batch(filled(range(number, number + 2)))
            batch = server.sample(10).batch  # between two requests the store is empty
            batch["obs"][...] = -1  # the learner may write: what is seen was copied before
            number += 2
            time.sleep(0.002)
        tapping.join()
        seen = steps(looks[0])
        assert len(seen) == 2 and seen[1] == seen[0] + 1 and seen[0] % 2 == 0
        assert server._storage()._tap_wish is None, "from now on the learner copies nothing"


@pytest.mark.soak
def test_samples_are_whole_while_writers_and_a_learner_are_at_it(soak_seconds: float) -> None:
    """A learner that scribbles over its batches, writers of several threads: no look shows a torn, a changed or an unwritten sample."""
    example = {"obs": np.zeros(500, np.int64), "step": np.int64(0)}
    with Server(example, 16, TCP, num_buffers=3) as server, Observer(server.address) as observer:
        stop = threading.Event()

        def write(writer: int) -> None:
            number = 1 + writer
            while not stop.is_set():
                try:
                    server.submit({"obs": np.full(500, number), "step": np.int64(number)}, timeout=0.1)
                except EchoTimeoutError:
                    continue
                number += 2

        def learn() -> None:
            while not stop.is_set():
                try:
                    sample = server.sample(0.1)
                except EchoTimeoutError:
                    continue
                sample.batch["obs"][...] = 0
                sample.batch["step"][...] = 0

        threads = [threading.Thread(target=write, args=(i,)) for i in range(2)] + [threading.Thread(target=learn)]
        for thread in threads:
            thread.start()
        seen = 0
        until = time.monotonic() + soak_seconds
        while time.monotonic() < until or not seen:
            for sample in observer.tap(32, timeout=30).samples:
                assert sample["step"] > 0 and (sample["obs"] == sample["step"]).all()
                seen += 1
        stop.set()
        for thread in threads:
            thread.join()
        assert seen > 0


def test_items_of_replay_tables_stay_and_count_nothing() -> None:
    tables = [echo_core.Table("a", EXAMPLE, capacity=100, sampler="uniform"), echo_core.Table("b", EXAMPLE, capacity=4, sampler="fifo")]
    with Server(tables=tables, batch_size=2, transport=TCP) as server, Observer(server.address) as observer:
        with pytest.raises(EchoTimeoutError, match="table 'a' holds no item"):
            observer.tap(timeout=0)
        keys = server.submit_batch(filled(range(6)))
        look = observer.tap(3)
        assert steps(look) == [3, 4, 5] and look.keys == keys[3:].tolist()
        server.submit_batch(filled(range(10, 14)), table="b")
        assert steps(observer.tap(9, table="b")) == [10, 11, 12, 13]
        server.table("a").delete(keys[4:5])
        assert steps(observer.tap(3)) == [2, 3, 5], "also when the rows are no circle any more"
        stats = server.stats()
        assert stats["table/a/size"] == 5 and stats["table/b/size"] == 4 and not stats["store/batches_taken_total"]
        with pytest.raises(EchoError, match="no table 'c'"):
            observer.tap(table="c", timeout=0)


def test_a_circle_of_rows_that_has_turned() -> None:
    with Server(EXAMPLE, 2, TCP, sampler="uniform", capacity=5) as server, Observer(server.address) as observer:
        for i in range(13):
            server.submit_batch(filled(range(i, i + 1)))
            last = list(range(max(0, i - 4), i + 1))
            assert steps(observer.tap(9)) == last and steps(observer.tap(2)) == last[-2:]


def test_looks_larger_than_a_message_come_in_parts() -> None:
    example = np.zeros((3, 1000, 1000), np.uint8)
    with Server(example, 2, TCP) as server, Observer(server.address) as observer:
        noise = np.random.default_rng(0).integers(0, 255, (3, 3, 1000, 1000), np.uint8)
        server.submit_batch(noise)
        look = observer.tap(100)
        assert len(look.samples) == 3 and (look.leaves[0] == noise).all()
        body = observer.request("tap", {"n": 1})
        server._taps.hold(b"another")
        with pytest.raises(EchoError, match="this look is gone"):
            observer.request("tap", {"tap": body["tap"], "at": 0})
        with pytest.raises(EchoError):
            observer.request("tap", {"tap": body["tap"], "at": -1})
    too_large = pytest.raises(EchoError, match="one sample has 16,777,217 bytes, but a look has at most 16,777,216")
    with Server(np.zeros(MAX_LOOK_BYTES + 1, np.uint8), 1, TCP) as server, Observer(server.address) as observer, too_large:
        observer.tap(timeout=0)
    with Server(np.zeros(MAX_LOOK_BYTES // 3, np.uint8), 2, TCP, num_buffers=3) as server, Observer(server.address) as observer:
        server.submit_batch(np.ones((5, MAX_LOOK_BYTES // 3), np.uint8))
        assert len(observer.tap(1000).samples) == 3


def test_only_who_may_read_may_look() -> None:
    tokens = ["write:a-token-that-may-only-write", "read:a-token-that-may-only-read"]
    with Server(EXAMPLE, 2, TCP, token=tokens) as server:
        server.submit_batch(filled(range(1)))
        with Observer(server.address, token="a-token-that-may-only-read") as observer:
            assert steps(observer.tap()) == [0]
        with Client(server.address, EXAMPLE, token="a-token-that-may-only-write") as client, pytest.raises(SecurityError, match="read"):
            client.request("tap", {"n": 1})


def test_trees_come_back_with_plain_containers() -> None:
    pair = namedtuple("pair", "x y")
    tree = {"a": [np.float32(1), (np.arange(2), None)], "b": pair(np.int8(3), {2: np.zeros(0)}), "e": {}}
    with Server(tree, 2, TCP) as server, Observer(server.address) as observer:
        server.submit(tree)
        (sample,) = observer.tap().samples
        text = json.dumps(sample, default=lambda leaf: leaf.tolist())
        assert text == '{"a": [1.0, [[0, 1], null]], "b": {"x": 3, "y": {"2": []}}, "e": {}}'
        assert type(sample["a"][1]) is tuple and sample["a"][0].dtype == np.float32
    assert rebuilt(0, ["alone"]) == "alone"
    with pytest.raises(EchoError, match="no description of containers"):
        rebuilt({"heap": [0]}, [1])


def test_a_server_that_was_looked_at_goes_with_its_last_reference(python) -> None:
    python(
        """
        import gc, weakref, numpy as np
        from echo_core import Server
        from echo_core.client.observer import Observer
        from echo_core.base.errors import EchoTimeoutError
        gc.disable()
        server = Server(np.zeros(2), 2, "tcp://127.0.0.1:0").start()
        with Observer(server.address) as observer:
            try:
                observer.tap(timeout=0)
            except EchoTimeoutError:
                pass
            server.submit(np.ones(2))
            assert len(observer.tap().samples) == 1
        gone = weakref.ref(server)
        del server
        assert gone() is None
        """
    )


def test_a_wrong_table_name_is_the_observers_mistake_and_not_the_learners(caplog: pytest.LogCaptureFixture) -> None:
    with Server(EXAMPLE, 2, TCP) as server, Observer(server.address) as observer:
        with pytest.raises(EchoError, match="this server streams"):
            observer.tap(1, table="x")
        assert not [record for record in caplog.records if record.exc_info]
