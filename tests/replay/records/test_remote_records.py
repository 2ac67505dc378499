"""Samples of varying length that a learner in another process draws."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoError, EchoTimeoutError, Queue, Ragged, Server, SpecError, Table
from echo_core.base.errors import ProtocolError
from echo_testing.processes import until

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp")]

MOST = 400_000
EXAMPLE = {"tokens": Ragged(np.int32, most=MOST), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}


def sample(task: int, length: int) -> dict:
    return {"tokens": np.arange(length, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": task}


def check(drawn, lengths: list[int], first: int = 0) -> None:
    assert drawn.lengths["t"].tolist() == lengths
    assert drawn.batch["task"].tolist() == [*range(first, first + len(lengths))]
    assert drawn.offsets["t"].dtype == np.int32 and drawn.offsets["t"][-1] == sum(lengths)
    for i, length in enumerate(lengths):
        for name, value in sample(first + i, length).items():
            np.testing.assert_array_equal(drawn.row(i)[name], value)


def make(**options) -> Server:
    options = {"sampler": "fifo", "rate_limiter": Queue(100), "max_bytes": 32 << 20, **options}
    memory = options.pop("client_memory", None)
    table = Table("r", EXAMPLE, capacity=100, **options)
    return Server(tables=[table], batch_size=4, transport="tcp://127.0.0.1:0", client_memory=memory).start()


def test_batches_of_every_size_come_as_they_were_sent() -> None:
    with make() as server, Client(server.address, EXAMPLE) as client:
        lengths = [0, 1, 5000, MOST, 0, 300, MOST, 7, 0, 0]
        client.send_batch([sample(i, length) for i, length in enumerate(lengths)])
        check(client.sample(3, 10), lengths[:3])
        check(client.sample(5, 10), lengths[3:8], 3)  # 3.2 MB, in four parts
        drawn = client.sample(2, 10)
        check(drawn, [0, 0], 8)
        batch, masks = drawn.padded(multiple=4)
        assert batch["tokens"].shape == (2, 0) and masks["box"].sum() == 8 + 9
        assert drawn.keys.shape == drawn.weights.shape == (2,) and drawn.info.sampled == 10
        with pytest.raises(EchoTimeoutError):
            client.sample(1, 0)


def test_draws_wait_for_their_turn_and_several_clients_get_different_items() -> None:
    seen: list[int] = []
    with make() as server:

        def draw() -> None:
            with Client(server.address, EXAMPLE) as client:
                seen.extend(client.sample(5, 20).batch["task"].tolist())

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for thread in threads:
            thread.start()
        with Client(server.address, EXAMPLE) as client:
            for task in range(15):
                client.send(sample(task, task * 10))
            client.wait()
            for thread in threads:
                thread.join(30)
        assert sorted(seen) == [*range(15)]


def test_units() -> None:
    with make() as server, Client(server.address, EXAMPLE) as client:
        lengths = [150_000, 200_000, 100_000, 350_000]
        client.send_batch([sample(i, length) for i, length in enumerate(lengths)])
        check(client.sample(timeout=10, units={"t": 400_000}), lengths[:2])
        check(client.sample(timeout=10, units={"t": 450_000}), lengths[2:], 2)
        with pytest.raises(ValueError, match="either n"):
            client.sample(1, units={"t": MOST})
        with pytest.raises(EchoError, match="from 400000, the longest sample"):
            client.sample(timeout=1, units={"t": 5})
        with pytest.raises(EchoError, match="the axes are box, t"):
            client.sample(timeout=1, units={"x": MOST})


def test_dataset_iter_priorities_ack_and_delete() -> None:
    with make(lease_timeout=60.0) as server, Client(server.address, EXAMPLE) as client:
        client.send_batch([sample(i, 10 * i) for i in range(8)])
        batches = client.dataset_iter(2, timeout=10)
        first, second = next(batches), next(batches)
        check(first, [0, 10])
        check(second, [20, 30], 2)
        assert client.ack(first.keys) == 2
        assert client.table().delete(second.keys) == 2
    with make(sampler="prioritized", rate_limiter=None) as server, Client(server.address, EXAMPLE) as client:
        client.send_batch([sample(i, 10 * i) for i in range(3)])
        client.wait()
        keys = client.table().top(3)[0]
        assert client.update_priorities(keys, [1e-9, 1e9, 1e-9]) == 0
        drawn = client.sample(4, 10)
        assert (drawn.keys == keys[1]).all() and drawn.lengths["t"].tolist() == [10 * int(drawn.batch["task"][0])] * 4


def test_what_a_killed_client_has_leased_comes_again() -> None:
    with make(lease_timeout=600.0) as server, Client(server.address, EXAMPLE) as client:
        client.send_batch([sample(i, MOST) for i in range(3)])
        client.wait()
        code = f"""
            import numpy as np, time
            from echo_core import Client, Ragged
            example = {{"tokens": Ragged(np.int32, most={MOST}), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}}
            client = Client({str(server.address)!r}, example)
            print(client.sample(3, 20).lengths["t"].tolist(), flush=True)
            time.sleep(600)
        """
        learner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        assert learner.stdout is not None
        try:
            assert learner.stdout.readline() == f"{[MOST] * 3}\n"
        finally:
            os.kill(learner.pid, signal.SIGKILL)
            learner.communicate()
        check(client.sample(3, 60), [MOST] * 3)


def test_what_cannot_be_done_is_refused_by_name() -> None:
    with make() as server, Client(server.address, EXAMPLE) as client:
        with pytest.raises(SpecError, match="'tokens'"):
            Client(server.address, {**EXAMPLE, "tokens": Ragged(np.int32, most=MOST + 1)})
        with pytest.raises(ConfigError, match="overwritten in place"):
            client.table().update_items([1], {"task": np.zeros(1, np.int64)})
        with pytest.raises(EchoError, match="at most 1,073,741,824 at once"):
            client.sample(1000, 1)
        with pytest.raises(ValueError, match="n must be a whole number"):
            client.sample(0)
        client.send(sample(0, 5))
        check(client.sample(1, 10), [5])


@pytest.mark.parametrize(
    ("lengths", "changes", "words"),
    [
        ([MOST + 1, 0], {}, f"an item with {MOST + 1} rows"),
        ([-1, 0], {}, "an item with -1 rows"),
        ([5, 0], {"items": 2}, "a batch of 2 items"),
        ([5, 0], {"bytes": 27}, "27 bytes"),
        ([6, 0], {}, "lengths make 32"),
        ([5, 0], {"whole": False}, "sends 28"),
    ],
)
def test_answers_that_lie_are_refused(lengths: list[int], changes: dict, words: str) -> None:
    with make() as server, Client(server.address, EXAMPLE) as client:
        table = client.table()
        head = np.array([7], np.uint64).tobytes() + np.ones(1).tobytes()
        assert table.records.axes == ("box", "t")
        blob = head + np.array(lengths[::-1], np.int32).tobytes() + bytes(28)
        figures = {"items": 1, "bytes": 28, "whole": True, **changes}
        with pytest.raises(ProtocolError, match=words):
            table._announced({"n": 1}, figures, blob)


def test_statistics_do_not_wait_for_a_send() -> None:
    with make(rate_limiter=Queue(4)) as server, Client(server.address, EXAMPLE, max_inflight_msgs=1) as client:
        over = threading.Event()

        def send() -> None:
            with suppress(EchoError):
                for task in range(1000):
                    client.send(sample(task, MOST), 60)
            over.set()

        sending = threading.Thread(target=send)
        sending.start()
        until(lambda: "waiting for space" in [peer.state for peer in server.peers()], "a send waits")
        assert client.stats()["samples"] >= 1 and client.unacknowledged >= 1 and not over.is_set()
        server.close()
        sending.join()


def test_more_workers_than_fit_lose_nothing() -> None:
    """The memory suffices for the half-sent samples of four workers: the others wait until one leaves, and cut off nobody."""
    longest = 4 * MOST + 9 * 8 + 8
    with make(client_memory=4 * longest + longest // 2) as server:

        def work(worker: int) -> None:
            with Client(server.address, EXAMPLE, timeout=60) as client:
                for number in range(3):
                    client.send(sample(10 * worker + number, MOST), 60)
                client.wait(60)

        with ThreadPoolExecutor(6) as pool:
            working = [pool.submit(work, worker) for worker in range(6)]
            seen = [int(server.table("r").sample(1, 60).batch["task"][0]) for _ in range(18)]
            for each in working:
                each.result()
        assert sorted(seen) == sorted(10 * worker + number for worker in range(6) for number in range(3))
        assert server.stats()["table/r/records_incomplete"] == 0
