"""A learner that publishes without a break, workers that read without a break and send rows that check themselves.

A test uses it for some seconds; by hand:

    python plugins/echo_shm/tests/torn.py --seconds 600 --mode direct

Forbidden: a version that mixes two, or goes backwards; a torn, lost or doubled row. Readers compute the digest of their copy, which clients do not, and
check the contents as well, so that a wrong digest would be noticed too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from echo_core import Client, Server
from echo_core.wire.weights import pack
from echo_shm.transport import ShmTransport
from echo_testing.samples import Tally, example, stacked

sys.path.insert(0, str(Path(__file__).parent))  # for processes that are spawned

READERS = 4
spawning = multiprocessing.get_context("spawn")


def weights(version: int, size: int) -> dict[str, np.ndarray]:
    """Arrays of several types that all contain their version; about `size` bytes."""
    return {
        "double": np.full(size // 16, version, np.float64),
        "half": np.full(size // 8, version % 2048, np.float16),
        "bytes": np.full(size // 8, version % 256, np.uint8),
        "complex": np.full(size // 64, version * 1j, np.complex128),
    }


def check(params: dict[str, np.ndarray], version: int) -> None:
    for name, wanted in weights(version, 64).items():
        assert (params[name] == wanted[0]).all(), f"{name} of version {version} is torn: {np.unique(params[name])[:4]}"


def read(address: str, maker: int, seconds: float, said: Any) -> None:
    """Read as many versions as possible, and send eight rows for each."""
    client = Client(address, example())
    version, versions, rows, end = 0, 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        found = client.weights(timeout=300, newer_than=version)  # the machine may be busy
        assert found.version > version
        version, versions = found.version, versions + 1
        assert pack(found.params, version).digest == found.digest, f"version {version} has another digest than was published"
        check(found.params, version)
        client.send_batch(stacked(maker, rows, 8))
        rows += 8
    client.wait(timeout=300)
    client.close()
    said.send((versions, rows))


def free_running(mode: str, size: int, seconds: float) -> tuple[int, list[int], int]:
    """How many versions were published, how many each reader saw, and how many rows came."""
    tally, over = Tally(), threading.Event()
    with Server(example(), 8, ShmTransport(mode=mode), num_buffers=16) as server:
        published = 1
        server.publish(weights(1, size))
        pipes, processes = [], []
        try:
            for maker in range(READERS):
                heard, said = spawning.Pipe(duplex=False)
                process = spawning.Process(target=read, args=(str(server.address), maker, seconds, said))
                process.start()
                said.close()
                pipes.append(heard)
                processes.append(process)

            def publish() -> None:
                nonlocal published
                while not over.is_set():
                    published += 1
                    server.publish(weights(published, size))

            writer = threading.Thread(target=publish)
            writer.start()
            try:
                waiting = dict(enumerate(pipes))
                outcomes: dict[int, tuple[int, int]] = {}
                vain = 0
                while waiting or tally.count < sum(rows for _, rows in outcomes.values()):
                    try:
                        tally.add(server.sample(timeout=0.1).batch)
                        vain = 0
                    except TimeoutError:
                        vain += 1
                        assert vain < 600, "nobody sends any more"
                    for maker, pipe in list(waiting.items()):
                        if pipe.poll(0):
                            outcomes[maker] = pipe.recv()  # EOFError: it has failed, and the reason is on stderr
                            del waiting[maker]
            finally:
                over.set()
                writer.join()
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()
    tally.check({maker: rows for maker, (_, rows) in outcomes.items()})
    return published, [versions for versions, _ in outcomes.values()], tally.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--mode", choices=("direct", "private"), default="direct")
    parser.add_argument("--size", type=int, default=10_000_000)
    options = parser.parse_args()
    published, seen, rows = free_running(options.mode, options.size, options.seconds)
    what = f"{published} versions of {options.size:,} bytes published, {seen} read, none torn; {rows} rows, each once and whole"
    print(f"{options.seconds:.0f} s, {options.mode}: {what}")


if __name__ == "__main__":
    main()
