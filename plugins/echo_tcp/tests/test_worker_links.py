"""Links that break: nothing is lost, nothing arrives twice, and no call waits for ever."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core.address import Address
from echo_core.errors import (
    ClosedError,
    ConnectionClosedError,
    EchoTimeoutError,
    ForkError,
    HandshakeRefused,
    ProtocolError,
    SecurityError,
    SpecError,
)
from echo_core.spec import Spec
from echo_core.testing.processes import descriptors, forked, interrupted, settled, tasks, until
from echo_core.wire import HEADER, Kind, frame
from echo_tcp.transport import TcpTransport

sys.path.insert(0, str(Path(__file__).resolve().parent))

from wire_learner import WireLearner

EXAMPLE = {"a": np.zeros(3, np.int64), "b": np.zeros((), np.int64)}
WIDE = {"a": np.zeros(9000, np.int64), "b": np.zeros((), np.int64)}


def connect(learner: WireLearner, **options: Any) -> Any:
    return TcpTransport.connect(learner.address, learner.spec, **options)


def sample(i: int, example: Any = EXAMPLE) -> dict[str, np.ndarray]:
    return {"a": np.full_like(example["a"], i), "b": np.array(i)}


def numbers(learner: WireLearner) -> list[int]:
    for first, second in learner.rows:
        assert np.all(first == second)
    return [int(second) for _, second in learner.rows]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


# ------------------------------------------------------------------------- dropped and resumed


@pytest.mark.parametrize("example", [EXAMPLE, WIDE], ids=["small", "large"])
def test_dropped_again_and_again_in_the_middle_of_frames(example: Any) -> None:
    total = 4000 if example is EXAMPLE else 250
    each = Spec.from_example(example).sample_bytes
    rng = random.Random(7)
    with WireLearner(example, read_bytes=1 << 15) as learner, connect(learner) as worker:
        learner.cut = lambda: rng.randrange(3 * each + 60) if rng.random() < 0.07 else None
        threads = [
            threading.Thread(
                target=lambda t: [worker.send(sample(i, example)) for i in range(t, total, 2)],
                args=(t,),
            )
            for t in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        until(lambda: learner.links > 3 or worker.send(sample(total, example)), "drops")
        learner.cut = lambda: None
        worker.wait()
        got = numbers(learner)
        assert worker.stats()["reconnects"] >= 3 and worker.stats()["learner_restarts"] == 0
        for t in range(2):
            assert [i for i in got if i < total and i % 2 == t] == list(range(t, total, 2))
        assert len(got) == worker.stats()["samples"]


def test_the_resume_point_may_lie_inside_a_frame() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        worker.send(sample(0))
        learner.until(lambda: len(learner.frames) == 1)
        for i in range(1, 20):
            worker.send(sample(i))
        worker.flush()
        learner.until(lambda: learner.frames == [(1, 1), (2, 19)])
        (client,) = learner.samples
        del learner.samples[client][12:]  # as if only 12 of them had been committed in time
        learner.committed[client] = 12
        learner.hang_up()
        learner.until(lambda: learner.frames[2:] == [(13, 8)])
        learner.may_ack.set()
        worker.wait()
        assert numbers(learner) == list(range(20))


def test_an_acknowledgement_may_be_lost_but_no_sample_comes_twice() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        for i in range(10):
            worker.send(sample(i))
            worker.flush()
        learner.until(lambda: len(learner.rows) == 10)
        learner.hang_up()
        worker.wait()  # by the resume point alone
        assert numbers(learner) == list(range(10)) and len(learner.frames) == 10
        learner.may_ack.set()


def test_a_learner_on_the_same_port_is_carried_on_with() -> None:
    with WireLearner(EXAMPLE) as first:
        worker = connect(first)
        for i in range(5):
            worker.send(sample(i))
        worker.wait()
        first.close()
        for i in range(5, 9):
            worker.send(sample(i))
        with pytest.raises(EchoTimeoutError, match=r"no connection .* 4 samples"):
            worker.wait(timeout=0.1)
        assert worker.stats()["connected"] is False
        with WireLearner(EXAMPLE, port=first.port, incarnation="02" * 16) as second:
            worker.wait()
            assert numbers(second) == [5, 6, 7, 8] and second.frames[0][0] == 6
            stats = worker.stats()
            assert (stats["reconnects"], stats["learner_restarts"]) == (1, 1)
            worker.close()


def test_a_client_id_of_a_former_life_numbers_on() -> None:
    name = "ab" * 16
    with WireLearner(EXAMPLE) as learner:
        with connect(learner, client_id=name) as worker:
            worker.send(sample(0))
            worker.send(sample(1))
        with connect(learner, client_id=name) as worker:
            worker.send(sample(2))
            worker.wait()
            assert worker.stats()["acknowledged"] == 1
            learner.hang_up()
            worker.send(sample(3))
            worker.wait()
        assert numbers(learner) == [0, 1, 2, 3]
        assert [first for first, _ in learner.frames] == [1, 2, 3, 4]


# ------------------------------------------------------------------------------- gone for good


def test_a_learner_that_does_not_return_ends_every_call() -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner, timeout=0.4, max_inflight_msgs=2)
        learner.may_ack.clear()
        worker.send(sample(0))
        worker.send(sample(1))
        outcome: list[BaseException] = []

        def ends(call: Any) -> None:
            try:
                call()
            except ConnectionClosedError as error:
                outcome.append(error)

        calls = [
            lambda: worker.send(sample(2), 60),
            lambda: worker.wait(60),
            lambda: worker.weights(60),
            lambda: worker.request("x", {}, timeout=60),
        ]
        threads = [threading.Thread(target=ends, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        until(lambda: worker.stats()["send_blocked"] == 1, "send() waits")
        learner.close()
        for thread in threads:
            thread.join(20)
        assert len(outcome) == 4
        assert all(str(learner.address) in str(error) for error in outcome)
        assert sum("not back within 0.4 s" in str(error) for error in outcome) >= 3
        for call in (lambda: worker.send(sample(2)), worker.flush, worker.wait, worker.weights):
            with pytest.raises(ConnectionClosedError, match="not back within"):
                call()
        with pytest.raises(ConnectionClosedError, match="2 samples"):
            worker.close()
        worker.close()


def test_without_reconnect_a_lost_link_is_final() -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner, reconnect=False)
        worker.send(sample(0))
        worker.wait()
        learner.hang_up()
        until(lambda: not worker.stats()["connected"], "the loss is noticed")
        with pytest.raises(ConnectionClosedError, match="closed the connection"):
            worker.wait(30)
            for i in itertools.count():
                worker.send(sample(i))
                time.sleep(0.01)
        assert learner.links == 1
        with pytest.raises((ConnectionClosedError, ClosedError)):
            worker.wait()
        try:
            worker.close()
        except ConnectionClosedError as error:
            assert "not acknowledged" in str(error)


def test_a_learner_that_was_never_there() -> None:
    address = Address("tcp", "127.0.0.1", free_port())
    with pytest.raises(EchoTimeoutError, match=r"(?s)could not reach tcp://.*refused.*start the"):
        TcpTransport.connect(address, Spec.from_example(EXAMPLE), timeout=0.2)


def test_a_learner_that_starts_later_is_found() -> None:
    port = free_port()
    learners: list[WireLearner] = []
    starter = threading.Timer(0.2, lambda: learners.append(WireLearner(EXAMPLE, port=port)))
    starter.start()
    with TcpTransport.connect(Address("tcp", "localhost", port), Spec.from_example(EXAMPLE)) as it:
        it.send(sample(0))
        it.wait()
    starter.join()
    assert numbers(learners[0]) == [0]
    learners[0].close()


def test_a_listener_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("tcp", "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(EchoTimeoutError, match="handshake in time"):
            TcpTransport.connect(address, Spec.from_example(EXAMPLE), timeout=0.3)


# --------------------------------------------------------------------- refused, at once or later


def test_another_spec_is_refused_by_leaf() -> None:
    with WireLearner({**EXAMPLE, "b": np.zeros((), np.float64)}) as learner, pytest.raises(SpecError, match="b.*float64|b.*int64"):
        TcpTransport.connect(learner.address, Spec.from_example(EXAMPLE))


def test_tokens() -> None:
    with WireLearner(EXAMPLE, tokens=(b"right" * 4,)) as learner:
        for token in (None, b"wrong" * 4):
            with pytest.raises(SecurityError):
                connect(learner, token=token)
        with connect(learner, token=b"right" * 4) as worker:
            worker.send(sample(0))
    with WireLearner(EXAMPLE) as learner:
        with pytest.raises(SecurityError, match="asks for none"):
            connect(learner, token=b"right" * 4)
        connect(learner, token=b"right" * 4, allow_unauthenticated=True).close()


def test_a_refusal_while_reconnecting_is_final() -> None:
    with WireLearner(EXAMPLE) as first:
        worker = connect(first)
        first.close()
        other = {**EXAMPLE, "c": np.zeros(1)}
        with WireLearner(other, port=first.port):
            until(lambda: not _alive(worker), "the refusal is noticed")
            with pytest.raises(ConnectionClosedError, match=r"returning failed.*c"):
                worker.wait()
            worker.close()


def _alive(worker: Any) -> bool:
    try:
        worker.flush()
    except ConnectionClosedError:
        return False
    return True


def test_refused_for_other_reasons() -> None:
    with WireLearner(EXAMPLE) as learner:
        with pytest.raises(HandshakeRefused) as caught:
            connect(learner, role="learner")
        assert caught.value.code == "role"


GARBAGE = {
    "unknown kind": HEADER.pack(99, 0, 0, 0, 0, 0),
    "data": HEADER.pack(Kind.DATA, 0, 0, 1, 1, 32),
    "ack with payload": HEADER.pack(Kind.ACK, 0, 0, 0, 1, 8) + bytes(8),
    "ack of the future": frame(Kind.ACK, seq=2),
    "huge control": HEADER.pack(Kind.CONTROL, 1, 0, 0, 1, 1 << 40),
    "huge chunk": HEADER.pack(Kind.WEIGHTS, 2, 0, 0, 1, 1 << 30),
    "chunk without beginning": HEADER.pack(Kind.WEIGHTS, 1, 0, 0, 1, 4) + bytes(4),
    "weights without meta": HEADER.pack(Kind.WEIGHTS, 3, 0, 0, 1, 4) + b"\xff\xff\0\0",
    "endless meta": HEADER.pack(Kind.WEIGHTS, 3, 0, 0, 1, 5) + b"\xff\xff\xff\xff!",
    "long goodbye": HEADER.pack(Kind.BYE, 0, 0, 0, 0, 2000),
    "table": HEADER.pack(Kind.ACK, 0, 7, 0, 1, 0),
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_learner_that_breaks_the_format(data: bytes) -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner)
        worker.send(sample(0))
        worker.wait()
        learner.say(data)
        with pytest.raises(ProtocolError, match=str(learner.port)):
            worker.weights(20)
        with pytest.raises(ProtocolError):
            for i in range(100):
                worker.send(sample(i))
        worker.close()
        assert learner.links == 1


def test_acknowledgements_cannot_be_taken_back() -> None:
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner)
        for i in range(3):
            worker.send(sample(i))
        worker.wait()
        learner.acknowledge(1)
        with pytest.raises(ProtocolError, match="back"):
            worker.weights(20)
        worker.close()
    with WireLearner(EXAMPLE) as learner:
        worker = connect(learner)
        for i in range(3):
            worker.send(sample(i))
        worker.wait()
        learner.greeting = lambda done: frame(Kind.ACK, seq=1)
        learner.hang_up()
        with pytest.raises(ProtocolError, match="forgot"):
            worker.weights(20)
        worker.close()


def test_pings_are_answered_and_goodbyes_understood() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        worker.send(sample(0))
        worker.wait()
        learner.say(frame(Kind.PING, seq=5) + frame(Kind.PING, flags=1, seq=6))
        until(lambda: worker.stats()["bytes_sent"] >= 24 + 32 + 24, "the answer")
        learner.say(frame(Kind.BYE, b"maintenance"))
        learner.until(lambda: learner.links == 2)
        worker.send(sample(1))
        worker.wait()
        assert numbers(learner) == [0, 1]


# ------------------------------------------------------------------------ processes and signals

PRELUDE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
import numpy as np, threading
from wire_learner import WireLearner
from echo_tcp.transport import TcpTransport
EXAMPLE = {{"a": np.zeros(3, np.int64), "b": np.zeros((), np.int64)}}
learner = WireLearner(EXAMPLE)
learner.may_ack.clear()
worker = TcpTransport.connect(learner.address, learner.spec, max_inflight_msgs=1)
worker.send(EXAMPLE)
"""


