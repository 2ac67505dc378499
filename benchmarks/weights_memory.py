"""How much memory a learner needs for its weights, beside the arrays of its caller, over each transport.

    python -m benchmarks.weights_memory [--mib 768] [SCHEME]...

Each scheme gets a learner and one worker, in processes of their own. The learner publishes three versions, and the worker confirms each. The
figures are copies: the learner's memory (resident pages, shared ones included) divided by the size of the weights. `peak` is the most while
a later version is published, and `rest` is what stays when all is confirmed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLE = {"x": np.zeros(1, np.float32)}
PLACES = {"in-process": None, "tcp": "tcp://127.0.0.1:0", "grpc": "grpc://127.0.0.1:0", "rdma": "rdma://127.0.0.1:0", "shm": "shm://{folder}/learner"}


def memory(which: str) -> int:
    """Bytes of this process: VmRSS is what it has now, VmHWM the most since `reset`. What it reserved in memfds counts, touched or not."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {words[0]: int(words[1]) << 10 for words in lines if words[0] in ("VmRSS:", "VmHWM:", "RssShmem:")}
    files = {(status := os.stat(path)).st_ino: status.st_blocks * 512 for path in Path("/proc/self/fd").iterdir() if "/memfd:" in os.path.realpath(path)}
    return found[which] + max(0, sum(files.values()) - found["RssShmem:"])


def reset() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def learn(link: Connection, place: str | None, size: int) -> None:
    from echo_core import Server

    weights = {"w": np.ones(size // 4, np.float32)}
    before = memory("VmRSS:")  # the caller's arrays and the libraries
    with Server(EXAMPLE, 1, place) as server:
        link.send(None if place is None else str(server.address))
        link.recv()
        peak = 0
        for version in (1, 2, 3):
            weights["w"] += 1
            reset()
            server.publish(weights)
            peak = max(peak, memory("VmHWM:")) if version > 1 else 0
            link.send(version)
            link.recv()
            while any(peer.weights_version != version for peer in server.peers()):
                time.sleep(0.001)  # a receipt is on its way, and the worker counts as reading until it is here
        link.send(((peak - before) / size, (memory("VmRSS:") - before) / size))
        link.recv()


def work(link: Connection, place: str) -> None:
    from echo_core import Client

    with Client(place, EXAMPLE, timeout=120) as client:
        link.send("connected")
        while (version := link.recv()) is not None:
            assert client.weights(newer_than=version - 1).version == version
            link.send(version)


def measure(scheme: str, size: int) -> tuple[float, float]:
    """The copies at the peak, and at rest."""
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ECHO_TOKEN", "a-token-for-this-measurement-only-0123456789")
        place = PLACES[scheme]
        ours, theirs = spawning.Pipe()
        learner = spawning.Process(target=learn, args=(theirs, place and place.format(folder=folder), size), daemon=True)
        learner.start()
        address = ours.recv()
        worker, to_worker = None, None
        if address is not None:
            to_worker, its = spawning.Pipe()
            worker = spawning.Process(target=work, args=(its, address), daemon=True)
            worker.start()
            to_worker.recv()
        ours.send("go")
        for version in (1, 2, 3):
            ours.recv()
            if to_worker is not None:
                to_worker.send(version)
                to_worker.recv()
            ours.send(version)
        found: Any = ours.recv()
        if to_worker is not None and worker is not None:
            to_worker.send(None)
            worker.join(30)
        ours.send("end")
        learner.join(30)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=768, help="size of the weights")
    parser.add_argument("schemes", nargs="*", default=list(PLACES))
    arguments = parser.parse_args()
    print(f"{'scheme':12}{'peak':>8}{'rest':>8}   copies of {arguments.mib} MiB, beside the caller's arrays")
    for scheme in arguments.schemes:
        peak, rest = measure(scheme, arguments.mib << 20)
        print(f"{scheme:12}{peak:8.2f}{rest:8.2f}", flush=True)


if __name__ == "__main__":
    main()
