"""What a learner of any system draws that copies the rows of its batches: `numpy.take` from an array of its own, beside a server in another process.

It has no lock, no memory and no line of code in common with that server and its workers. It loses speed beside them only because they share the cores, caches
and memory.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.payloads import Payload
from benchmarks.replay.adapters.base import Buffer, System, Worker
from benchmarks.replay.adapters.echo import EchoBuffer, EchoWorker
from benchmarks.replay.adapters.memcpy import CopiedRows
from benchmarks.replay.items import ITEMS


class TakenRows(CopiedRows):
    def __init__(self, payload: Payload, capacity: int, batch: int) -> None:
        super().__init__(payload, capacity, batch)
        name = next(name for name, item in ITEMS.items() if item is payload)
        command = [sys.executable, "-m", __name__, name, str(capacity), str(batch)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._ask()
        draws = cycle(np.random.default_rng(1).integers(0, capacity, (4096, batch)))
        rows, out = self._rows, self._out
        self.sample = lambda: rows.take(next(draws), axis=0, out=out, mode="clip")

    def fill(self) -> None:
        super().fill()
        self._ask("fill")

    def inserted(self) -> int:
        return int(self._ask("inserted"))

    def _ask(self, question: str = "") -> str:
        assert self._server.stdin is not None and self._server.stdout is not None
        if question:
            self._server.stdin.write(question + "\n")
            self._server.stdin.flush()
        return self._server.stdout.readline().strip()


class Rows(System):
    name = "rows"
    can = frozenset({"beside"})

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        raise NotImplementedError

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        return TakenRows(payload, capacity, batch)

    def worker(self, address: str, payload: Payload) -> Worker:
        return EchoWorker(address, payload)


def serve(name: str, capacity: int, batch: int) -> None:
    """The server: says its address, then answers one question a line, until the pipe is closed."""
    buffer = EchoBuffer(ITEMS[name], capacity, batch, False, "tcp://127.0.0.1:0")
    print(buffer.address, flush=True)
    answers: dict[str, Any] = {"fill": buffer.fill, "inserted": buffer.inserted}
    for question in sys.stdin:
        print(answers[question.strip()](), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
