"""Many real connections on one server: does each get in, keep its samples, get its share, and come back after the server was killed?"""

from __future__ import annotations

import logging
import resource
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.processes import allow_open_files
from benchmarks.scale.constants import Remote, answer
from benchmarks.scale.crowd import BUFFER_BYTES, EXAMPLE, SAMPLE_BYTES, SAMPLES, crowd

BATCH_SIZE = 16  # two of these buffers are the store: little against what a worker sends, so that those who come first get little ahead
STEP = 128  # workers are multiples of it, so that batches come out even
PROCESSES = 2  # of workers
FILL_SECONDS = 3.0  # in which the workers fill the store and the kernel's buffers, before the learner takes anything
PACE = 80e6  # bytes a second that the learner takes at most: less than the server carries, so that it decides who is next
LONG = 600.0  # seconds


def learner(link: Connection, port: int, workers: int) -> None:
    """A server for so many workers. It lets in any number at once."""
    from echo_core import Server

    logging.getLogger("echo").setLevel(logging.ERROR)  # every worker that leaves would be a line
    allow_open_files(workers + 200)
    door = {"type": "tcp", "port": port, "max_connections": workers, "max_connection_rate": 0, "receive_buffer": BUFFER_BYTES}

    def take(first: int, last: int) -> dict[str, Any]:
        """Take the samples `first` to `last` - 1 of each worker, check that each comes once and whole, and how even the workers are at half time."""
        seen = np.zeros((workers, last - first), np.uint8)
        batches, fairness, middle, begun = workers * (last - first) // BATCH_SIZE, 0.0, 0.0, time.monotonic()
        for number in range(batches):
            if (drawn := server.sample(LONG)) is None:
                raise RuntimeError("the server was closed")
            batch, _ = drawn
            if not (batch["filling"] == (batch["worker"] % 251)[:, None]).all():
                raise RuntimeError("a sample is not whole")
            np.add.at(seen, (batch["worker"], batch["number"] - first), 1)
            if number + 1 == batches // 2:
                taken = seen.sum(1, dtype=np.int64)
                low, high = np.percentile(taken, (1, 99))
                fairness, middle = float(taken.max() / max(1, taken.min())), float(high / max(1.0, low))
            del batch, drawn
            time.sleep(max(0.0, begun + number * BATCH_SIZE * SAMPLE_BYTES / PACE - time.monotonic()))
        return {
            "lost": int((seen == 0).sum()),
            "repeated": int((seen > 1).sum()),
            "fairness": fairness,
            "fairness_98": middle,
            "seconds": time.monotonic() - begun,
        }

    with Server(EXAMPLE, BATCH_SIZE, door, num_buffers=2) as server:
        link.send(str(server.address))
        answer(link, {"take": take, "peers": lambda: len(server.peers())})


def possible() -> int:
    """The most connections that the limit of descriptors allows one process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 20 if hard == resource.RLIM_INFINITY else hard) - 200


def check(workers: int, idle_seconds: float) -> dict[str, float]:
    """Carry out the check with this many workers, rounded up to a multiple of 128.

    Raises:
        ValueError: the limit of descriptors allows fewer, or there are none.
    """
    if not 1 <= workers <= possible():
        raise ValueError(f"--check {workers}: the hard limit of descriptors (ulimit -Hn) allows 1 to {possible()} connections of one process")
    workers = -(-workers // STEP) * STEP
    found: dict[str, float] = {"workers": workers}
    with ExitStack() as stack:

        def started(port: int) -> Remote:
            serving = Remote(learner, port, workers)
            stack.callback(serving.end)
            return serving

        serving = started(0)
        port = int(serving.hello.rpartition(":")[2])
        share = workers // PROCESSES
        crowds = [Remote(crowd, serving.hello, number * share, share) for number in range(PROCESSES)]
        for one in crowds:
            stack.callback(one.end)

        def all_of_them(what: str, count: int) -> int:
            """Give each process a command, and wait until all have done it. Returns their attempts to connect so far."""
            for one in crowds:
                one.link.send((what, count))
            return sum(one.receive(LONG) for one in crowds)

        def storm(times: int, prefix: str) -> None:
            """Wait until everybody is connected, and say what it cost."""
            cpu, begun = serving.cpu, time.monotonic()
            before = 0.0 if times == 1 else found["attempts"]
            attempts = all_of_them("connected", times)
            found.update({f"{prefix}attempts": attempts - before, f"{prefix}seconds": time.monotonic() - begun})
            found[f"{prefix}handshake_ms"] = (serving.cpu - cpu) / workers * 1e3

        memory = serving.memory
        storm(1, "")
        found["memory_kb"] = (serving.memory - memory) / workers / 1e3
        cpu = serving.cpu
        time.sleep(idle_seconds)
        found.update(idle_seconds=idle_seconds, idle_percent=(serving.cpu - cpu) / idle_seconds * 100, still_connected=serving.ask("peers"))
        for one in crowds:
            one.link.send(("sent", SAMPLES))
        time.sleep(FILL_SECONDS)
        serving.link.send(("take", 0, SAMPLES))
        taken = serving.receive(LONG)
        found.update(taken, seconds=found["seconds"], taking_seconds=taken["seconds"])
        for one in crowds:
            one.receive(LONG)
        serving.process.kill()
        serving.process.join()
        serving = started(port)
        storm(2, "again_")
        for one in crowds:
            one.link.send(("sent", SAMPLES + 1))
        after = serving.ask("take", SAMPLES, SAMPLES + 1)
        for one in crowds:
            one.receive(LONG)
        found.update({f"again_{key}": after[key] for key in ("lost", "repeated")}, again_connected=serving.ask("peers"))
    return found


def lines(found: dict[str, float]) -> str:
    """The outcome for people."""
    rows = [
        ("connections", f"{found['workers']:.0f}"),
        ("all connected after", f"{found['seconds']:.1f} s, {found['attempts']:.0f} attempts"),
        ("server's CPU for each handshake", f"{found['handshake_ms']:.2f} ms"),
        ("server's memory for each connection", f"{found['memory_kb']:.1f} KB"),
        (
            "server's CPU while they are idle",
            f"{found['idle_percent']:.2f} % of a core, over {found['idle_seconds']:.0f} s; connected then: {found['still_connected']:.0f}",
        ),
        (
            "samples sent",
            f"{found['workers'] * SAMPLES:.0f} ({SAMPLES * SAMPLE_BYTES >> 10} KiB each); lost: {found['lost']:.0f}, repeated: {found['repeated']:.0f}",
        ),
        ("most over least of a worker, at half time", f"{found['fairness']:.2f}; 99th over 1st percentile: {found['fairness_98']:.2f}"),
        ("taken in", f"{found['taking_seconds']:.1f} s"),
        ("server killed; all back after", f"{found['again_seconds']:.1f} s, {found['again_attempts']:.0f} attempts; connected: {found['again_connected']:.0f}"),
        ("server's CPU for each handshake then", f"{found['again_handshake_ms']:.2f} ms"),
        ("one more sample of each", f"lost: {found['again_lost']:.0f}, repeated: {found['again_repeated']:.0f}"),
    ]
    return "".join(f"{name:42} {value}\n" for name, value in rows)
