"""Put and get beside TransferQueue 0.1.11: 256 rollouts of 200 to 8 000 tokens, and 32 pictures of 252 MiB in all, over tcp on one machine.

    ./dev transferqueue                        # makes TransferQueue's environment, and runs this; arguments: --rounds 15 --cases tokens,pictures
    BENCH_TRANSFERQUEUE_PYTHON=.../bin/python python -m benchmarks.transferqueue

One process puts all samples of a round and gets them back. The clock runs from the first call until all arrays are there.

* `echo`: `send_batch` of a client, or `send` of each picture, and `sample` of the server in this process, which is Echo's usual place for
  the learner: one way over tcp.
* `echo-store`: the server is a process of its own, and a client sends and draws: two ways over tcp, as in TransferQueue.
* `padded`: as `echo`, with samples of fixed size; their rows are filled and packed again within the round.
* `multipart`: pyzmq PUSH and PULL, one message for each array; the arrays are packed.
* `transferqueue`: `kv_batch_put` and `kv_batch_get` of nested tensors, with its default storage of two processes. Making the tensors and clearing
  the storage are not timed.

The systems take turns. The table has medians, and half the distance between the quartiles. A machine with two cores is shared by all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.transferqueue.samples import LEAF, samples
from benchmarks.transferqueue.systems import INSTALL, SYSTEMS, TransferQueue


def measured(case: str, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round after a first one that is not counted. Every round is checked."""
    systems = {name: SYSTEMS[name](case) for name in names}
    expected = int(sum(int(one[LEAF[case]].sum(dtype=np.int64)) for one in samples(case)))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    try:
        for turn in range(rounds + 1):
            for name, system in systems.items():
                took, total = system.round()
                print(f"{case}, round {turn} of {rounds}: {name} {took * 1e3:,.1f} ms", file=sys.stderr)
                if total != expected:
                    raise SystemExit(f"{name}: the sum of {LEAF[case]} is {total}, not {expected}")
                if turn:
                    seconds[name].append(took)
    finally:
        for system in systems.values():
            system.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", default=",".join(LEAF))
    parser.add_argument("--systems", default="")
    parser.add_argument("--json", help="a file for the seconds of every round")
    options = parser.parse_args()
    there = "BENCH_TRANSFERQUEUE_PYTHON" in os.environ
    names = options.systems.split(",") if options.systems else [name for name in SYSTEMS if there or name != "transferqueue"]
    if not there:
        print(f"without TransferQueue: {INSTALL}")
    if unknown := (set(names) - set(SYSTEMS)) | (set(options.cases.split(",")) - set(LEAF)):
        parser.error(f"unknown: {sorted(unknown)}; there are the systems {', '.join(SYSTEMS)}, and the cases {', '.join(LEAF)}")
    found = {}
    try:
        for case in options.cases.split(","):
            found[case] = measured(case, names, options.rounds)
            size = sum(value.nbytes for one in samples(case) for value in one.values())
            print(f"\n{case}: {size / (1 << 20):,.1f} MiB a round, medians of {options.rounds} rounds")
            slowest = statistics.median(found[case][names[-1]])
            for name, each in found[case].items():
                middle, (low, _, high) = statistics.median(each), statistics.quantiles(each, n=4)
                print(f"  {name:14} {middle * 1e3:10,.1f} ms  +- {(high - low) / 2 / middle:4.0%}   {size / middle / 1e9:6.2f} GB/s   {slowest / middle:6.1f}x")
    finally:
        TransferQueue.end()
    if options.json:
        Path(options.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
