"""Weights from the learner and requests to it, seen from a worker."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from wire_learner import WireLearner, connect

from echo_core.base.errors import (
    ConfigError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    ProtocolError,
    SpecError,
)
from echo_core.wire import weights as core_weights
from echo_core.wire.protocol import HEADER, Kind, frame, weights_frames
from echo_testing.processes import until

EXAMPLE = {"x": np.zeros(3, np.float32)}


def packed(version: int, size: int = 1000) -> core_weights.PackedWeights:
    return core_weights.pack(
        {"w": np.full(size, version, np.float32), "b": [np.arange(version)]}, version
    )


def check(got: core_weights.Weights, version: int, size: int = 1000) -> None:
    assert got.version == version and got.digest == packed(version, size).digest
    assert got.params["w"].shape == (size,) and np.all(got.params["w"] == version)
    assert got.params["b"][0].tolist() == list(range(version))


def test_the_newest_version_comes_whole_and_a_receipt_goes_back() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        with pytest.raises(EchoTimeoutError, match="to publish"):
            worker.weights(timeout=0)
        learner.publish(packed(1))
        check(worker.weights(), 1)
        check(worker.weights(timeout=0), 1)
        with pytest.raises(EchoTimeoutError):
            worker.weights(timeout=0.05, newer_than=1)
        assert worker.stats()["weights_version"] == worker.stats()["weights_received"] == 1
        big = 3_000_000  # bytes of many chunks
        learner.publish(packed(7, big))
        check(worker.weights(newer_than=1), 7, big)
        learner.until(lambda: len(learner.receipts) == 2)
        assert learner.receipts == [(1, packed(1).digest), (7, packed(7, big).digest)]
        assert learner.subscriptions == [0]


def test_a_worker_that_cannot_write_keeps_only_its_newest_receipt() -> None:
    with WireLearner(EXAMPLE, receive_buffer=4096) as learner, connect(learner, window_bytes=16 << 20, max_inflight_msgs=1 << 30) as worker:
        learner.publish(packed(1))
        check(worker.weights(), 1)
        learner.until(lambda: len(learner.receipts) == 1)
        learner.may_read.clear()
        learner.may_ack.clear()
        with pytest.raises(EchoTimeoutError):
            while True:
                worker.send_batch({"x": np.zeros((10_000, 3), np.float32)}, timeout=0)
        for version in range(2, 52):
            learner.say(b"".join(b"".join(pieces) for pieces in weights_frames(packed(version))))
            check(worker.weights(newer_than=version - 1), version)
        learner.may_read.set()
        learner.until(lambda: learner.receipts[-1] == (51, packed(51).digest))
        assert len(learner.receipts) <= 3
        learner.may_ack.set()
        worker.wait()


def test_waiting_for_a_newer_version_wakes_up() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        got: list[core_weights.Weights] = []
        threads = [
            threading.Thread(target=lambda: got.append(worker.weights(20, newer_than=1)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        learner.publish(packed(1))
        learner.until(lambda: len(learner.receipts) == 1)
        assert not got
        learner.publish(packed(2))
        for thread in threads:
            thread.join(20)
        assert [it.version for it in got] == [2, 2, 2]


def test_arrays_are_read_only_views_that_outlive_everything() -> None:
    learner = WireLearner(EXAMPLE)
    worker = connect(learner)
    learner.publish(packed(3))
    got = worker.weights()
    array = got.params["w"]
    assert array.ctypes.data % 64 == 0 and not array.flags.writeable and array.base is not None
    again = worker.weights()
    assert again.params["w"].ctypes.data == array.ctypes.data
    with pytest.raises(ValueError):
        array.flags.writeable = True
    for version in range(4, 20):
        learner.publish(packed(version))
        check(worker.weights(newer_than=version - 1), version)
    worker.close()
    learner.close()
    del worker, got, again
    gc.collect()
    assert np.all(array == 3)


class Net(NamedTuple):
    w: Any
    b: Any


def test_like_rebuilds_what_json_cannot_carry() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        net = Net(np.ones(3), np.zeros(2, np.float32))
        learner.publish(core_weights.pack(net, 1))
        with pytest.raises(SpecError, match="like"):
            worker.weights()
        assert isinstance(worker.weights(like=net).params, Net)
        with pytest.raises(SpecError):
            worker.weights(like=Net(np.ones(4), np.zeros(2, np.float32)))


def test_a_link_lost_in_the_middle_of_a_version() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.publish(packed(1))
        check(worker.weights(), 1)
        frames = [b"".join(pieces) for pieces in weights_frames(packed(2, 200_000))]
        assert len(frames) > 2
        learner.say(frames[0] + frames[1][:1000])
        learner.hang_up()
        learner.until(lambda: learner.subscriptions == [0, 1])
        check(worker.weights(), 1)
        learner.publish(packed(3))
        check(worker.weights(newer_than=1), 3)


def test_damaged_weights_are_never_shown() -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner)
        learner.publish(packed(1))
        check(worker.weights(), 1)
        damaged = bytearray(b"".join(map(b"".join, weights_frames(packed(2)))))
        damaged[-70] ^= 1
        learner.say(bytes(damaged))
        learner.until(lambda: learner.links == 2)
        with pytest.raises(EchoTimeoutError):
            worker.weights(0.1, newer_than=1)
        learner.publish(packed(2))
        check(worker.weights(newer_than=1), 2)
        worker.close()
        assert [version for version, _ in learner.receipts] == [1, 2]


def test_weights_that_arrive_damaged_each_time_are_an_error() -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner)
        learner.publish(packed(1))
        check(worker.weights(), 1)
        damaged = bytearray(b"".join(map(b"".join, weights_frames(packed(2)))))
        damaged[-70] ^= 1
        learner.greeting = lambda done: frame(Kind.ACK, seq=done) + bytes(damaged)
        learner.say(bytes(damaged))
        with pytest.raises(ProtocolError, match="digest.*3 connections in a row"):
            worker.weights(newer_than=1)
        worker.close()
        assert learner.links == 3
        learner.until(lambda: learner.receipts)  # the receipt of the previous version, which may be read late
        assert len(learner.receipts) == 1


def test_a_restarted_learner_counts_from_one_again(port: int) -> None:
    with WireLearner(EXAMPLE, port=port) as first:
        worker = connect(first)
        first.publish(packed(9))
        check(worker.weights(), 9)
    with WireLearner(EXAMPLE, port=first.port, incarnation="02" * 16) as second:
        second.until(lambda: second.subscriptions == [0])
        second.publish(packed(2))
        check(worker.weights(newer_than=9), 2)
        with pytest.raises(EchoTimeoutError):
            worker.weights(timeout=0, newer_than=2)
        worker.close()


def test_a_restarted_learner_may_give_the_same_number_to_other_weights(port: int) -> None:
    with WireLearner(EXAMPLE, port=port) as first:
        worker = connect(first)
        first.publish(packed(1, 10))
        check(worker.weights(), 1, 10)
    with WireLearner(EXAMPLE, port=first.port, incarnation="02" * 16) as second:
        second.until(lambda: second.subscriptions == [0])
        with pytest.raises(EchoTimeoutError):
            worker.weights(timeout=0, newer_than=1)
        second.publish(packed(1, 20))
        check(worker.weights(newer_than=1), 1, 20)
        with pytest.raises(EchoTimeoutError):
            worker.weights(timeout=0, newer_than=1)
        worker.close()


def test_weights_and_samples_do_not_wait_for_each_other() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        done = threading.Event()
        versions: list[int] = []

        def follow() -> None:
            version = 0
            while not done.is_set():
                try:
                    version = worker.weights(0.2, newer_than=version).version
                    versions.append(version)
                except EchoTimeoutError:
                    pass

        thread = threading.Thread(target=follow)
        thread.start()
        for i in range(60):
            learner.publish(packed(i + 1, 50_000))
            for k in range(50):
                worker.send({"x": np.full(3, 50 * i + k, np.float32)})
        worker.wait()
        until(lambda: versions and versions[-1] == 60, "the newest version")
        done.set()
        thread.join(20)
        assert versions == sorted(set(versions))
        assert [int(row[0][0]) for row in learner.rows] == list(range(3000))


# ------------------------------------------------------------------------------------ requests


def test_requests_are_answered() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.handler = lambda op, body, blob: ({"op": op, **body}, blob[::-1])
        assert worker.request("turn", {"a": [1, None]}, b"xyz") == (
            {"op": "turn", "a": [1, None]},
            b"zyx",
        )
        threads = [
            threading.Thread(target=lambda i: results.append(worker.request(str(i), {})), args=(i,))
            for i in range(8)
        ]
        results: list[Any] = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(body["op"] for body, _ in results) == [str(i) for i in range(8)]


def test_errors_of_a_request_come_back_as_themselves() -> None:
    def refuse(op: str, body: Any, blob: bytes) -> Any:
        raise ConfigError("no table 'x'; there is 'default'")

    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.handler = refuse
        with pytest.raises(ConfigError, match="no table 'x'"):
            worker.request("insert", {})
        with pytest.raises(ValueError, match="1048576"):
            worker.request("big", {}, bytes(1 << 20))


def test_a_request_without_an_answer() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        with pytest.raises(EchoTimeoutError, match="to answer request 'hello'"):
            worker.request("hello", {}, timeout=0.05)
        outcome: list[BaseException] = []

        def ask() -> None:
            try:
                worker.request("hello", {})
            except ConnectionClosedError as error:
                outcome.append(error)

        thread = threading.Thread(target=ask)
        before = worker.stats()["bytes_sent"]
        thread.start()
        until(lambda: worker.stats()["bytes_sent"] > before, "the question has left")
        learner.hang_up()
        thread.join(20)
        assert "may have been carried out" in str(outcome[0])
        # The connection itself goes on, and a late answer for which no caller waits is dropped.
        learner.handler = lambda op, body, blob: (body, blob)
        learner.until(lambda: learner.links == 2)
        learner.say(frame(Kind.CONTROL, b"\2\0\0\0{}", flags=1, seq=1))
        assert worker.request("hello", {"n": 1}) == ({"n": 1}, b"")


def test_an_answer_is_taken_once_and_its_memory_is_used_again() -> None:
    blob = bytes(range(256)) * 1000
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.handler = lambda op, body, blob: (body, blob)
        question = worker.ask("x", {}, blob)
        answer = question(20)[1]
        with pytest.raises(ValueError, match="taken"):
            question(20)
        with pytest.raises(TypeError):
            answer[0] = 1
        second = worker.ask("x", {}, blob[::-1])(20)[1]
        assert answer == blob and second == blob[::-1], "what is still looked at is nobody else's"
        where = np.frombuffer(second, np.uint8).ctypes.data
        del second
        third = worker.ask("x", {}, blob)(20)[1]
        assert np.frombuffer(third, np.uint8).ctypes.data == where and third == blob


def test_questions_of_a_lost_link_say_so_and_those_dropped_in_a_fork_do_not_hang() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        before = worker.stats()["bytes_sent"]
        pending = [worker.ask("hello", {}) for _ in range(3)]
        until(lambda: worker.stats()["bytes_sent"] > before, "the questions have left")
        child = os.fork()
        if child == 0:
            pending.clear()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        worker.flush()
        learner.hang_up()
        with pytest.raises(ConnectionClosedError, match="may have been carried out"):
            pending[0](20)
        del pending[1:]
        learner.handler = lambda op, body, blob: (body, blob)
        assert worker.request("hello", {"n": 1})[0] == {"n": 1}


def test_requests_of_the_learner_are_refused_as_text() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        payload = b'\x1a\0\0\0{"op":"restart","body":{}}'
        sent = worker.stats()["bytes_sent"]
        learner.say(HEADER.pack(Kind.CONTROL, 0, 0, 0, 4, len(payload)) + payload)
        until(lambda: worker.stats()["bytes_sent"] > sent + 40, "the answer")
        worker.send({"x": np.zeros(3, np.float32)})
        worker.wait()


def test_errors_are_echo_errors() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker, pytest.raises(EchoError):
        worker.request("x", {}, timeout=0)
