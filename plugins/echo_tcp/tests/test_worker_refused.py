"""Learners that refuse a worker, and learners that break the format: both errors are final and have a clear text."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
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
    JobEnded,
    ProtocolError,
    SecurityError,
    SpecError,
)
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import HEADER, Kind, frame
from echo_net.handshake import ServerHandshake
from echo_tcp.transport import TcpTransport
from echo_testing.processes import until


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


def refusing(port: int, code: str) -> tuple[socket.socket, threading.Thread]:
    """Refuses everybody at this port, until the socket is closed."""
    listener = socket.create_server(("127.0.0.1", port))

    def run() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.recv(65536)
                    sock.sendall(ServerHandshake(Spec.from_example(NARROW)).refuse(code, "the learner has ended the job"))

    thread = threading.Thread(target=run)
    thread.start()
    return listener, thread


def test_a_worker_that_comes_back_when_the_job_has_ended_is_told_so(port: int) -> None:
    with WireLearner(NARROW, port=port) as first:
        worker = connect(first)
        first.may_ack.clear()
        worker.send(narrow(0))
        first.close()
    listener, thread = refusing(first.port, "ended")
    until(lambda: worker.ended, "it is told")
    with pytest.raises(JobEnded, match="1 sample was not acknowledged"):
        worker.wait()
    worker.close()
    with pytest.raises(HandshakeRefused) as caught:  # one that was never connected waits, as for every learner that is not there
        raise worker_that_starts(first.port)
    assert caught.value.code == "ended"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def worker_that_starts(port: int) -> BaseException:
    """The reason why a worker that starts now gives up, after half a second."""
    with pytest.raises(EchoTimeoutError, match="within 0.5 s") as caught:
        TcpTransport.connect(Address("tcp", "127.0.0.1", port), Spec.from_example(NARROW), timeout=0.5)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


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
#: The same, at the beginning of a link: there any ACK is allowed.
AT_ONCE = {name: data for name, data in GARBAGE.items() if name != "ack of the future"}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_link_on_which_the_format_was_broken_is_replaced(data: bytes) -> None:
    """A damaged byte may have done it."""
    with WireLearner(NARROW) as learner, connect(learner) as worker:
        worker.send(narrow(0))
        worker.wait()
        learner.say(data)
        learner.until(lambda: learner.links == 2)
        worker.send(narrow(1))
        worker.wait()
        assert numbers(learner) == [0, 1] and worker.stats()["reconnects"] == 1


@pytest.mark.parametrize("data", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_learner_that_breaks_the_format_each_time_is_left(data: bytes) -> None:
    with WireLearner(NARROW) as learner:
        worker = connect(learner)
        worker.send(narrow(0))
        worker.wait()
        learner.greeting = lambda done: frame(Kind.ACK, seq=done) + data
        learner.say(data)
        with pytest.raises(ProtocolError, match=f"{learner.port}.*3 connections in a row"):
            worker.weights(20)
        with pytest.raises(ProtocolError):
            for i in range(100):
                worker.send(narrow(i))
        worker.close()
        assert learner.links == 3


@pytest.mark.parametrize("data", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_a_learner_that_breaks_the_format_at_first_is_left_at_once(data: bytes) -> None:
    with WireLearner(NARROW) as learner:
        learner.greeting = lambda done: data
        with pytest.raises(ProtocolError, match=str(learner.port)):
            connect(learner)
        assert learner.links == 1


def test_acknowledgements_cannot_be_taken_back() -> None:
    with WireLearner(NARROW) as learner:
        worker = connect(learner)
        for i in range(3):
            worker.send(narrow(i))
        worker.wait()
        learner.acknowledge(1)
        learner.until(lambda: learner.links == 2)
        worker.send(narrow(3))
        worker.wait()
        worker.close()
        assert numbers(learner) == [0, 1, 2, 3]
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
