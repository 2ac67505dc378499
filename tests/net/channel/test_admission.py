"""Handshakes, refusals, and learners that are not there."""

from __future__ import annotations

import errno
import queue
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from local_net import connect, net, serve

from echo_core.base.errors import EchoTimeoutError, HandshakeRefused, SecurityError, SpecError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import PROTOCOL_VERSION
from echo_net.channel import uplink as uplink_module
from echo_testing.processes import returns, until
from echo_testing.samples import example, stacked

pytestmark = pytest.mark.needs("echo-samplers")

HELLO = b"ECHO" + bytes((PROTOCOL_VERSION, 1, 0, 0))


def test_a_worker_may_be_there_before_the_learner() -> None:
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(returns(connect)))
    thread.start()
    time.sleep(0.1)
    with serve():
        thread.join()
        outcome[0].close()


def test_a_learner_that_is_not_there_is_reported_with_the_reason() -> None:
    with pytest.raises(EchoTimeoutError, match=r"waits for a learner at local://learner: nobody listens .* 0.2 s; start the learner, or correct the address"):
        connect(timeout=0.2)


def test_a_learner_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    net.listening["learner"] = queue.SimpleQueue()  # takes connections, never reads
    monkeypatch.setattr(uplink_module, "ATTEMPT_SECONDS", 0.1)
    with pytest.raises(EchoTimeoutError, match=r"the handshake with local://learner took longer than 0.1 s"):
        connect(timeout=1)
    while not net.listening["learner"].empty():
        net.listening["learner"].get().close()  # type: ignore[union-attr]


def test_whatever_an_acceptor_raises_others_are_let_in_after_it(caplog: pytest.LogCaptureFixture) -> None:
    with serve():
        net.accepting.append(ValueError("a client said something odd"))
        for _ in range(3):  # the first is let in before the acceptor raises
            connect().close()
    assert "cannot accept clients: ValueError('a client said something odd')" in caplog.text


def test_wrong_token_wrong_spec_and_no_token_raise_at_once() -> None:
    with serve() as server:
        with pytest.raises(SecurityError, match="ECHO_TOKEN"):
            connect(token=b"another-token-of-the-tests")
        with pytest.raises(SecurityError, match="asks for a token"):
            connect(token=None)
        with pytest.raises(SpecError, match=r"filler.*uint8.*here.*uint8.*learner"):
            connect(Spec.from_example(example(7)))
        with pytest.raises(HandshakeRefused) as caught:
            connect(role="spectator")
        assert caught.value.code == "role"
        until(lambda: server.stats()["transport/local/refused"] >= 3, "they are counted")
        assert server.peers() == []


def test_a_learner_without_authentication() -> None:
    with serve(auth=False) as server:
        with pytest.raises(SecurityError, match="may be anybody"):
            connect()
        with connect(token=None) as connection:
            connection.send_batch(stacked(0, 0, 2))
            assert server.sample(10)
        connect(allow_unauthenticated=True).close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, HELLO + b"\xff\xff\xff\xff", b""])
def test_strangers_are_turned_away(data: bytes) -> None:
    with serve(handshake_timeout=0.3) as server, net.dial("learner") as stranger, net.dial("learner") as hasty:
        hasty.close()
        stranger.sendall(data)
        stranger.settimeout(10)
        with suppress(ConnectionError):
            assert stranger.recv(100) == b""
        with connect() as connection:
            connection.send_batch(stacked(0, 0, 2))
            assert server.sample(10)


def test_one_too_many_is_told_so_and_let_in_when_there_is_room() -> None:
    with serve(max_connections=1):
        first = connect()
        with pytest.raises(HandshakeRefused, match=r"\(busy\): this learner serves 1 clients already"):
            connect(timeout=0.3)
        first.close()
        connect().close()


def test_out_of_file_descriptors_the_listener_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net.accepting = [OSError(errno.EMFILE, "Too many open files")] * 3
    with serve():
        connect().close()
        assert net.accepts <= 3 + 2 + 1


def test_an_address_that_is_taken() -> None:
    with serve(), pytest.raises(OSError, match="local://learner is taken"):
        serve()