@pytest.mark.parametrize(
    "call",
    [
        "worker.send(EXAMPLE, 60)",
        "worker.wait(60)",
        "worker.close(60)",
        "worker.weights(60)",
        "worker.request('x', {}, timeout=60)",
        "TcpTransport.connect(learner.address.parse('tcp://127.0.0.1:1'), learner.spec)",
    ],
)
def test_ctrl_c(call: str, tmp_path: Path) -> None:
    # `close` gives up on what is left; the others leave that to the end of the interpreter.
    interrupted(PRELUDE, call, tmp_path)


def test_a_fork_leaves_the_connection_to_the_parent() -> None:
    with WireLearner(EXAMPLE) as learner, connect(learner) as worker:
        worker.send(sample(0))

        def child() -> None:
            for call in (
                lambda: worker.send(sample(9)),
                lambda: worker.send_batch({k: v[None] for k, v in EXAMPLE.items()}),
                worker.flush,
                worker.wait,
                worker.weights,
                worker.stats,
                lambda: worker.request("x", {}),
            ):
                with pytest.raises(ForkError, match="new Client in the child"):
                    call()
            worker.close()

        forked(child)
        learner_is_child = os.getpid()
        for i in range(1, 100):
            worker.send(sample(i))
        worker.wait()
        assert learner_is_child == os.getpid() and numbers(learner) == list(range(100))
        assert worker.stats()["reconnects"] == 0


