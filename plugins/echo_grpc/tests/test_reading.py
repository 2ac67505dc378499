"""Who reads the connections: the threads that wait for messages, or a pool of grpcio's that wakes them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from echo_grpc.reading import VARIABLE, experiments

#: 64 messages of a megabyte, on two cores; prints how often threads of grpcio's own pool went to sleep.
EXCHANGE = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import numpy as np
from echo_core import Client, Server

def sleeps(thread):
    try:
        with open(f"/proc/self/task/{thread}/status") as lines:
            told = dict(line.split(":", 1) for line in lines)
    except FileNotFoundError:
        return 0
    return int(told["voluntary_ctxt_switches"]) if told["Name"].strip().startswith("event_engine") else 0

sample = {"frame": np.zeros(1 << 20, np.uint8)}
with Server(sample, 4, "grpc://127.0.0.1:0", token="t" * 32).start() as server, Client(server.address, sample, token="t" * 32) as client:
    for _ in range(16):
        for _ in range(4):
            client.send(sample)
        server.sample(timeout=30)
    print(sum(map(sleeps, os.listdir("/proc/self/task"))))
"""


def run(code: str, told: str | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | ({} if told is None else {VARIABLE: told})
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize(
    ("release", "cores", "told"),
    [
        ("1.78.1", 2, ""),  # no pool
        ("1.80.0", 1, "-event_engine_client,-event_engine_listener"),
        ("1.85.1", 2, "-event_engine_client,-event_engine_listener"),
        ("1.85.0rc1", 3, "-event_engine_client"),  # a learner has cores for its pool, a worker one connection
        ("1.86.0", 2, ""),  # nobody knows
        ("2.0.0", 2, ""),
        ("unknown", 2, ""),
    ],
)
def test_releases_that_read_in_a_pool_are_told_not_to(release: str, cores: int, told: str) -> None:
    assert experiments(release, cores) == told


@pytest.mark.skipif(not experiments(version("grpcio"), 2), reason="this grpcio reads in no pool, or is newer than what is known of it")
def test_whoever_waits_for_a_message_reads_it() -> None:
    assert 3 * int(run(EXCHANGE)) < int(run(EXCHANGE, told=""))  # some 40 and 450: the pool keeps the time as well


def test_the_environment_is_as_it_was() -> None:
    """A child's gRPC may be another release, which knows nothing of these names."""
    code = f"import os, echo_core.plugins as p; p.transport_class('grpc'); print(os.environ.get({VARIABLE!r}))"
    assert run(code) == "None"
    assert run(code, told="-keepalive_fix") == "-keepalive_fix"
