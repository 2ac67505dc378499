"""A group of 8 answers about one picture: as one sample that carries the picture once, and as 8 samples. Put and get over tcp in one process.

    python -m benchmarks.shared_array              # --rounds 40 --repeat 5

The two take turns; the table has the medians of the turns, and the bytes of a group in the learner's table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from echo_core import Client, Queue, Ragged, Server, Table

GROUP, PIXELS, TOKENS = 8, 256 * 256, 500
PICTURE = {"picture": Ragged(np.uint8, (3,), axis="pixel", most=PIXELS)}
TOGETHER = {**PICTURE, "tokens": Ragged(np.int32, axis="token", most=GROUP * 4096), "lengths": np.zeros(GROUP, np.int32)}
ALONE = {**PICTURE, "tokens": Ragged(np.int32, axis="token", most=4096)}


def group(together: bool) -> list[dict[str, Any]]:
    picture = np.random.default_rng(7).integers(0, 256, (PIXELS, 3), np.uint8)
    answers = [np.full(TOKENS + i, i, np.int32) for i in range(GROUP)]
    if together:
        return [{"picture": picture, "tokens": np.concatenate(answers), "lengths": np.array([len(answer) for answer in answers], np.int32)}]
    return [{"picture": picture, "tokens": answer} for answer in answers]


def measured(together: bool, rounds: int) -> tuple[float, int]:
    """The median of the seconds of a round, and the bytes of a group in the table."""
    example, samples, seconds = TOGETHER if together else ALONE, group(together), []
    table = Table("groups", example, capacity=64, max_bytes=64 << 20, sampler="fifo", rate_limiter=Queue(64))
    with Server(tables=[table], batch_size=len(samples), transport="tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        for _ in range(rounds):
            began = time.perf_counter()
            client.send_batch(samples)
            sample = server.sample(timeout=60)
            seconds.append(time.perf_counter() - began)
            del sample
        client.send_batch(samples)
        client.wait()
        return statistics.median(seconds), int(server.stats()["table/groups/bytes_used"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    turns = [(measured(True, options.rounds), measured(False, options.rounds)) for _ in range(options.repeat)]
    for name, which in (("one sample", 0), (f"{GROUP} samples", 1)):
        each = [turn[which][0] * 1e3 for turn in turns]
        print(f"{name:10} {statistics.median(each):8.2f} ms a group ({', '.join(f'{value:.2f}' for value in each)})   {turns[0][which][1]:,} bytes stored")


if __name__ == "__main__":
    main()
