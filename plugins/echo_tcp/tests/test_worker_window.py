"""The window of unacknowledged samples: which calls wait, and which samples were taken over meanwhile."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
from numbered import LARGE, SMALL, large, numbers, small
from wire_learner import WireLearner, connect

from echo_core.base import waiting
from echo_core.base.errors import EchoTimeoutError
from echo_testing.processes import until


def test_a_batch_larger_than_the_window_waits_until_it_is_empty() -> None:
    with WireLearner(SMALL) as learner, connect(learner, max_inflight_msgs=10) as worker:
        learner.may_ack.clear()
        worker.send(small(0))
        batch = {"obs": np.zeros((100, 4), np.float32), "reward": np.arange(1.0, 101)}
        batch["obs"] += batch["reward"][:, None]
        with pytest.raises(EchoTimeoutError):
            worker.send_batch(batch, timeout=0.05)
        assert worker.stats()["samples"] == 1
        learner.may_ack.set()
        worker.send_batch(batch)
        worker.wait()
        assert numbers(learner) == list(range(101))


def test_a_full_window_blocks_and_what_raised_was_not_taken() -> None:
    sample_bytes = sum(leaf.nbytes for leaf in LARGE.values())
    with WireLearner(LARGE) as learner, connect(learner, window_bytes=8 * sample_bytes, name="joe") as worker:
        learner.may_ack.clear()
        taken = 0
        with pytest.raises(EchoTimeoutError) as caught:
            while taken < 10_000:
                worker.send(large(taken), timeout=0)
                taken += 1
        assert 3 <= taken <= 8
        text = str(caught.value)
        assert "'joe'" in text and str(learner.address) in text and f"commit {taken} sam" in text
        with pytest.raises(EchoTimeoutError):
            worker.send(large(taken), timeout=0.15)
        assert worker.stats()["send_blocked"] == 2 and worker.stats()["samples"] == taken
        waiter = threading.Thread(target=worker.send, args=(large(taken),))
        waiter.start()
        until(lambda: worker.stats()["send_blocked"] == 3, "send() blocks")
        learner.may_ack.set()
        waiter.join(20)
        worker.wait()
        assert numbers(learner) == list(range(taken + 1))


@pytest.mark.parametrize("crowd", [0, 2, 3, 40])
def test_among_several_workers_of_one_machine_three_frames_are_kept(crowd: int) -> None:
    rows, frame_bytes = 10, 10 * sum(leaf.nbytes for leaf in LARGE.values())
    with WireLearner(LARGE) as learner, connect(learner, window_bytes=8 * (frame_bytes + 8192), max_coalesced_bytes=frame_bytes) as worker:
        learner.may_ack.clear()
        worker.send(large(0))
        learner.until(lambda: len(learner.rows) == 1)
        learner.acknowledge(1, crowd)
        until(lambda: worker.stats()["acknowledged"] == 1, "the acknowledgement is here")
        taken = 1
        with pytest.raises(EchoTimeoutError):
            while taken < 1000:
                worker.send(large(taken), timeout=0)
                taken += 1
        assert taken - 1 == rows * (3 if crowd >= 3 else 8)
        learner.may_ack.set()
        worker.send_batch({name: np.stack([large(taken)[name]] * 2 * rows) for name in LARGE})
        worker.wait()
        assert numbers(learner) == [*range(taken), *[taken] * 2 * rows]


@pytest.mark.parametrize("window_bytes", [4 << 10, 16 << 10, 100_000, 2 << 20])
def test_samples_that_wait_take_at_most_the_bytes_of_the_window(window_bytes: int) -> None:
    sample_bytes = sum(leaf.nbytes for leaf in SMALL.values())
    with WireLearner(SMALL) as learner, connect(learner, window_bytes=window_bytes, max_inflight_msgs=1 << 30) as worker:
        learner.may_ack.clear()
        taken = 0
        with pytest.raises(EchoTimeoutError):
            while True:
                worker.send(small(taken), timeout=0)
                taken += 1
        assert window_bytes // 2 < taken * sample_bytes <= window_bytes
        learner.may_ack.set()
        worker.wait()
        assert numbers(learner) == list(range(taken))


def test_three_samples_fit_into_every_window() -> None:
    with WireLearner(SMALL) as learner, connect(learner, window_bytes=1) as worker:
        learner.may_ack.clear()
        for number in range(3):
            worker.send(small(number), timeout=0)
        with pytest.raises(EchoTimeoutError):
            worker.send(small(3), timeout=0)
        learner.may_ack.set()
        worker.wait()
        assert numbers(learner) == [0, 1, 2]


def test_max_inflight_msgs_counts_samples() -> None:
    with WireLearner(SMALL) as learner, connect(learner, max_inflight_msgs=32) as worker:
        learner.may_ack.clear()
        for i in range(32):
            worker.send(small(i), timeout=0)
        with pytest.raises(EchoTimeoutError):
            worker.send(small(32), timeout=0)
        learner.may_ack.set()
        worker.wait()
        assert numbers(learner) == list(range(32))


def test_long_waits_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with WireLearner(SMALL) as learner, connect(learner, max_inflight_msgs=1) as worker:
        learner.may_ack.clear()
        worker.send(small(0))
        monkeypatch.setattr(waiting, "LOG_AFTER", 0.05)
        with caplog.at_level(logging.WARNING, "echo"), pytest.raises(EchoTimeoutError):
            worker.send(small(1), timeout=0.5)
        assert len(caplog.records) == 1 and "waits for the learner at tcp://" in caplog.text
        learner.may_ack.set()


def test_a_sample_that_changes_while_it_is_read_is_sent_whole() -> None:
    """A leaf that, when it is converted, replaces itself by another array, which is then removed."""
    n = 1_000_000  # in bytes; an array of this size is unmapped when it is freed

    class Restless:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            sample["x"] = np.full(n, 7, np.uint8)
            return np.full(n, 1, np.uint8)

    sample: dict[str, Any] = {"x": Restless()}
    with WireLearner({"x": np.zeros(n, np.uint8)}) as learner, connect(learner, window_bytes=1) as worker:
        learner.may_ack.clear()
        taken = 0
        with pytest.raises(EchoTimeoutError):
            while taken < 100:
                worker.send({"x": np.zeros(n, np.uint8)}, timeout=0)
                taken += 1
        sender = threading.Thread(target=worker.send, args=(sample,))
        sender.start()
        until(lambda: worker.stats()["send_blocked"] == 2, "send() blocks")
        sample["x"] = None
        learner.may_ack.set()
        sender.join(20)
        worker.wait()
        assert np.unique(learner.rows[taken][0]).tolist() == [1]
