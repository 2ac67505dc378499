"""A worker of the real package `evochi` that evaluates nothing: it counts epochs for `benchmarks/es/evochi_front.py`, and prints epochs per second."""

from __future__ import annotations

import asyncio
import sys
import time

import evochi.v1 as evochi
import grpc.aio


class Nothing(evochi.Worker[int]):  # type: ignore[misc]
    begun = 0.0
    epochs = 0

    def initialize(self) -> int:
        return 1

    def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
        return [evochi.Eval(part, [1.0] * (part.stop - part.start)) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> int:
        now = time.perf_counter()
        if not self.begun and now > warm:
            self.begun = now
        elif self.begun:
            self.epochs += 1
            if now > self.begun + seconds:
                print(self.epochs / (now - self.begun), flush=True)
                self.begun = float("inf")
        return 1


async def main() -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await Nothing(channel, cores).start()


if __name__ == "__main__":
    port, cores, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    warm = time.perf_counter() + float(sys.argv[4])
    asyncio.run(main())
