"""Shared memory beside what the machine itself can do: ``python -m benchmarks.copies``. Needs a C++ compiler (x86-64).

A worker's `send` is one copy into memory that others read, and the learner's `sample` one wake-up: so bare processes that copy the same
bytes in the same pieces into a ring as large, and one that is woken after as many, bound what any transport through shared memory
can reach here. All of them take turns, round by round. Beside the rate stands the rate per second of CPU time: other work on the
machine takes cores away from all who copy, and that figure shows what is left when it does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.cases import Case
from benchmarks.compiled import compiled
from benchmarks.harness import Settings
from benchmarks.payloads import PAYLOADS, Payload

BUFFERS = 3  # of a server, by default
COPIES = [(pages, how) for how in ("plain", "stream") for pages in ("4k", "2m")]
TITLES = {"plain": "memcpy", "stream": "past the caches"}


def build() -> str:
    return str(compiled(Path(__file__).with_suffix(".cpp"), "", "-std=c++17", "-pthread"))


def ask(program: str, *words: object) -> list[float]:
    answer = subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True, timeout=60)
    return [float(word) for word in answer.stdout.split()]


def shape(payload: Payload) -> tuple[int, int, int]:
    """Bytes of a piece, how many different ones circulate, and pieces of the ring."""
    return payload.sample_bytes, payload.pool, BUFFERS * payload.batch_size


class Line:
    """One payload with so many workers: what came out in each round."""

    def __init__(self, payload: Payload, workers: int) -> None:
        self.payload, self.workers = payload, workers
        self.shape = shape(payload)
        self.rates: dict[str, list[float]] = {}
        self.efforts: dict[str, list[float]] = {}
        self.learner: list[float] = []  # seconds of CPU time for each batch
        self.woken: list[float] = []

    def round(self, program: str, seconds: float) -> None:
        settings = Settings(repeat=1, seconds=seconds, warmup=0.3, patience=60.0)
        result = harness.run_once(Case("shm", self.payload.name, self.workers), "echo-shm", settings)
        if result["status"] != "ok":
            raise RuntimeError(f"echo-shm: {result}")
        figures = result["figures"]
        self._note("echo-shm", figures["bytes_per_s"], self.payload.sample_bytes / figures["worker_cpu_us"] * 1e6)
        self.learner.append(figures["learner_cpu_us"] * 1e-6 * self.payload.batch_size)
        for pages, how in COPIES:
            self._note(f"{TITLES[how]}, {pages} pages", *ask(program, "copy", self.workers, *self.shape, pages, how, seconds))
        self.woken += ask(program, "wake", *self.shape, self.payload.batch_size, seconds)

    def _note(self, who: str, rate: float, effort: float) -> None:
        self.rates.setdefault(who, []).append(rate)
        self.efforts.setdefault(who, []).append(effort)

    @property
    def title(self) -> str:
        return f"{self.payload.title}, {self.workers} worker{'s' * (self.workers > 1)}"


def table(lines: list[Line]) -> str:
    names = list(lines[0].rates)
    rows = [["GB/s (of a second of CPU time)", *names], ["---"] * (1 + len(names))]
    for line in lines:
        cells = [f"{median(line.rates[name]) / 1e9:.1f} ({median(line.efforts[name]) / 1e9:.1f})" for name in names]
        rows.append([line.title, *cells])
    rows += [[], ["CPU of the learner, µs", "for a batch", "of a bare futex sleeper", "for a sample", "of a bare one"], ["---"] * 5]
    for line in lines:
        own, bare, batch = median(line.learner) * 1e6, median(line.woken) * 1e6, line.payload.batch_size
        rows.append([f"{line.title}, batches of {batch}", *(f"{us:.2f}" for us in (own, bare, own / batch, bare / batch))])
    return "\n".join(f"| {' | '.join(row)} |" if row else "" for row in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copies", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each measurement")
    parser.add_argument("--only", nargs="+", metavar="PAYLOAD/WORKERS", default=["28KB/1", "28KB/4", "1MB/1"])
    options = parser.parse_args(argv)
    lines = [Line(PAYLOADS[name], int(workers)) for name, _, workers in (word.partition("/") for word in options.only)]
    program = build()
    for _ in range(options.rounds):
        for line in lines:
            line.round(program, options.seconds)
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
