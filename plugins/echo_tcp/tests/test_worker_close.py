"""The end of a connection: which samples `close()` delivers, which it gives up, and which callers it wakes."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
from numbered import SMALL, numbers, small
from wire_learner import WireLearner, connect

from echo_core.base.errors import ClosedError, EchoTimeoutError
from echo_core.base.waiting import Wait
from echo_tcp import _worker
from echo_testing.processes import until


def test_close_delivers_says_goodbye_and_is_final(kind: tuple[Any, Any]) -> None:
    example, make = kind
    with WireLearner(example) as learner:
        worker = connect(learner)
        for i in range(200):
            worker.send(make(i))
        worker.close()
        assert numbers(learner) == list(range(200)) and learner.goodbyes == ["closed"]
        worker.close()
        for call in (
            lambda: worker.send(make(0)),
            lambda: worker.send_batch({k: v[None] for k, v in example.items()}),
            worker.flush,
            worker.wait,
            worker.weights,
            lambda: worker.request("x", {}),
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()
        assert worker.stats()["acknowledged"] == 200


def test_close_says_how_much_it_could_not_deliver() -> None:
    with WireLearner(SMALL) as learner:
        learner.may_ack.clear()
        worker = connect(learner)
        for i in range(7):
            worker.send(small(i))
        with pytest.raises(EchoTimeoutError, match="7 samples"):
            worker.close(timeout=0.1)
        worker.close()
        with pytest.raises(ClosedError):
            worker.send(small(0))


@pytest.mark.parametrize("may_ack, given, farewell", [(False, 0.0, 0.05), (False, 0.3, 0.05), (False, 1.2, 0.05), (True, 600.0, 1.0)])
def test_the_goodbye_has_only_the_rest_of_the_time(may_ack: bool, given: float, farewell: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with WireLearner(SMALL) as learner:
        worker = connect(learner)
        if not may_ack:
            learner.may_ack.clear()
        worker.send(small(0))
        farewells: list[tuple[float, float]] = []

        class Recorded(Wait):
            def farewell(self) -> float:
                farewells.append((self.timeout, super().farewell()))
                return farewells[-1][1]

        monkeypatch.setattr(_worker, "Wait", Recorded)
        with nullcontext() if may_ack else pytest.raises(EchoTimeoutError, match="closed with 1 "):
            worker.close(given)
        assert farewells == [(given, farewell)]


def test_close_cuts_other_calls_short() -> None:
    with WireLearner(SMALL) as learner:
        learner.may_ack.clear()
        worker = connect(learner, max_inflight_msgs=1)
        worker.send(small(0))
        outcome: list[BaseException] = []

        def blocked(call: Any) -> None:
            try:
                call()
            except ClosedError as error:
                outcome.append(error)

        calls = [lambda: worker.send(small(1)), worker.weights, lambda: worker.request("x", {})]
        threads = [threading.Thread(target=blocked, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        learner.until(lambda: learner.subscriptions == [0])
        until(lambda: worker.stats()["send_blocked"] == 1, "send() blocks")
        with pytest.raises(EchoTimeoutError):
            worker.close(timeout=0)
        for thread in threads:
            thread.join(20)
        assert len(outcome) == 3


def test_forgotten_without_close() -> None:
    with WireLearner(SMALL) as learner:
        worker = connect(learner)
        worker.send(small(0))
        with pytest.warns(ResourceWarning, match="close"):
            del worker
        assert numbers(learner) == [0]
