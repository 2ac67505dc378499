"""A server's process: forked, interrupted, and other threads while one waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filling import filled

from echo_core import ForkError
from echo_testing.processes import forked, interrupted, returns
from echo_testing.samples import sample, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]  # a server needs one


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    server = filled(4)
    batch = server.sample(timeout=5).batch

    def child() -> None:
        calls = (
            lambda: server.submit(sample(0, 0), timeout=1),
            lambda: server.submit_batch(stacked(0, 0, 2), timeout=1),
            lambda: server.sample(timeout=1),
            lambda: next(server.dataset_iter(timeout=1)),
            lambda: server.publish(np.zeros(1)),
            server.start,
        )
        for call in calls:
            with pytest.raises(ForkError, match="fork"):
                call()
        assert batch["number"].tolist() == [0, 1]
        server.close()

    forked(child)
    assert not server.closed
    server.submit_batch(stacked(0, 4, 2), timeout=0)
    assert server.sample(timeout=5).batch["number"].tolist() == [2, 3]
    assert batch["number"].tolist() == [0, 1]


def test_forking_while_threads_wait_hangs_nobody() -> None:
    server = filled(0)
    learner = threading.Thread(target=server.sample, daemon=True)
    learner.start()
    time.sleep(0.05)

    def child() -> None:
        fresh = filled(2)
        assert fresh.sample(timeout=5).batch["number"].tolist() == [0, 1]

    forked(child)
    server.close()
    learner.join(20)
    assert not learner.is_alive()


SETUP = """
import numpy as np
from echo_core import Server
from echo_core.server.sink import ServerSink
from echo_testing.samples import example, sample, stacked

server = Server(example(), 1, num_buffers=2)
def fill():
    server.submit_batch(stacked(0, 0, 2), timeout=0)
    return server
"""


@pytest.mark.parametrize(
    "call",
    [
        "server.sample()",
        "server.sample(timeout=1000)",
        "list(server.dataset_iter())",
        "fill().submit(sample(0, 2), timeout=None)",
        "fill().submit(sample(0, 2), timeout=1000)",
        "fill().submit_batch(stacked(0, 2, 100), timeout=None)",
        "ServerSink(fill()).claim()",
    ],
)
def test_ctrl_c_ends_every_wait(call: str, tmp_path: Path) -> None:
    interrupted(SETUP, call, tmp_path)


def test_a_wait_without_end_lets_other_threads_run() -> None:
    server = filled(0, batch_size=1)
    outcome = threading.Thread(target=lambda: server.sample(), daemon=True)
    outcome.start()
    assert returns(lambda: sum(range(10_000))) == sum(range(10_000))
    server.submit(sample(0, 0))
    outcome.join(20)
    assert not outcome.is_alive()