def test_a_forked_child_may_drop_the_connection() -> None:
    with WireLearner(EXAMPLE) as learner:
        workers = [connect(learner)]
        workers[0].send(sample(0))

        def child() -> None:
            workers.clear()
            gc.collect()

        forked(child)
        workers[0].send(sample(1))
        workers.pop().close()
        assert numbers(learner) == [0, 1]


def test_a_worker_killed_in_the_middle_leaves_whole_samples() -> None:
    code = textwrap.dedent(
        """
        import sys, numpy as np
        from echo_core.address import Address
        from echo_core.spec import Spec
        from echo_tcp.transport import TcpTransport
        example = {"a": np.zeros(9000, np.int64), "b": np.zeros((), np.int64)}
        worker = TcpTransport.connect(Address.parse(sys.argv[1]), Spec.from_example(example))
        i = 0
        while True:
            worker.send({"a": np.full(9000, i), "b": np.array(i)})
            i += 1
        """
    )
    with WireLearner(WIDE) as learner:
        command = [sys.executable, "-c", code, str(learner.address)]
        child = subprocess.Popen(command)
        try:
            learner.until(lambda: len(learner.rows) > 50)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        got = numbers(learner)
        assert got == list(range(len(got)))


def test_an_interpreter_that_ends_without_close_still_delivers() -> None:
    code = textwrap.dedent(
        """
        import sys, numpy as np
        from echo_core.address import Address
        from echo_core.spec import Spec
        from echo_tcp.transport import TcpTransport
        example = {"a": np.zeros(3, np.int64), "b": np.zeros((), np.int64)}
        worker = TcpTransport.connect(Address.parse(sys.argv[1]), Spec.from_example(example))
        for i in range(2000):
            worker.send({"a": np.full(3, i), "b": np.array(i)})
        """
    )
    with WireLearner(EXAMPLE) as learner:
        command = [sys.executable, "-W", "always", "-c", code, str(learner.address)]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=True)
        assert numbers(learner) == list(range(2000))
        assert "ResourceWarning: unclosed connection to tcp://" in done.stderr


def test_nothing_is_left_behind() -> None:
    with WireLearner(EXAMPLE) as learner:
        connect(learner).close()
        gc.collect()
        learner.until(lambda: learner.goodbyes == ["closed"])
        files, threads = descriptors(), tasks()
        for _ in range(5):
            with connect(learner) as worker:
                worker.send(sample(0))
            with pytest.raises(SpecError):
                TcpTransport.connect(learner.address, Spec.from_example(WIDE))
        del worker
        settled(descriptors, files, "descriptors")
        settled(tasks, threads, "threads")
