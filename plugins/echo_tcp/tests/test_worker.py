"""The worker's end, driven by hand: which samples it takes over, and when it sends them."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from numbered import LARGE, SMALL, large, numbers, small
from wire_learner import WireLearner, connect

from echo_core.base.errors import SpecError
from echo_core.spec.spec import Spec
from echo_core.wire import protocol
from echo_tcp import _worker


def test_wire_constants_are_those_of_core() -> None:
    assert {
        "header": protocol.HEADER_BYTES,
        "kinds": {kind.name.lower(): int(kind) for kind in protocol.Kind},
        "reply": protocol.REPLY,
        "labels": protocol.LABELS,
        "label_bytes": protocol.LABEL_BYTES,
        "ended": protocol.ENDED,
        "last": protocol.LAST,
        "first": protocol.FIRST,
        "data_bytes": protocol.MAX_DATA_BYTES,
        "data_count": protocol.MAX_DATA_COUNT,
        "control_bytes": protocol.MAX_CONTROL_BYTES,
        "chunk_bytes": protocol.MAX_CHUNK_BYTES,
        "reason_bytes": protocol.MAX_REASON_BYTES,
    } == _worker.WIRE


def test_samples_arrive_in_order_and_whole(kind: tuple[Any, Any]) -> None:
    example, make = kind
    with WireLearner(example) as learner, connect(learner) as worker:
        for i in range(300):
            worker.send(make(i))
        worker.wait()
        assert numbers(learner) == list(range(300))
        stats = worker.stats()
        assert stats["samples"] == stats["acknowledged"] == 300
        assert stats["unacknowledged"] == 0 and stats["connected"] and stats["frames_sent"] >= 1
        assert stats["bytes_sent"] >= 300 * learner.spec.sample_bytes
        assert stats["reconnects"] == stats["learner_restarts"] == 0
        assert stats["ack_rtt_p99_ns"] >= stats["ack_rtt_p50_ns"] > 0


def test_arrays_may_change_after_send(kind: tuple[Any, Any]) -> None:
    example, make = kind
    with WireLearner(example) as learner, connect(learner) as worker:
        sample = make(0)
        for i in range(50):
            for name, array in make(i).items():
                sample[name][...] = array
            worker.send(sample)
        worker.wait()
        assert numbers(learner) == list(range(50))


def test_idle_sends_at_once_and_busy_gathers() -> None:
    with WireLearner(SMALL) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        worker.send(small(0))
        learner.until(lambda: learner.frames == [(1, 1)])
        for i in range(1, 1000):
            worker.send(small(i))
        learner.may_ack.set()
        worker.wait()
        # Samples that were sent meanwhile came in one frame, and no further samples were left to gather.
        assert learner.frames == [(1, 1), (2, 999)]
        worker.send(small(1000))
        learner.until(lambda: learner.frames[2:] == [(1001, 1)])


def test_flush_does_not_wait_for_acknowledgements() -> None:
    with WireLearner(SMALL) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        for i in range(5):
            worker.send(small(i))
            worker.flush()
        assert worker.stats()["unacknowledged"] == 5
        learner.may_ack.set()
        worker.wait()
        assert numbers(learner) == list(range(5))
        assert len(learner.frames) == 5


def test_frames_hold_no_more_than_they_may() -> None:
    with WireLearner(SMALL) as learner, connect(learner, max_coalesced_bytes=240) as worker:
        learner.may_ack.clear()
        for i in range(100):
            worker.send(small(i))
        learner.may_ack.set()
        worker.wait()
        assert max(count for _, count in learner.frames) == 10
        assert numbers(learner) == list(range(100))


@pytest.mark.parametrize("n", [0, 1, 7, 5000])
def test_send_batch(kind: tuple[Any, Any], n: int) -> None:
    example, make = kind
    n = min(n, 400) if example is LARGE else n
    with WireLearner(example) as learner, connect(learner) as worker:
        samples = [make(i) for i in range(n)]
        stacked = {k: np.array([s[k] for s in samples]) for k in example} if n else None
        if stacked is None:
            stacked = {k: np.zeros((0, *v.shape), v.dtype) for k, v in example.items()}
        worker.send_batch(stacked)
        worker.wait()
        assert numbers(learner) == list(range(n))


def test_many_threads_on_one_connection(kind: tuple[Any, Any]) -> None:
    example, make = kind
    each = 400 if example is SMALL else 60
    with WireLearner(example) as learner, connect(learner) as worker:

        def run(start: int) -> None:
            for i in range(start, start + each):
                worker.send(make(i))
            batch = [make(i) for i in range(start + each, start + 2 * each)]
            worker.send_batch({k: np.array([s[k] for s in batch]) for k in example})

        threads = [threading.Thread(target=run, args=(10_000 * t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        worker.wait()
        got = numbers(learner)
        for t in range(4):
            mine = [i for i in got if i // 10_000 == t]
            assert mine == list(range(10_000 * t, 10_000 * t + 2 * each))
        # A batch stays together: no sample of another thread lies between its samples.
        for t in range(4):
            at = got.index(10_000 * t + each)
            assert got[at : at + each] == list(range(10_000 * t + each, 10_000 * t + 2 * each))


def test_a_learner_that_reads_a_few_bytes_at_a_time() -> None:
    with (
        WireLearner(LARGE, receive_buffer=4096, read_bytes=701) as learner,
        connect(learner) as worker,
    ):
        for i in range(40):
            worker.send(large(i))
        worker.wait()
        assert numbers(learner) == list(range(40))


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize(
    "example",
    [
        np.zeros((), np.bool_),
        [np.zeros(3, np.complex64), (np.zeros((2, 0), np.int16), np.zeros(1, np.float16))],
        Pair(np.zeros((), "datetime64[ns]"), {"x": np.zeros(2, [("a", "i4"), ("b", "f8")])}),
        {f"leaf{i:03}": np.zeros(i % 5, np.int32) for i in range(150)},
        {"nothing": np.zeros((4, 0), np.float32)},
    ],
    ids=["scalar", "nested", "structured", "150 leaves", "no bytes"],
)
def test_any_spec(example: Any) -> None:
    with WireLearner(example) as learner, connect(learner) as worker:
        spec = Spec.from_example(example)
        rng = np.random.default_rng(0)
        leaves = [  # bytes of 0 and 1 are valid for every dtype, also for bool
            rng.integers(0, 2, leaf.nbytes, np.uint8).view(leaf.dtype).reshape(leaf.shape)
            for leaf in spec.leaves
        ]
        sample = spec.flattener.unflatten(leaves)
        for _ in range(3):
            worker.send(sample)
        worker.send_batch(spec.flattener.unflatten([np.stack([leaf] * 4) for leaf in leaves]))
        worker.wait()
        assert len(learner.rows) == 7
        for row in learner.rows:
            for got, leaf in zip(row, leaves):
                assert got.tobytes() == leaf.tobytes()


def test_what_does_not_fit_is_refused_by_name_and_not_taken() -> None:
    with WireLearner(SMALL) as learner, connect(learner) as worker:
        for wrong in (
            {"obs": np.zeros(4, np.int32), "reward": np.zeros(())},
            {"obs": np.zeros((2, 2), np.float32), "reward": np.zeros(())},
        ):
            with pytest.raises(SpecError, match="obs"):
                worker.send(wrong)
        with pytest.raises(SpecError, match="reward"):
            worker.send({"obs": np.zeros(4, np.float32), "rewards": np.zeros(())})
        with pytest.raises(SpecError):
            worker.send_batch({"obs": np.zeros((3, 4), np.float32), "reward": np.zeros(2)})
        worker.send({"obs": np.arange(8, dtype=np.float32)[::2], "reward": np.array(1, ">f8")})
        worker.wait()
        assert [row[0].tolist() for row in learner.rows] == [[0, 2, 4, 6]]
        assert learner.rows[0][1] == 1
