"""Rollouts of varying length from one worker process to the learner: as records, padded, and as multipart messages of pyzmq.

    python -m benchmarks.ragged                # prints a table; --seconds, --repeat, --systems. Beside TransferQueue: ./dev transferqueue

A rollout has int32 tokens, float32 log-probabilities, a mask of one byte and int32 versions, 13 bytes for each token, and a reward. Their lengths
are lognormal from 16 to 4096, 665 on average. The learner ends with packed arrays of 64 rollouts: of padded ones it cuts the padding off, which is
what training without padding needs. The systems take turns, and the table has the median of the turns. The worker and the learner share the machine.
On a machine that others use too, the processor time of the two says more than the rate: `worker` and `learner` are its medians for one rollout.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

MOST, BATCH, SEED = 4096, 64, 7
LEAVES = {"tokens": np.int32, "logprobs": np.float32, "mask": np.uint8, "versions": np.int32}
Sample = dict[str, Any]


def rollouts(count: int) -> list[Sample]:
    """`count` rollouts, the same for every system."""
    steps = (np.arange(count) + 0.5) / count  # evenly over the distribution, so that few rollouts have its mean, too
    lengths = np.clip([math.exp(6.113 + 0.9 * statistics.NormalDist().inv_cdf(step)) for step in steps], 16, MOST).astype(int)
    lengths = np.random.default_rng(SEED).permutation(lengths)
    return [{**{name: np.ones(n, dtype) for name, dtype in LEAVES.items()}, "reward": np.float32(i)} for i, n in enumerate(lengths)]


def fixed_example() -> Sample:
    return {**{name: np.zeros(MOST, dtype) for name, dtype in LEAVES.items()}, "reward": np.float32(0), "length": np.int32(0)}


def ragged_example() -> Sample:
    from echo_core import Ragged

    return {**{name: Ragged(dtype, most=MOST) for name, dtype in LEAVES.items()}, "reward": np.float32(0)}


# ---- the workers: each sends until it is killed ------------------------------------------------------------------------


def send_records(address: str, per_send: int) -> None:
    from echo_core import Client

    given = rollouts(256)
    with Client(address, ragged_example()) as client:
        while True:
            for at in range(0, 256, per_send):
                client.send(given[at]) if per_send == 1 else client.send_batch(given[at : at + per_send])


def send_padded(address: str, per_send: int) -> None:
    from echo_core import Client

    given = rollouts(256)
    rows = {name: np.stack([array] * per_send) for name, array in fixed_example().items()}  # used again: only the tokens are written, not the padding
    with Client(address, fixed_example()) as client:
        while True:
            for at in range(0, 256, per_send):
                for row, one in enumerate(given[at : at + per_send]):
                    n = len(one["tokens"])
                    for name in LEAVES:
                        rows[name][row, :n] = one[name]
                    rows["length"][row], rows["reward"][row] = n, one["reward"]
                client.send({name: array[0] for name, array in rows.items()}) if per_send == 1 else client.send_batch(rows)


def send_multipart(address: str, per_send: int) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.PUSH)
    socket.connect(address)
    given = rollouts(256)
    while True:
        for at in range(0, 256, per_send):
            socket.send_multipart([np.ascontiguousarray(array) for one in given[at : at + per_send] for array in one.values()], copy=True)


# ---- the learners: each yields the number of rollouts of a packed batch --------------------------------------------------


def learn_records(transport: str, per_send: int, start: Callable[..., None]) -> Iterator[int]:
    from echo_core import Queue, Server, Table

    table = Table("rollouts", ragged_example(), capacity=4096, max_bytes=256 << 20, sampler="fifo", rate_limiter=Queue(4096))
    with Server(tables=[table], batch_size=BATCH, transport=transport) as server:
        start(send_records, str(server.address), per_send)
        while True:
            sample = server.sample(timeout=60)
            yield len(sample.offsets["t"]) - 1
            del sample


def learn_padded(transport: str, per_send: int, start: Callable[..., None]) -> Iterator[int]:
    from echo_core import Server

    with Server(fixed_example(), batch_size=BATCH, transport=transport, num_buffers=8) as server:
        start(send_padded, str(server.address), per_send)
        while True:
            batch = server.sample(timeout=60).batch
            lengths = batch["length"].tolist()
            packed = {name: np.concatenate([row[:n] for row, n in zip(batch[name], lengths)]) for name in LEAVES}
            del batch
            yield BATCH if len(packed["tokens"]) else 0


def learn_multipart(transport: str, per_send: int, start: Callable[..., None]) -> Iterator[int]:
    import zmq

    socket = zmq.Context().socket(zmq.PULL)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    start(send_multipart, f"tcp://127.0.0.1:{port}", per_send)
    dtypes = [*LEAVES.values(), np.float32]
    while True:
        rows: list[list[Any]] = [[] for _ in dtypes]
        while len(rows[0]) < BATCH:
            for i, part in enumerate(socket.recv_multipart(copy=False)):
                rows[i % len(dtypes)].append(np.frombuffer(part.buffer, dtypes[i % len(dtypes)]))
        packed = [np.concatenate(each) for each in rows]
        yield len(packed[-1])


SYSTEMS: dict[str, tuple[Callable[..., Iterator[int]], str, int]] = {
    "records-tcp-1": (learn_records, "tcp://127.0.0.1:0", 1),
    "padded-tcp-1": (learn_padded, "tcp://127.0.0.1:0", 1),
    "records-tcp-16": (learn_records, "tcp://127.0.0.1:0", 16),
    "padded-tcp-16": (learn_padded, "tcp://127.0.0.1:0", 16),
    "records-shm-1": (learn_records, "shm", 1),
    "padded-shm-1": (learn_padded, "shm", 1),
    "records-shm-16": (learn_records, "shm", 16),
    "padded-shm-16": (learn_padded, "shm", 16),
    "multipart-1": (learn_multipart, "", 1),
    "multipart-16": (learn_multipart, "", 16),
}


class Rate(NamedTuple):
    rollouts: float  # a second
    worker: float  # microseconds of processor time for one rollout
    learner: float


def processor_seconds(pid: int) -> float:
    """The time that a process has used the processors: its clock as clock_getcpuclockid(3) numbers it on Linux."""
    return time.clock_gettime((~pid << 3) | 2)


def rate(name: str, seconds: float) -> Rate:
    """What one system does after one second of warming up."""
    workers = []

    def start(target: Callable[..., None], *arguments: Any) -> None:
        worker = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
        worker.start()
        workers.append(worker)

    def used() -> tuple[float, float]:
        return sum(processor_seconds(worker.pid) for worker in workers if worker.pid), time.process_time()

    learn, transport, per_send = SYSTEMS[name]
    if transport == "shm":
        transport = f"shm://ragged-{os.getpid()}-{time.monotonic_ns()}"
    batches = learn(transport, per_send, start)
    try:
        next(batches)
        warm = time.perf_counter() + 1
        while time.perf_counter() < warm:
            next(batches)
        count, began, (worker, learner) = 0, time.perf_counter(), used()
        while time.perf_counter() < began + seconds:
            count += next(batches)
        took, (worker_end, learner_end) = time.perf_counter() - began, used()
        return Rate(count / took, (worker_end - worker) / count * 1e6, (learner_end - learner) / count * 1e6)
    finally:
        for each in workers:
            each.kill()
            each.join()
        batches.close()  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    options = parser.parse_args()
    names = options.systems.split(",")
    if unknown := set(names) - set(SYSTEMS):
        parser.error(f"there is no system {sorted(unknown)[0]!r}; there are {', '.join(SYSTEMS)}")
    rates: dict[str, list[Rate]] = {name: [] for name in names}
    for _ in range(options.repeat):
        for name in names:  # in turns, because the machine is not equally fast all the time
            rates[name].append(rate(name, options.seconds))
    mean = statistics.fmean(sum(array.nbytes for array in one.values()) for one in rollouts(256))
    print(f"mean rollout: {mean:,.0f} bytes; padded: {sum(value.nbytes for value in fixed_example().values()):,} bytes")
    for name in names:
        middle = Rate(*(statistics.median(column) for column in zip(*rates[name])))
        each = ", ".join(f"{value.rollouts:,.0f}" for value in rates[name])
        print(f"{name:16} {middle.rollouts:10,.0f} rollouts/s   worker {middle.worker:5.1f} us, learner {middle.learner:5.1f} us   ({each})")


if __name__ == "__main__":
    main()
