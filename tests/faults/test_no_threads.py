"""A process that can start no further thread is told so at once, in our words, whichever library of the transport would need one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from echo_core import Server

pytestmark = pytest.mark.needs("echo-tcp", "echo-shm", "echo-grpc", "echo-rdma", "echo-samplers")

EXAMPLE = {"x": np.zeros(4, np.float32)}
TOKEN = "the-token-of-these-tests-long-enough"
#: Threads of Python get stacks so large that the address space has room for a few of them only.
CHILD = """
import resource, sys, threading
import numpy as np
from echo_core import Client, EchoError, Server
from echo_core.base.errors import NoThreadError
from echo_core.plugins import discovery

which, address, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
example, token = {"x": np.zeros(4, np.float32)}, sys.argv[4]
scheme = address.partition(":")[0]
discovery.transport_class(scheme)
if scheme == "rdma":
    from echo_rdma import library
    library.context(True)  # loading it takes room too
threading.stack_size(1 << 30)
with open("/proc/self/statm") as figures:
    size = int(figures.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + room * ((1 << 30) + (1 << 20)) + (1 << 29), resource.RLIM_INFINITY))
try:
    if which == "learner":
        Server(example, 1, address, token=token).start()
    else:
        Client(address, example, token=token, timeout=10)
except EchoError as error:
    assert isinstance(error, NoThreadError) and isinstance(error, RuntimeError), repr(error)
    print(error)
"""


def told(which: str, address: str, room: int) -> str:
    """What a process says that can start `room` threads."""
    command = [sys.executable, "-c", CHILD, which, address, str(room), TOKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("scheme", ["tcp", "tcps", "shm", "grpc", "rdma"])
def test_a_learner_is_not_started(scheme: str) -> None:
    said = told("learner", f"shm://no-threads-{os.getpid()}" if scheme == "shm" else f"{scheme}://127.0.0.1:0", 1)
    assert said.startswith(f"a listener of {scheme} needs 3 more threads, and only 1 could be started; raise the limit")


@pytest.mark.parametrize("scheme, needed", [("tcp", 2), ("tcps", 3), ("shm", 3), ("grpc", 3), ("rdma", 4)])
def test_a_worker_is_not_connected(scheme: str, needed: int) -> None:
    listen: Any = f"shm://no-threads-{os.getpid()}" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    with Server(EXAMPLE, 1, listen, token=TOKEN) as server:
        said = told("worker", str(server.address), 1)
    assert said.startswith(f"a connection over {scheme} needs {needed} more threads, and only 1 could be started; raise the limit")


@pytest.mark.parametrize("which", ["learner", "worker"])
def test_grpcio_is_not_begun_without_its_threads(which: str) -> None:
    """It would print lines for twelve seconds, and abort the process."""
    with Server(EXAMPLE, 1, "grpc://127.0.0.1:0", token=TOKEN) as server:
        said = told(which, "grpc://127.0.0.1:0" if which == "learner" else str(server.address), 6)
    assert said.startswith("grpcio needs ") and "raise the limit" in said
