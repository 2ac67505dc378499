"""All workers of a machine send into one queue in shared memory. If a worker blocks it for good, the learner starts UCX anew."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_core import Client, Queue, Server, Table
from echo_core.base.errors import EchoTimeoutError
from echo_rdma.transport import RdmaTransport
from echo_testing import workers
from echo_testing.processes import stop, until
from echo_testing.samples import Tally, example, stacked

LEASE = {"heartbeat": 0.2, "lease": 1.5}
TOKEN = "the-token-of-these-tests-long-enough"
COPIES = "ucp_am_eager_single_bcopy_reply_pack"  # UCX calls it between claiming an element of the queue and marking it
VICTIM = "import sys; from echo_core import Client; from echo_testing.samples import example; Client(sys.argv[1], example())"
spawning = multiprocessing.get_context("spawn")

pytestmark = [pytest.mark.usefixtures("ucx", "shared_memory"), pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_TOKEN", TOKEN)


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    running: list[Any] = []
    yield running
    for process in running:
        process.kill()
        process.wait() if isinstance(process, subprocess.Popen) else process.join()


def worker(processes: list[Any], server: Server, maker: int) -> Any:
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=workers.pour, args=(str(server.address), maker, 48, False, theirs, dict(LEASE)), daemon=True)
    process.said = ours  # type: ignore[attr-defined]  # open for as long as it runs: it says something when it is under way
    processes.append(process)
    process.start()
    return process


def take(server: Server, tally: Tally) -> bool:
    try:
        one = server.sample(timeout=0.1)
    except EchoTimeoutError:
        return False
    assert one is not None
    tally.add(one.batch)
    return True


def restarts(server: Server) -> float:
    return float(server.stats()["transport/rdma/restarts"])


def complete(tally: Tally) -> None:
    for maker, numbers in tally.numbers.items():
        assert numbers == list(range(len(numbers))), f"worker {maker}: lost, doubled or out of order"


def block(processes: list[Any], address: object, how: str, output: Path) -> None:
    """A worker that is killed or held in the middle of a message to `address`."""
    if shutil.which("gdb") is None:
        pytest.skip("gdb is not installed: it stops a worker at the right place")
    commands = ["set debuginfod enabled off", "set breakpoint pending on", "set confirm off", f"break {COPIES}", "run"]
    commands += ["kill", "shell sleep 0"] if how == "killed" else ["shell sleep 120"]
    line = ["gdb", "-nx", "-batch", *(part for command in commands for part in ("-ex", command)), "--args", sys.executable, "-c", VICTIM, str(address)]
    with output.open("w") as file:
        held = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    processes.append(held)
    until(lambda: "hit Breakpoint 1" in output.read_text() or held.poll() is not None, "the worker is in the middle of a message", 60)
    if "hit Breakpoint 1" not in output.read_text():
        pytest.skip(f"gdb did not get there: {output.read_text()[-300:]}")
    if how == "killed":
        held.wait(30)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_blocked_queue_is_replaced_and_all_resume(processes: list[Any], how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "echo")
    tally = Tally()
    with Server(example(), 4, RdmaTransport(port=0, **LEASE), num_buffers=8) as server:
        address = server.address
        worker(processes, server, 1)
        until(lambda: take(server, tally) and len(tally.numbers[1]) > 100, "the worker sends", 60)
        block(processes, address, how, tmp_path / "gdb")
        until(lambda: not take(server, tally) or restarts(server) > 0, "the queue is blocked", 20)
        until(lambda: take(server, tally) and restarts(server) == 1, "it sends again", 30)
        before = len(tally.numbers[1])
        with Client(address, example(), **LEASE) as other:
            other.send_batch(stacked(2, 0, 8))
            until(lambda: take(server, tally) and len(tally.numbers.get(2, [])) == 8 and len(tally.numbers[1]) > before + 100, "a new one, too", 20)
        assert server.address == address and "started anew" in caplog.text
        complete(tally)


def test_a_learner_goes_on_when_a_neighbour_has_blocked_the_queue(processes: list[Any], tmp_path: Path) -> None:
    """Its requests are lost with the former engine, and are sent again."""
    table = Table("queue", example(), capacity=4, sampler="fifo", rate_limiter=Queue(4), lease_timeout=3600)
    with Server(tables=[table], batch_size=1, transport=RdmaTransport(port=0, **LEASE)) as server, Client(server.address, example(), **LEASE) as client:
        server.submit_batch(stacked(1, 0, 2))
        drawn = client.sample(1)
        block(processes, server.address, "killed", tmp_path / "gdb")
        assert client.ack(drawn.keys, 30) == 1 and restarts(server) == 1
        assert client.sample(1, 30).batch["number"].tolist() == [1], "the acknowledged item is not lent again"


def test_a_queue_blocked_by_the_first_worker_lets_others_in(processes: list[Any], tmp_path: Path) -> None:
    tally = Tally()
    with Server(example(), 4, RdmaTransport(port=0, **LEASE), num_buffers=8) as server:
        block(processes, server.address, "killed", tmp_path / "gdb")
        with Client(server.address, example(), **LEASE, timeout=30) as other:
            other.send_batch(stacked(2, 0, 8))
            until(lambda: take(server, tally) and len(tally.numbers.get(2, [])) == 8, "another worker's samples", 20)
        assert restarts(server) == 1


def test_a_false_alarm_costs_a_reconnect_only(processes: list[Any]) -> None:
    """Every worker near the learner is stopped, but none in the middle of a message. For the learner this looks the same."""
    tally = Tally()
    with Server(example(), 4, RdmaTransport(port=0, **LEASE), num_buffers=8) as server:
        stopped = [worker(processes, server, maker) for maker in (1, 2)]
        until(lambda: take(server, tally) and all(len(tally.numbers.get(maker, [])) > 100 for maker in (1, 2)), "the workers send", 60)
        for process in stopped:
            stop(process.pid)
        until(lambda: not take(server, tally) and restarts(server) >= 1 and not server.peers(), "they are given up", 20)
        before = {maker: len(numbers) for maker, numbers in tally.numbers.items()}
        for process in stopped:
            os.kill(process.pid, signal.SIGCONT)
        until(lambda: take(server, tally) and all(len(tally.numbers[maker]) > before[maker] + 100 for maker in (1, 2)), "they send again", 30)
        complete(tally)


def test_one_silent_worker_beside_others_starts_nothing_anew(processes: list[Any]) -> None:
    tally = Tally()
    with Server(example(), 4, RdmaTransport(port=0, **LEASE), num_buffers=8) as server:
        running = [worker(processes, server, maker) for maker in (1, 2)]
        until(lambda: take(server, tally) and len(tally.numbers) == 2, "the workers send", 60)
        stop(running[0].pid)
        until(lambda: take(server, tally) and len(server.peers()) == 1, "it is given up", 20)
        assert restarts(server) == 0
