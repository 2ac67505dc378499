"""Compare echo_rl's compiled kernels with those in numpy, and its replay and prefix lookup with the public Echo-RL repository; one thread.

Run: `python -m benchmarks.rl.kernels`. The public figures were recorded on another day, so that their ratios are orders of magnitude.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, ReplayConfig
from echo_rl.kernels import _native, bandwidth, plans, prefix_match, sequences

# Seconds that the public repository took: one draw of 256 of a million, one insert at capacity, one ageing of a million, one lookup.
PUBLIC = {"draw 256": 0.338, "insert at capacity": 1 / 571, "ageing, 256 leave": 1.248, "ageing, 10 000 leave": 1.248, "prefix lookup 512 x 16": 0.0105}
WANTED = {"draw 256": 500, "insert at capacity": 100, "ageing, 256 leave": 1000, "ageing, 10 000 leave": 1000, "prefix lookup 512 x 16": 500}


def seconds(work: Callable[[], object], times: int) -> float:
    """The median of the seconds that `work` takes."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def filled(size: int, each: int) -> PrioritizedReplayBuffer:
    """A full buffer of `size` items, `each` of every version; another version removes those of the oldest."""
    rng, versions = np.random.default_rng(0), size // each
    buffer = PrioritizedReplayBuffer(ReplayConfig(hot_buffer_size=size // 10, cold_buffer_size=size - size // 10, max_replay_age=versions, seed=0))
    for version in range(versions):
        buffer.add_batch({"x": rng.normal(size=(each, 8))}, rng.random(each))
        buffer.advance(version + 1)
    return buffer


def replay(size: int) -> dict[str, float]:
    """Seconds of a draw, of an insert, and of an ageing in which 256 or 10 000 items become too old."""
    found: dict[str, float] = {}
    for each, name in ((256, "ageing, 256 leave"), (10_000, "ageing, 10 000 leave")):
        buffer = filled(size, each)
        versions = size // each
        steps = iter(range(versions + 1, 2 * versions))
        found[name] = seconds(lambda buffer=buffer, steps=steps: buffer.advance(next(steps)), min(50, versions // 2))
        buffer.close()
    rng, buffer = np.random.default_rng(1), filled(size, 10_000)
    more, scores = {"x": rng.normal(size=(256, 8))}, rng.random(256)
    found["draw 256"] = seconds(lambda: buffer.sample_batch(256), 200)
    found["insert at capacity"] = seconds(lambda: buffer.add_batch(more, scores), 200) / 256
    buffer.close()
    return found


def lookup(tokens: int, sequences: int) -> float:
    """Seconds to find the longest prefix of a sequence among cached ones as long as it; the last of them matches longest."""
    rng = np.random.default_rng(0)
    wanted = rng.integers(0, 1000, tokens)
    cached = np.repeat(wanted[None], sequences, 0)
    for i in range(sequences):
        cached[i, tokens * i // sequences] += 1
    return seconds(lambda: prefix_match(wanted, cached), 1000)


def kernels() -> dict[str, tuple[float, float]]:
    """Seconds of each kernel in numpy and compiled, on sizes of one learner's step: 256 plans of 512 numbers in float32."""
    rng = np.random.default_rng(0)
    many, mean, rewards = rng.normal(size=(256, 512)).astype(np.float32), rng.normal(size=512), rng.random(256)
    cached = np.repeat(rng.integers(0, 1000, 512)[None], 16, 0)
    for i in range(16):
        cached[i, 32 * i] += 1
    trackers = {module: module.EMAPlanTracker(512) for module in (plans, _native)}
    cases: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
        "plan_surprise_batch 256 x 512": (plans, "plan_surprise_batch", (many, mean, rewards)),
        "temporal_kl_batch 256 x 512": (plans, "temporal_kl_batch", (many, many[::-1])),
        "plan_surprise 512": (plans, "plan_surprise", (many[0], mean, 1.0)),
        "temporal_kl 512": (plans, "temporal_kl", (many[0], many[1])),
        "attention_bandwidth_cost": (bandwidth, "attention_bandwidth_cost", (128,)),
        "effective_bandwidth_cost": (bandwidth, "effective_bandwidth_cost", (128, 96)),
        "bandwidth_efficiency": (bandwidth, "bandwidth_efficiency", (1.0, 2.0, 3.0)),
        "attention_bandwidth_cost_batch 256": (bandwidth, "attention_bandwidth_cost_batch", (rng.integers(1, 4096, 256),)),
        "schedule_priorities 256": (bandwidth, "schedule_priorities", (rewards, rewards, rewards)),
        "bandwidth_aware_priorities 256": (bandwidth, "bandwidth_aware_priorities", (rewards, rewards, rewards)),
        "prefix_match 512 x 16": (sequences, "prefix_match", (cached[15], cached)),
        "prefix_match 512 x 16, a list": (sequences, "prefix_match", (cached[15], list(cached))),
        "priority_sample 256 of 100 000": (sequences, "priority_sample", (rng.random(100_000), 256, 1.0, 1.0, 1)),
        "state_hash 512": (sequences, "state_hash", (many[0],)),
    }
    found = {}
    for name, (module, function, arguments) in cases.items():
        slow, fast = (partial(getattr(kind, function), *arguments) for kind in (module, _native))
        found[name] = (seconds(slow, 300), seconds(fast, 300))
    found["EMAPlanTracker.update 512"] = (seconds(lambda: trackers[plans].update(mean), 300), seconds(lambda: trackers[_native].update(mean), 300))
    return found


def main() -> None:
    """Print each figure, what it is compared with and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="items of the full buffer")
    for name, (slow, fast) in kernels().items():
        print(f"{name:36} numpy {slow * 1e6:9.2f} us   compiled {fast * 1e6:9.2f} us   {slow / fast:6.1f}x")
    found = {**replay(parser.parse_args().size), "prefix lookup 512 x 16": max(lookup(512, 16), lookup(16, 512))}
    for name, taken in found.items():
        print(f"{name:36} {taken * 1e6:10.1f} us   public {PUBLIC[name] * 1e6:10.1f} us   {PUBLIC[name] / taken:8.0f}x (wanted {WANTED[name]}x)")


if __name__ == "__main__":
    main()
