"""A server in use: iterating over its batches, ending, publishing, being dropped."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from filling import filled

from echo_core import ClosedError, Server, SpecError
from echo_core.server.sink import ServerSink
from echo_testing.processes import tasks
from echo_testing.samples import Tally, example, sample, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one


def test_iterating_ends_with_the_server() -> None:
    server = filled(6)
    tally = Tally()
    for one in server.dataset_iter():
        tally.add(one.batch)
        if tally.count == 4:
            server.close()
    tally.check({0: 6})
    assert list(server.dataset_iter()) == []


def test_copies_may_be_hoarded() -> None:
    server = filled(4, num_buffers=2, lease_timeout=0.1)
    batches = server.dataset_iter(copy=True, timeout=5)
    kept = []
    for turn in range(10):
        kept.append(next(batches))
        server.submit_batch(stacked(0, 4 + 2 * turn, 2), timeout=0)
    tally = Tally()
    for one in kept:
        tally.add(one.batch)
        assert all(array.flags.owndata for array in one.batch.values())
    tally.check({0: 20})


def test_what_is_whole_is_still_handed_out_after_close() -> None:
    server = filled(5)
    server.close()
    server.close()
    assert server.closed
    assert server.sample().batch["number"].tolist() == [0, 1]
    assert server.sample(timeout=0).batch["number"].tolist() == [2, 3]
    for timeout in (None, 0, 5):
        assert server.sample(timeout) is None
    with pytest.raises(ClosedError):
        server.submit(sample(0, 0))
    with pytest.raises(ClosedError, match="closed"):
        server.start()


def test_close_wakes_everybody() -> None:
    server = filled(0)
    outcomes: list[Any] = []
    learners = [
        threading.Thread(target=lambda: outcomes.append(server.sample()), daemon=True)
        for _ in range(4)
    ]
    iterator = threading.Thread(target=lambda: outcomes.extend(server.dataset_iter()), daemon=True)
    for thread in (*learners, iterator):
        thread.start()
    time.sleep(0.1)
    server.close()
    for thread in (*learners, iterator):
        thread.join(20)
        assert not thread.is_alive()
    assert outcomes == [None] * 4


def test_a_block_closes_its_server() -> None:
    with Server(example(), 2) as server:
        assert not server.closed
        assert "in-process" in repr(server)
    assert server.closed
    assert "closed" in repr(server)


def test_a_server_without_transport_has_no_threads() -> None:
    before = tasks()
    with filled(2) as server:
        assert server.sample(timeout=5) is not None
        assert set(tasks()) <= set(before)


def test_a_dropped_server_is_gone_at_once() -> None:
    gc.disable()
    try:
        server = filled(2)
        server.start()
        server.publish(np.zeros(3))
        server.stats()
        batch, gone = server.sample(timeout=5).batch, weakref.ref(server)
        del server
        assert gone() is None
        assert batch["number"].tolist() == [0, 1]
    finally:
        gc.enable()


def test_publishing_counts_versions_and_names_contents() -> None:
    server = filled(0)
    assert server.stats()["weights/version"] == 0
    weights = {"w": np.arange(6.0).reshape(2, 3), "b": [np.zeros(3, np.float16)]}
    first, second = server.publish(weights), server.publish(weights)
    weights["w"][0, 0] = 7
    third = server.publish(weights)
    assert [p.version for p in (first, second, third)] == [1, 2, 3]
    assert first.digest == second.digest != third.digest
    assert 0 <= first.digest < 1 << 64
    assert server.stats()["weights/version"] == 3
    assert ServerSink(server).weights.version == 3
    with pytest.raises(SpecError, match="bad"):
        server.publish({"bad": object()})
    assert server.publish(weights).version > 3


def test_a_publisher_may_number_its_versions() -> None:
    server, weights = filled(0), {"w": np.zeros(3)}
    assert [server.publish(weights, version=5).version, server.publish(weights).version] == [5, 6]
    for version in (6, 0, -1, 1 << 63):
        with pytest.raises(ValueError, match="version must be above the newest, 6,.* becomes 7"):
            server.publish(weights, version=version)
    for version in (7.0, True, "7"):
        with pytest.raises(TypeError, match="whole number"):
            server.publish(weights, version=version)  # type: ignore[arg-type]
    assert server.publish(weights, version=(1 << 63) - 1).version == (1 << 63) - 1
    with pytest.raises(ValueError, match="no version above"):
        server.publish(weights)
    assert ServerSink(server).weights.version == (1 << 63) - 1
