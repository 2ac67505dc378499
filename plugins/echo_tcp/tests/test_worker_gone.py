"""Learners that are gone, or were never there: no call waits for ever."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from typing import Any

import pytest
from numbered import NARROW, narrow, numbers
from wire_learner import WireLearner, connect

from echo_core.base.address import Address
from echo_core.base.errors import (
    ClosedError,
    ConnectionClosedError,
    EchoTimeoutError,
)
from echo_core.spec.spec import Spec
from echo_tcp.transport import TcpTransport
from echo_testing.processes import until


def test_a_learner_that_does_not_return_ends_every_call() -> None:
    with WireLearner(NARROW) as learner:
        worker = connect(learner, timeout=0.4, max_inflight_msgs=2)
        learner.may_ack.clear()
        worker.send(narrow(0))
        worker.send(narrow(1))
        outcome: list[BaseException] = []

        def ends(call: Any) -> None:
            try:
                call()
            except ConnectionClosedError as error:
                outcome.append(error)

        calls = [
            lambda: worker.send(narrow(2), 60),
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
        for call in (lambda: worker.send(narrow(2)), worker.flush, worker.wait, worker.weights):
            with pytest.raises(ConnectionClosedError, match="not back within"):
                call()
        with pytest.raises(ConnectionClosedError, match="2 samples"):
            worker.close()
        worker.close()


def test_without_reconnect_a_lost_link_is_final() -> None:
    with WireLearner(NARROW) as learner:
        worker = connect(learner, reconnect=False)
        worker.send(narrow(0))
        worker.wait()
        learner.hang_up()
        until(lambda: not worker.stats()["connected"], "the loss is noticed")
        with pytest.raises(ConnectionClosedError, match="closed the connection"):
            worker.wait(30)
            for i in itertools.count():
                worker.send(narrow(i))
                time.sleep(0.01)
        assert learner.links == 1
        with pytest.raises((ConnectionClosedError, ClosedError)):
            worker.wait()
        try:
            worker.close()
        except ConnectionClosedError as error:
            assert "not acknowledged" in str(error)


def test_a_learner_that_was_never_there(port: int) -> None:
    address = Address("tcp", "127.0.0.1", port)
    with pytest.raises(EchoTimeoutError, match=r"(?s)could not reach tcp://.*refused.*start the"):
        TcpTransport.connect(address, Spec.from_example(NARROW), timeout=0.2)


def test_a_learner_that_starts_later_is_found(port: int) -> None:
    learners: list[WireLearner] = []
    starter = threading.Timer(0.2, lambda: learners.append(WireLearner(NARROW, port=port)))
    starter.start()
    with TcpTransport.connect(Address("tcp", "localhost", port), Spec.from_example(NARROW)) as it:
        it.send(narrow(0))
        it.wait()
    starter.join()
    assert numbers(learners[0]) == [0]
    learners[0].close()


def test_a_listener_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("tcp", "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(EchoTimeoutError, match="handshake in time"):
            TcpTransport.connect(address, Spec.from_example(NARROW), timeout=0.3)
