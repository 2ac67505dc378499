"""Links that are lost and restored: no sample is lost, and none arrives twice."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from numbered import NARROW, WIDE, narrow, numbers
from wire_learner import WireLearner, connect

from echo_core.base.errors import ConnectionClosedError
from echo_core.spec.spec import Spec
from echo_testing.processes import until


@pytest.mark.parametrize("example", [NARROW, WIDE], ids=["small", "large"])
def test_dropped_again_and_again_in_the_middle_of_frames(example: Any) -> None:
    total = 4000 if example is NARROW else 250
    each = Spec.from_example(example).sample_bytes
    rng = random.Random(7)
    with WireLearner(example, read_bytes=1 << 15) as learner, connect(learner) as worker:
        learner.cut = lambda: rng.randrange(3 * each + 60) if rng.random() < 0.07 else None
        threads = [
            threading.Thread(
                target=lambda t: [worker.send(narrow(i, example)) for i in range(t, total, 2)],
                args=(t,),
            )
            for t in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        until(lambda: learner.links > 3 or worker.send(narrow(total, example)), "drops")
        learner.cut = lambda: None
        worker.wait()
        got = numbers(learner)
        assert worker.stats()["reconnects"] >= 3 and worker.stats()["learner_restarts"] == 0
        for t in range(2):
            assert [i for i in got if i < total and i % 2 == t] == list(range(t, total, 2))
        assert len(got) == worker.stats()["samples"]


def test_the_resume_point_may_lie_inside_a_frame() -> None:
    with WireLearner(NARROW) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        worker.send(narrow(0))
        learner.until(lambda: len(learner.frames) == 1)
        for i in range(1, 20):
            worker.send(narrow(i))
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
    with WireLearner(NARROW) as learner, connect(learner) as worker:
        learner.may_ack.clear()
        for i in range(10):
            worker.send(narrow(i))
            worker.flush()
        learner.until(lambda: len(learner.rows) == 10)
        learner.hang_up()
        worker.wait()  # only by the resume point
        assert numbers(learner) == list(range(10)) and len(learner.frames) == 10
        learner.may_ack.set()


def test_a_learner_on_the_same_port_is_carried_on_with(port: int) -> None:
    with WireLearner(NARROW, port=port) as first:
        worker = connect(first)
        for i in range(5):
            worker.send(narrow(i))
        worker.wait()
        first.close()
        for i in range(5, 9):
            worker.send(narrow(i))
        with pytest.raises(ConnectionClosedError, match=r"no connection .* 4 samples"):
            worker.wait(timeout=0.1)
        assert worker.stats()["connected"] is False
        with WireLearner(NARROW, port=first.port, incarnation="02" * 16) as second:
            worker.wait()
            assert numbers(second) == [5, 6, 7, 8] and second.frames[0][0] == 6
            stats = worker.stats()
            assert (stats["reconnects"], stats["learner_restarts"]) == (1, 1)
            worker.close()


def test_a_client_id_of_a_former_life_numbers_on() -> None:
    name = "ab" * 16
    with WireLearner(NARROW) as learner:
        with connect(learner, client_id=name) as worker:
            worker.send(narrow(0))
            worker.send(narrow(1))
        with connect(learner, client_id=name) as worker:
            worker.send(narrow(2))
            worker.wait()
            assert worker.stats()["acknowledged"] == 1
            learner.hang_up()
            worker.send(narrow(3))
            worker.wait()
        assert numbers(learner) == [0, 1, 2, 3]
        assert [first for first, _ in learner.frames] == [1, 2, 3, 4]
