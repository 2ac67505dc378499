"""The ways to put samples and to get them that benchmarks/transferqueue compares."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.transferqueue.samples import LEAF, MOST_PIXELS, MOST_TOKENS, TOKENS, samples

__all__ = ["INSTALL", "SYSTEMS", "System", "TransferQueue"]

INSTALL = "python -m pip install torch==2.13.0 numpy TransferQueue==0.1.11, and set BENCH_TRANSFERQUEUE_PYTHON to that environment's Python"
POOL = 1 << 30  # bytes: a learner's share of the memory for clients is a quarter of four times this


class System(ABC):
    """One way to put samples and to get them. `round` returns seconds, and the sum of the case's leaf."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.given = samples(case)

    @abstractmethod
    def round(self) -> tuple[float, int]: ...

    def close(self) -> None:
        return


def ragged_example(case: str) -> dict[str, Any]:
    from echo_core import Ragged

    if case == "tokens":
        return {**{name: Ragged(dtype, most=MOST_TOKENS) for name, dtype in TOKENS.items()}, "reward": np.float32(0)}
    return {"pixels": Ragged(np.uint8, (3,), most=MOST_PIXELS), "label": np.int64(0)}


def table(case: str) -> Any:
    from echo_core import Queue, Table

    return Table("samples", ragged_example(case), capacity=1024, max_bytes=POOL, sampler="fifo", rate_limiter=Queue(1024))


def put(client: Any, case: str, given: list[dict[str, Any]]) -> None:
    """Send all samples: small ones in one call, large ones one by one, because a call copies all of its samples before it sends them."""
    if case == "tokens":
        client.send_batch(given)
    else:
        for one in given:
            client.send(one)


class Echo(System):
    def __init__(self, case: str) -> None:
        from echo_core import Client, Server

        super().__init__(case)
        self._server = Server(tables=[table(case)], batch_size=len(self.given), transport="tcp://127.0.0.1:0", client_memory=4 * POOL).start()
        self._client = Client(self._server.address, ragged_example(case), timeout=120)

    def round(self) -> tuple[float, int]:
        began = time.perf_counter()
        put(self._client, self.case, self.given)
        sample = self._server.sample(timeout=120)
        assert sample is not None
        batch = sample.batch
        seconds = time.perf_counter() - began
        return seconds, int(batch[LEAF[self.case]].sum(dtype=np.int64))

    def close(self) -> None:
        self._client.close()
        self._server.close()


def serve(case: str, batch: int, told: Any) -> None:
    from echo_core import Server

    with Server(tables=[table(case)], batch_size=batch, transport="tcp://127.0.0.1:0", client_memory=4 * POOL) as server:
        told.send(str(server.address))
        told.recv()


class EchoStore(System):
    def __init__(self, case: str) -> None:
        from echo_core import Client

        super().__init__(case)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(case, len(self.given), theirs), daemon=True)
        self._process.start()
        self._client = Client(self._pipe.recv(), ragged_example(case), timeout=120)

    def round(self) -> tuple[float, int]:
        began = time.perf_counter()
        put(self._client, self.case, self.given)
        batch = self._client.sample(len(self.given), 120).batch
        seconds = time.perf_counter() - began
        return seconds, int(batch[LEAF[self.case]].sum(dtype=np.int64))

    def close(self) -> None:
        self._client.close()
        self._pipe.send("end")
        self._process.join(30)


class Padded(System):
    """Samples of fixed size: the longest one of the case."""

    def __init__(self, case: str) -> None:
        from echo_core import Client, Server

        super().__init__(case)
        first, n = self.given[0], len(self.given)
        most = max(len(one[LEAF[case]]) for one in self.given)
        example = {name: np.zeros((most, *value.shape[1:]) if value.ndim else (), value.dtype) for name, value in first.items()} | {"length": np.int32(0)}
        self._rows = {name: np.zeros((n, *np.shape(value)), np.asarray(value).dtype) for name, value in example.items()}  # the padding is written once
        self._ragged = [name for name, value in first.items() if value.ndim]
        self._server = Server(example, batch_size=n, transport="tcp://127.0.0.1:0", num_buffers=3).start()
        self._client = Client(self._server.address, example, timeout=120)

    def round(self) -> tuple[float, int]:
        began = time.perf_counter()
        for row, one in enumerate(self.given):
            for name, value in one.items():
                if name in self._ragged:
                    self._rows[name][row, : len(value)] = value
                    self._rows["length"][row] = len(value)
                else:
                    self._rows[name][row] = value
        self._client.send_batch(self._rows)
        sample = self._server.sample(timeout=120)
        assert sample is not None
        batch = sample.batch
        lengths = batch["length"].tolist()
        packed = {name: np.concatenate([row[:n] for row, n in zip(batch[name], lengths)]) for name in self._ragged}
        seconds = time.perf_counter() - began
        return seconds, int(packed[LEAF[self.case]].sum(dtype=np.int64))

    def close(self) -> None:
        self._client.close()
        self._server.close()


class Multipart(System):
    def __init__(self, case: str) -> None:
        import zmq

        super().__init__(case)
        self._context = zmq.Context()
        self._to, self._from = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._to.connect(f"tcp://127.0.0.1:{self._from.bind_to_random_port('tcp://127.0.0.1')}")
        self._kinds = [(name, value.dtype, value.shape[1:]) for name, value in self.given[0].items()]

    def round(self) -> tuple[float, int]:
        began = time.perf_counter()
        self._to.send_multipart([array for one in self.given for array in one.values()], copy=False)
        rows: list[list[Any]] = [[] for _ in self._kinds]
        for i, part in enumerate(self._from.recv_multipart(copy=False)):
            which = i % len(rows)
            _, dtype, shape = self._kinds[which]
            rows[which].append(np.frombuffer(part.buffer, dtype).reshape(-1, *shape))
        packed = {kind[0]: np.concatenate(each) for kind, each in zip(self._kinds, rows)}
        seconds = time.perf_counter() - began
        return seconds, int(packed[LEAF[self.case]].sum(dtype=np.int64))

    def close(self) -> None:
        self._context.destroy(0)


class TransferQueue(System):
    """Rounds of a process in the environment of TransferQueue."""

    _rival: subprocess.Popen[str] | None = None
    _figures: Any = None

    def round(self) -> tuple[float, int]:
        kind = type(self)
        if kind._rival is None:
            theirs, ours = os.pipe()
            script = Path(__file__).with_name("rounds.py")
            command = [os.environ["BENCH_TRANSFERQUEUE_PYTHON"], str(script), str(ours)]
            kind._rival = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=sys.stderr, text=True, pass_fds=[ours])
            os.close(ours)
            kind._figures = os.fdopen(theirs)
            if kind._figures.readline() != "ready\n":
                raise SystemExit(f"TransferQueue did not start; {INSTALL}")
        assert kind._rival.stdin is not None
        print(self.case, file=kind._rival.stdin, flush=True)
        seconds, total = kind._figures.readline().split()
        return float(seconds), int(total)

    @classmethod
    def end(cls) -> None:
        if cls._rival is None:
            return
        try:
            cls._rival.communicate(timeout=60)  # the end of its stdin ends it, and ray with it
        except subprocess.TimeoutExpired:
            cls._rival.kill()
            cls._rival.wait()
        cls._rival = None


SYSTEMS: dict[str, type[System]] = {"echo": Echo, "echo-store": EchoStore, "padded": Padded, "multipart": Multipart, "transferqueue": TransferQueue}
