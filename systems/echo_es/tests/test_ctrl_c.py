"""Ctrl-C ends a worker at once, whatever it does. The evaluations here take ten minutes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from echo_es import ESServer, SepCMAES
from echo_testing.processes import LONG, until

pytestmark = pytest.mark.needs("echo-tcp")

PROGRAM = """
import asyncio, logging, signal, sys, time
from echo_es import Eval, Worker, run_worker

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" makes processes ignore it
logging.basicConfig(format="%(message)s", stream=sys.stdout)

def long():
    print("begun", flush=True)
    time.sleep(600)

def evaluate(thetas, epoch):
    long()

class Plain(Worker):
    def initialize(self):
        return {"a": 1}

    def evaluate(self, epoch, slices):
        long()

    def optimize(self, epoch, rewards):
        return self.state

    def on_stop(self, cancel):
        print("stopped", flush=True)

class InAsync(Plain):
    async def evaluate(self, epoch, slices):
        print("begun", flush=True)
        await asyncio.sleep(600)

class Initializing(Plain):
    def initialize(self):
        long()

kind, address = sys.argv[1:]
try:
    if kind == "run_worker":
        run_worker(address, evaluate)
    else:
        asyncio.run(globals()[kind](address, 2).start())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
KINDS = ["run_worker", "Plain", "InAsync", "Initializing"]


class Worker:
    """A process that works as PROGRAM does. Leaving the block kills it."""

    def __init__(self, kind: str, address: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, kind, address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def interrupt(self) -> None:
        """Press Ctrl-C once. Fail unless the process ends by it and says nothing else."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=LONG)
        assert (said, self.process.returncode) == ("interrupted\n", 0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def serving(kind: str) -> ESServer:
    strategy = SepCMAES(2, 6) if kind == "run_worker" else None
    return ESServer(None if strategy else 6, "tcp://127.0.0.1:0", strategy=strategy, grace=10 * LONG)


@pytest.mark.parametrize("kind", KINDS)
def test_in_an_evaluation(kind: str) -> None:
    """Others get its individuals at once, and not after the time of grace."""
    with serving(kind) as server, Worker(kind, str(server.address)) as worker:
        assert worker.line() == "begun\n"
        assert len(server.coordinator.members()) == 1
        worker.interrupt()
        until(lambda: not server.coordinator.members(), "the worker has left")


@pytest.mark.parametrize("kind", ["run_worker", "Plain"])
def test_while_it_waits_for_a_task(kind: str) -> None:
    with serving(kind) as server:
        coordinator = server.coordinator
        member = coordinator.join("somebody", 6)
        coordinator.take(member, lambda task: True)
        with Worker(kind, str(server.address)) as worker:
            until(lambda: any(one.since and one.task is None for one in coordinator.members()), "the worker waits")
            worker.interrupt()
            until(lambda: coordinator.members() == [member], "the worker has left")


@pytest.mark.parametrize("kind", ["run_worker", "Plain"])
def test_while_nobody_answers(kind: str) -> None:
    """It has said whom it waits for."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with Worker(kind, address) as worker:
            assert worker.line() == f"there is no server at {address} yet; this worker tries for 60 s to reach it\n"
            worker.interrupt()
