"""What it costs to draw from several servers instead of one: ``python -m benchmarks.cluster``.

One server has all items in the mode `client`, and each of several shards has its part in the others. All servers are processes of their own. The modes
run in turn, in short blocks, so that a neighbour on the machine affects all of them; each figure is the median over the rounds. CPU is that of the
learner's process, with all of its threads.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.report import number

EXAMPLE = {
    "obs": np.zeros(4, np.float32),
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
    "next_obs": np.zeros(4, np.float32),
    "done": np.zeros((), np.bool_),
}
WARM_UP = 20  # batches


def fill(address: Any, token: str, items: int) -> None:
    """Put items with different priorities into a server's table."""
    from echo_core import Client

    leaves = {name: np.zeros((items, *leaf.shape), leaf.dtype) for name, leaf in EXAMPLE.items()}
    with Client(address, EXAMPLE, token=token) as client:
        client.send_batch(leaves, priorities=1.0 + np.arange(items) % 7)
        client.wait()


def measured(draw: Callable[[], Any], batch: int, seconds: float) -> tuple[float, float]:
    """Items per second, and microseconds of this process's CPU for each batch."""
    ends, batches = time.monotonic() + seconds, 0
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() < ends:
        draw()
        batches += 1
    return batch * batches / (time.monotonic() - began), (time.process_time() - used) / batches * 1e6


def modes(args: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], Any]]:
    """What is measured: by name, a function that returns the next batch."""
    from echo_cluster import ClusterLearner, LocalCluster
    from echo_core import Client, Table

    table = Table("replay", EXAMPLE, sampler={"type": "prioritized", "alpha": 1.0}, capacity=args.items)
    found: dict[str, Callable[[], Any]] = {}

    def started(shards: int) -> tuple[LocalCluster, list[Any]]:
        local = args.transport == "shm"
        cluster = stack.enter_context(LocalCluster(shards, [table], shared_memory=local))
        addresses = [cluster.wait(shard).addresses[-1 if local else 0] for shard in range(shards)]
        for address in addresses:
            fill(address, cluster.token, args.items // shards)
        return cluster, addresses

    def iterated(drawn: Iterator[Any]) -> Callable[[], Any]:
        stack.callback(drawn.close)  # type: ignore[attr-defined]
        return lambda: next(drawn)

    for shards in [1, *[count for count in args.shards if count > 1]]:
        cluster, addresses = started(shards)
        if shards == 1:
            client = stack.enter_context(Client(addresses[0], EXAMPLE, token=cluster.token))
            found["client: sample()"] = lambda client=client: client.sample(args.batch)
            found["client: dataset_iter()"] = iterated(client.dataset_iter(args.batch))
        name = f"{shards} shard{'s' * (shards > 1)}"
        direct, ahead = (stack.enter_context(ClusterLearner(cluster.members, EXAMPLE, token=cluster.token, seed=1)) for _ in range(2))
        found[f"{name}: sample()"] = lambda learner=direct: learner.sample(args.batch)
        found[f"{name}: dataset_iter()"] = iterated(ahead.dataset_iter(args.batch))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--items", type=int, default=100_000, help="of all shards together")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured each")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("echo").setLevel(logging.ERROR)
    with ExitStack() as stack:
        found = modes(args, stack)
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
        for draw in found.values():
            for _ in range(WARM_UP):
                draw()
        for _, (name, draw) in itertools.product(range(args.rounds), found.items()):
            figures[name].append(measured(draw, args.batch, args.seconds))
        base = figures["client: sample()"]
        print(f"{'':24} {'items/s':>9} {'of client':>10} {'CPU a batch':>12} {'more than client':>17}")
        for name, rounds in figures.items():
            rate, cpu = (statistics.median(column) for column in zip(*rounds))
            ratio = statistics.median(mine[0] / other[0] for mine, other in zip(rounds, base))
            more = statistics.median(mine[1] - other[1] for mine, other in zip(rounds, base))
            print(f"{name:24} {number(rate):>9} {ratio:>9.2f}x {cpu:>9.0f} us {more:>+14.0f} us")


if __name__ == "__main__":
    main()
