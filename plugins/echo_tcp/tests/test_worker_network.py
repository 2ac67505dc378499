"""A worker can tell networks that lose everything from learners that are only slow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire_learner import WireLearner

from echo_core.base.address import Address
from echo_core.base.errors import ConnectionClosedError
from echo_core.spec.spec import Spec
from echo_core.wire.protocol import REPLY, Kind, frame
from echo_tcp.transport import TcpTransport
from echo_testing.processes import until

HERE = Path(__file__).resolve().parent
EXAMPLE = {"a": np.zeros(9000, np.int64)}
LEARNER = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np
from wire_learner import WireLearner
learner = WireLearner({{"a": np.zeros(9000, np.int64)}}, host="0.0.0.0", port=5555)
print("ready", flush=True)
for _ in sys.stdin:
    print(*[int(row[0][-1]) for row in learner.rows], flush=True)
"""


def sample(i: int) -> dict[str, np.ndarray]:
    return {"a": np.full(9000, i)}


def test_a_learner_that_is_alive_but_reads_nothing_is_not_given_up() -> None:
    with WireLearner(EXAMPLE, receive_buffer=4096, read_bytes=4096) as learner, TcpTransport.connect(
        learner.address, learner.spec, silence=1.0, window_bytes=8 << 20
    ) as worker:
        learner.may_read.clear()
        for i in range(40):
            worker.send(sample(i))
        for _ in range(40):  # its window is closed for several times the silence that is allowed, but it shows that it lives
            learner.say(frame(Kind.PING, flags=REPLY))
            time.sleep(0.1)
        learner.may_read.set()
        worker.wait()
        assert [int(row[0][0]) for row in learner.rows] == list(range(40))
        assert worker.stats()["reconnects"] == 0


class Far:
    """Another network: a namespace at the end of a virtual cable, with a learner in it."""

    host = "10.213.87.2"

    def __init__(self, name: str) -> None:
        self.name = name
        ip = self._ip
        ip("netns", "add", name)
        ip("link", "add", f"{name}-a", "type", "veth", "peer", "name", f"{name}-b", "netns", name)
        ip("addr", "add", "10.213.87.1/24", "dev", f"{name}-a")
        ip("link", "set", f"{name}-a", "up")
        ip("-n", name, "link", "set", f"{name}-b", "up")
        self.appear()
        self.learner = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", LEARNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.learner.stdout is not None and self.learner.stdout.readline() == "ready\n"

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def appear(self) -> None:
        self._ip("-n", self.name, "addr", "add", f"{self.host}/24", "dev", f"{self.name}-b")

    def vanish(self) -> None:
        """Packets still arrive there, but the network no longer knows the connection."""
        self._ip("-n", self.name, "addr", "del", f"{self.host}/24", "dev", f"{self.name}-b")

    def numbers(self) -> list[int]:
        assert self.learner.stdin is not None and self.learner.stdout is not None
        self.learner.stdin.write("\n")
        self.learner.stdin.flush()
        return [int(word) for word in self.learner.stdout.readline().split()]

    def end(self) -> None:
        if hasattr(self, "learner"):
            self.learner.kill()
            self.learner.communicate()
        # The cable is deleted explicitly, because the kernel may take long to end a namespace.
        for command in (["link", "del", f"{self.name}-a"], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], check=False, capture_output=True)


@pytest.fixture
def far() -> Iterator[Far]:
    place = Far.__new__(Far)
    try:
        place.__init__("echo-far")  # type: ignore[misc]
    except (OSError, subprocess.CalledProcessError) as error:
        place.end()
        pytest.skip(f"no network namespaces here: {error}")
    yield place
    place.end()


def connect(far: Far, **options: Any) -> Any:
    address = Address("tcp", far.host, 5555)
    return TcpTransport.connect(address, Spec.from_example(EXAMPLE), silence=0.5, **options)


def test_a_network_that_comes_back(far: Far) -> None:
    with connect(far) as worker:
        for i in range(20):
            worker.send(sample(i))
        worker.wait()
        far.vanish()
        for i in range(20, 40):
            worker.send(sample(i))
        until(lambda: not worker.stats()["connected"], "the silence is noticed")
        far.appear()
        worker.wait()
        assert far.numbers() == list(range(40))
        assert worker.stats()["reconnects"] == 1 and worker.stats()["learner_restarts"] == 0


def test_a_network_that_does_not_come_back(far: Far) -> None:
    worker = connect(far, timeout=2.0)
    worker.send(sample(0))
    worker.wait()
    far.vanish()
    worker.send(sample(1))
    with pytest.raises(ConnectionClosedError, match="fell silent.*not back within 2 s"):
        worker.wait(30)
    with pytest.raises(ConnectionClosedError, match="1 sample not acknowledged"):
        worker.close()
