"""Queues that lend: what a learner was given and has not acknowledged is given out again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from echo_core import Client, ConfigError, EchoTimeoutError, Queue, Server, Table

pytestmark = [pytest.mark.needs("echo-samplers", "echo-tcp"), pytest.mark.every_python]

EXAMPLE = {"number": np.int64(0)}


def numbers(start: int, stop: int) -> dict:
    return {"number": np.arange(start, stop)}


def make(lease: float | None = 0.2, capacity: int = 100, **options: object) -> Server:
    queue = Table("queue", EXAMPLE, capacity=capacity, sampler="fifo", rate_limiter=Queue(capacity), lease_timeout=lease, **options)
    return Server(tables=[queue], batch_size=10, transport="tcp://127.0.0.1:0")


def taken(server: Server, timeout: float = 10) -> tuple[list, np.ndarray]:
    sample = server.sample(timeout)
    return sample.batch["number"].tolist(), sample.keys


def test_what_is_acknowledged_is_gone_for_good() -> None:
    server = make()
    server.submit_batch(numbers(0, 20))
    seen, keys = taken(server)
    assert seen == [*range(10)]
    assert server.stats()["table/queue/on_loan"] == 10
    assert server.ack(keys) == 10 and server.ack(keys) == 0
    time.sleep(0.3)
    assert taken(server)[0] == [*range(10, 20)]
    stats = server.stats()
    assert stats["table/queue/acknowledged"] == 10 and stats["table/queue/redelivered"] == 0


def test_what_is_deleted_on_loan_or_back_from_it_is_not_given_out_again() -> None:
    server = make()
    server.submit_batch(numbers(0, 30))
    table = server.table()
    _, out = taken(server)
    assert table.delete(out[:3]) == 3 and server.ack(out[:3]) == 0
    time.sleep(0.3)
    server.stats()
    again, back = taken(server)  # the seven others came back, and three more
    assert again == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    time.sleep(0.3)
    assert taken(server)[0] == again  # they came back; on loan a third time
    time.sleep(0.3)
    assert table.delete(back) == 10 and table.delete(back) == 0
    assert taken(server)[0] == [*range(13, 23)]
    stats = server.stats()
    assert stats["table/queue/deleted"] == 13 and stats["table/queue/acknowledged"] == 0 and stats["table/queue/size"] == 7


def test_what_is_not_acknowledged_comes_again_and_first() -> None:
    server = make()
    server.submit_batch(numbers(0, 30))
    _, keys = taken(server)
    server.ack(keys[:4])
    time.sleep(0.3)
    again, others = taken(server)
    assert again == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert (others[:6] == keys[4:]).all()  # the keys are the items' own
    assert server.stats()["table/queue/redelivered"] == 6
    assert server.ack(others) == 10
    assert taken(server)[0] == [*range(14, 24)]


def test_a_late_acknowledgement_counts() -> None:
    server = make(0.05)
    server.submit_batch(numbers(0, 20))
    _, keys = taken(server)
    time.sleep(0.1)
    assert server.stats()["table/queue/on_loan"] == 0 and len(server.table()) == 20
    assert server.ack(keys) == 10
    assert len(server.table()) == 10
    assert taken(server)[0] == [*range(10, 20)]


def test_a_waiting_learner_is_given_what_comes_back() -> None:
    server = make(0.3)
    server.submit_batch(numbers(0, 10))
    first, _ = taken(server)
    assert taken(server, 10)[0] == first  # nothing is inserted meanwhile
    with pytest.raises(EchoTimeoutError):
        server.sample(0.01)


def test_items_on_loan_take_up_room_until_they_are_acknowledged() -> None:
    server = make(30, capacity=10)
    server.submit_batch(numbers(0, 10))
    _, keys = taken(server)
    with pytest.raises(EchoTimeoutError, match=r"items that a learner was given and has not acknowledged \(ack\(keys\)\) take up the room: 10;"):
        server.submit(EXAMPLE, timeout=0.05)
    threading.Timer(0.1, server.ack, [keys]).start()
    server.submit(EXAMPLE, timeout=10)


def test_over_and_over_nothing_is_lost_and_acknowledged_items_never_return() -> None:
    """A learner that acknowledges at random, late, twice and never."""
    rng = np.random.default_rng(5)
    server = make(0.02, capacity=50)
    acknowledged: set[int] = set()
    inserted = 0
    while len(acknowledged) < 600:
        while inserted < 600:
            try:
                server.submit({"number": np.int64(inserted)}, timeout=0)
            except EchoTimeoutError:
                break
            inserted += 1
        try:
            sample = server.sample(1, n=int(rng.integers(1, 8)))
        except EchoTimeoutError:
            sample = server.sample(10, n=1)
        seen = sample.batch["number"]
        assert not acknowledged & set(seen.tolist())
        if rng.random() < 0.1:
            time.sleep(0.03)
        some = rng.random(len(seen)) < 0.7
        before = server.stats()["table/queue/acknowledged"]
        assert server.ack(sample.keys[some]) == some.sum()
        assert server.ack(sample.keys[some]) == 0
        assert server.stats()["table/queue/acknowledged"] == before + some.sum()
        acknowledged |= set(seen[some].tolist())
    assert acknowledged == set(range(600)) and len(server.table()) == 0


LEARNER = """
import sys, numpy as np
from echo_core import Client
client = Client(sys.argv[1], {"number": np.int64(0)}, table="queue")
sample = client.sample(10, timeout=30)
assert client.ack(sample.keys[:3]) == 3
print(*sample.batch["number"], flush=True)
sys.stdin.read()
"""


def test_what_a_killed_learner_had_is_given_to_another() -> None:
    with make(3600) as server, Client(server.address, EXAMPLE, table="queue") as client:
        client.send_batch(numbers(0, 20))
        client.wait()
        learner = subprocess.Popen(
            [sys.executable, "-c", LEARNER, str(server.address)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert learner.stdin is not None and learner.stdout is not None
        try:
            had = [int(number) for number in learner.stdout.readline().split()]
            assert had == [*range(10)]
            os.kill(learner.pid, signal.SIGKILL)
        finally:
            learner.kill()
            learner.wait()
            learner.stdin.close()
            learner.stdout.close()
        seen: list[int] = []
        while len(seen) < 17:
            sample = client.sample(1, timeout=30)
            seen += sample.batch["number"].tolist()
            assert client.ack(sample.keys) == 1
        assert sorted(seen) == [*range(3, 20)]
        assert client.server_stats()["table/queue/redelivered"] == 7
        with pytest.raises(EchoTimeoutError):
            client.sample(1, timeout=0.01)


def test_after_a_restart_what_was_on_loan_is_given_out_first(tmp_path: Path) -> None:
    server = make(30)
    server.submit_batch(numbers(0, 30))
    _, keys = taken(server)
    server.ack(keys[:5])
    server.checkpoint(tmp_path)
    again = make(30).restore(tmp_path)
    assert len(again.table()) == 25
    seen, keys = taken(again)
    assert seen == [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert again.ack(keys) == 10
    assert taken(again)[0] == [*range(15, 25)]
    again.submit_batch(numbers(30, 40))


def test_after_a_restart_an_acknowledgement_of_before_counts(tmp_path: Path) -> None:
    server = make(30)
    server.submit_batch(numbers(0, 20))
    _, keys = taken(server)
    server.checkpoint(tmp_path)
    again = make(30).restore(tmp_path)
    assert again.stats()["table/queue/redelivered"] == 10
    assert again.ack(keys) == 10
    assert again.stats()["table/queue/redelivered"] == 0
    assert taken(again)[0] == [*range(10, 20)]
    again.submit_batch(numbers(20, 120 - 10), timeout=5)  # nothing of before takes up room


def test_a_checkpoint_has_what_is_being_gathered(tmp_path: Path) -> None:
    example, count = {"number": np.int64(0), "filler": np.zeros(1 << 20, np.uint8)}, 48
    queue = [Table("queue", example, capacity=count, sampler="fifo", rate_limiter=Queue(count), lease_timeout=60)]
    server = Server(tables=queue, batch_size=count)
    for number in range(count):
        server.submit({"number": np.int64(number), "filler": np.full(1 << 20, number, np.uint8)})
    drawing = threading.Thread(target=server.sample)
    drawing.start()
    while server.stats()["table/queue/samples"] == 0:  # drawn; copying them takes some ms from here on
        pass
    server.checkpoint(tmp_path)
    drawing.join()
    again = Server(tables=queue, batch_size=count).restore(tmp_path)
    batch = again.sample(10).batch
    assert batch["number"].tolist() == [*range(count)] and (batch["filler"] == np.arange(count)[:, None]).all()


def test_acknowledged_loans_cost_no_memory() -> None:
    server = make(86400.0)
    server.submit_batch(numbers(0, 90))
    held = server.sample(10, n=1).keys  # the oldest loan stays: what came after it goes all the same
    assert server.ack(server.sample(10, n=89).keys) == 89
    before = psutil.Process().memory_info().rss
    for _ in range(12_000):
        server.submit_batch(numbers(0, 50))
        assert server.ack(server.sample(10, n=50).keys) == 50
    assert psutil.Process().memory_info().rss - before < 8 << 20  # 600,000 loans of 32 bytes would be 19 MB
    assert server.ack(held) == 1


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="sampled once"):
        Table("t", EXAMPLE, capacity=10, sampler="fifo", lease_timeout=1)
    with pytest.raises(ConfigError, match="lease_timeout must be"):
        Table("t", EXAMPLE, capacity=10, sampler="fifo", rate_limiter=Queue(10), lease_timeout=0)
    server = make(None)
    server.submit_batch(numbers(0, 10))
    with pytest.raises(ValueError, match="lease_timeout"):
        server.ack(server.sample().keys)
