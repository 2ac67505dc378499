"""Learners that refuse a worker, and learners that break the format: both errors are final and have a clear text."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np
import pytest
from numbered import NARROW, narrow, numbers
from wire_learner import WireLearner, connect

from echo_core.base.address import Address
from echo_core.base.errors import (
    ConnectionClosedError,
    EchoTimeoutError,
    HandshakeRefused,
    ProtocolError,
    SecurityError,
    SpecError,
)
from echo_core.spec.spec import Spec
from echo_core.testing.processes import until
from echo_core.wire.handshake import ServerHandshake
from echo_core.wire.protocol import HEADER, Kind, frame
from echo_tcp.transport import TcpTransport


def test_another_spec_is_refused_by_leaf() -> None:
    with WireLearner({**NARROW, "b": np.zeros((), np.float64)}) as learner, pytest.raises(SpecError, match="b.*float64|b.*int64"):
        TcpTransport.connect(learner.address, Spec.from_example(NARROW))


def test_tokens() -> None:
    with WireLearner(NARROW, tokens=(b"right" * 4,)) as learner:
        for token in (None, b"wrong" * 4):
            with pytest.raises(SecurityError):
                connect(learner, token=token)
        with connect(learner, token=b"right" * 4) as worker:
            worker.send(narrow(0))
    with WireLearner(NARROW) as learner:
        with pytest.raises(SecurityError, match="asks for none"):
            connect(learner, token=b"right" * 4)
        connect(learner, token=b"right" * 4, allow_unauthenticated=True).close()


def test_the_last_attempt_cut_short_does_not_hide_what_the_learner_said() -> None:
    """A learner that says once why it refuses all workers, and then says nothing."""
    spec = Spec.from_example(NARROW)
    with socket.create_server(("127.0.0.1", 0)) as learner:
        port = learner.getsockname()[1]
        kept = []

        def refuse_once() -> None:
            sock, _ = learner.accept()
            with sock:
                sock.sendall(ServerHandshake(spec).refuse("busy", "the learner is out of file descriptors"))
                sock.recv(65536)
            kept.append(learner.accept())

        thread = threading.Thread(target=refuse_once)
        thread.start()
        with pytest.raises(EchoTimeoutError, match="within 1 s .*out of file descriptors"):
            TcpTransport.connect(Address("tcp", "127.0.0.1", port), spec, timeout=1.0, allow_unauthenticated=True)
        thread.join(10)
        for sock, _ in kept:
            sock.close()


def test_a_refusal_while_reconnecting_is_final(port: int) -> None:
    with WireLearner(NARROW, port=port) as first:
        worker = connect(first)
        first.close()
        other = {**NARROW, "c": np.zeros(1)}
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
    with WireLearner(NARROW) as learner:
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
    with WireLearner(NARROW) as learner:
        worker = connect(learner)
        worker.send(narrow(0))
        worker.wait()
        learner.say(data)
        with pytest.raises(ProtocolError, match=str(learner.port)):
            worker.weights(20)
        with pytest.raises(ProtocolError):
            for i in range(100):
                worker.send(narrow(i))
        worker.close()
        assert learner.links == 1


def test_acknowledgements_cannot_be_taken_back() -> None:
    with WireLearner(NARROW) as learner:
        worker = connect(learner)
        for i in range(3):
            worker.send(narrow(i))
        worker.wait()
        learner.acknowledge(1)
        with pytest.raises(ProtocolError, match="back"):
            worker.weights(20)
        worker.close()
    with WireLearner(NARROW) as learner:
        worker = connect(learner)
        for i in range(3):
            worker.send(narrow(i))
        worker.wait()
        learner.greeting = lambda done: frame(Kind.ACK, seq=1)
        learner.hang_up()
        with pytest.raises(ProtocolError, match="forgot"):
            worker.weights(20)
        worker.close()


def test_pings_are_answered_and_goodbyes_understood() -> None:
    with WireLearner(NARROW) as learner, connect(learner) as worker:
        worker.send(narrow(0))
        worker.wait()
        learner.say(frame(Kind.PING, seq=5) + frame(Kind.PING, flags=1, seq=6))
        until(lambda: worker.stats()["bytes_sent"] >= 24 + 32 + 24, "the answer")
        learner.say(frame(Kind.BYE, b"maintenance"))
        learner.until(lambda: learner.links == 2)
        worker.send(narrow(1))
        worker.wait()
        assert numbers(learner) == [0, 1]
