"""Shows what UCX can do on this machine: `python -m echo_rdma.check [ADDRESS]`.

It prints which UCX is found, which cards there are, and whether enough memory may be locked. Then it sends samples from a process of its own to a
learner at ADDRESS (127.0.0.1, or the address of a network card) and prints the lanes and the speed. Exit code 1 means that this failed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time

import numpy as np

from echo_core import Client, Server
from echo_core.base.errors import EchoError

from . import library
from .lanes import is_rdma, why_no_rdma

__all__ = ["main"]

SECONDS = 2.0
SAMPLES = {"20 bytes": (1 << 12, 5), "28 KiB": (64, 7 << 10), "1 MiB": (8, 1 << 18)}  # batch size, and number of float32 values in a sample


def work(address: str, numbers: int, token: str) -> None:
    """Send samples for a while."""
    example = {"x": np.zeros(numbers, np.float32)}
    with Client(address, example, token=token) as client:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(8):
                client.send(example)


def measure(host: str, name: str, require_rdma: bool) -> tuple[str, str]:
    """(lanes, speed) for one size of samples."""
    batch, numbers = SAMPLES[name]
    example, token = {"x": np.zeros(numbers, np.float32)}, os.urandom(16).hex()
    with Server(example, batch, f"rdma://{host}:0?require_rdma={str(require_rdma).lower()}", token=token, num_buffers=4) as server:
        with Client(server.address, example, token=token, timeout=20) as client:
            client.send(example)
            client.wait()
            lanes = client.stats()["lanes"]
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(str(server.address), numbers, token), daemon=True)
        worker.start()
        server.sample(timeout=60)
        start, count = time.monotonic(), 0
        while time.monotonic() - start < SECONDS / 2:
            server.sample(timeout=60)
            count += batch
        rate = count / (time.monotonic() - start)
        worker.kill()
        worker.join()
    return lanes, f"{rate:,.0f} samples/s, {rate * numbers * 4 / 1e9:.2f} GB/s"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m echo_rdma.check", description="What UCX can do on this machine.")
    parser.add_argument("address", nargs="?", default="127.0.0.1", help="address of the network card to use; 127.0.0.1 by default")
    parser.add_argument("--require-rdma", action="store_true", help="fail if UCX would take TCP or shared memory")
    given = parser.parse_args(arguments)
    logging.getLogger("echo").setLevel(logging.ERROR)  # lost workers are intended here, and the rest is printed
    try:
        path, version = library.ucx()
        print(f"UCX        {'.'.join(map(str, version))}, {path}")
        print(f"settings   {library.settings_shown() or 'no UCX_* variable is set'}")
        print(f"cards      {', '.join(library.cards()) or 'none (/sys/class/infiniband is empty): UCX will take shared memory or TCP'}")
        print(f"memory     {library.memory_lock_advice() or 'enough may be locked'}")
        lanes = ""
        for name in SAMPLES:
            lanes, speed = measure(given.address, name, given.require_rdma)
            print(f"{name:10} {speed} (one worker)")
        print(f"lanes      {lanes}: {'RDMA' if any(map(is_rdma, lanes.split(', '))) else f'no RDMA: {why_no_rdma()}'}")
    except (EchoError, OSError) as error:
        print(f"failed     {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
