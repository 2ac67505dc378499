"""A worker's process that is interrupted, forked, killed, or that ends without a goodbye."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from numbered import NARROW, WIDE, narrow, numbers
from wire_learner import WireLearner, connect

from echo_core.base.errors import (
    ForkError,
    SpecError,
)
from echo_core.spec.spec import Spec
from echo_tcp.transport import TcpTransport
from echo_testing.processes import descriptors, forked, interrupted, settled, tasks

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
    # `close` gives the remaining samples up; in the other cases that happens at the end of the interpreter.
    interrupted(PRELUDE, call, tmp_path)


def test_a_fork_leaves_the_connection_to_the_parent() -> None:
    with WireLearner(NARROW) as learner, connect(learner) as worker:
        worker.send(narrow(0))

        def child() -> None:
            for call in (
                lambda: worker.send(narrow(9)),
                lambda: worker.send_batch({k: v[None] for k, v in NARROW.items()}),
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
        for i in range(1, 100):
            worker.send(narrow(i))
        worker.wait()
        assert numbers(learner) == list(range(100))
        assert worker.stats()["reconnects"] == 0


def test_a_forked_child_may_drop_the_connection() -> None:
    with WireLearner(NARROW) as learner:
        workers = [connect(learner)]
        workers[0].send(narrow(0))

        def child() -> None:
            workers.clear()
            gc.collect()

        forked(child)
        workers[0].send(narrow(1))
        workers.pop().close()
        assert numbers(learner) == [0, 1]


def test_a_worker_killed_in_the_middle_leaves_whole_samples() -> None:
    code = textwrap.dedent(
        """
        import sys, numpy as np
        from echo_core.base.address import Address
        from echo_core.spec.spec import Spec
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


@pytest.mark.parametrize("warnings", ["always", "error"])
def test_an_interpreter_that_ends_without_close_still_delivers(warnings: str) -> None:
    code = textwrap.dedent(
        """
        import sys, numpy as np
        from echo_core.base.address import Address
        from echo_core.spec.spec import Spec
        from echo_tcp.transport import TcpTransport
        example = {"a": np.zeros(3, np.int64), "b": np.zeros((), np.int64)}
        worker = TcpTransport.connect(Address.parse(sys.argv[1]), Spec.from_example(example))
        for i in range(2000):
            worker.send({"a": np.full(3, i), "b": np.array(i)})
        """
    )
    with WireLearner(NARROW) as learner:
        command = [sys.executable, "-W", warnings, "-c", code, str(learner.address)]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True, check=True)
        assert numbers(learner) == list(range(2000))
        assert "ResourceWarning: unclosed connection to tcp://" in done.stderr


def test_nothing_is_left_behind() -> None:
    with WireLearner(NARROW) as learner:
        connect(learner).close()
        gc.collect()
        learner.until(lambda: learner.goodbyes == ["closed"])
        files, threads = descriptors(), tasks()
        for _ in range(5):
            with connect(learner) as worker:
                worker.send(narrow(0))
            with pytest.raises(SpecError):
                TcpTransport.connect(learner.address, Spec.from_example(WIDE))
        del worker
        settled(descriptors, files, "descriptors")
        settled(tasks, threads, "threads")
