"""Rollouts that share keys and values, through asyncio: what sharing saves, and what a priority buys.

    python async_execution_demo.py --plot execution.png
    python async_execution_demo.py --model FOLDER       # config.json and safetensors of a GPT-2 or a Llama

Eight tasks have eight rollouts each; the rollouts of a task share a prompt. The control has prompts of the same lengths that share nothing. Without
--model the weights are random, which changes what is written and not what it costs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

import numpy as np
import torch

from echo_rl.core import ExecutionConfig
from echo_rl.core.async_execution import AsyncExecutionEngine
from echo_rl.engine import Model, ModelConfig

TASKS, EACH = 8, 8


def prompts(model: Model, length: int, shared: bool) -> list[list[int]]:
    """The prompts of all rollouts, task by task."""
    rng, vocab = random.Random(0), model.config.vocab
    found = []
    for task in range(TASKS):
        prompt = [rng.randrange(vocab) for _ in range(length)]
        # Another first token is another sequence: nothing behind it can be shared.
        found += [prompt if shared else [task * EACH + i, *prompt[1:]] for i in range(EACH)]
    return found


async def serve(model: Model, config: ExecutionConfig, jobs: list[list[int]], priorities: list[float]) -> dict[str, Any]:
    """Runs every job and returns times and counters."""
    engine = AsyncExecutionEngine(config, model)
    begin, cpu = time.perf_counter(), time.process_time()

    async def one(job: list[int], priority: float) -> tuple[float, int]:
        number = await engine.submit_rollout(job, priority)
        result = await engine.result(number, timeout=600)
        return time.perf_counter() - begin, len(result.tokens)

    done = await asyncio.gather(*(one(job, priority) for job, priority in zip(jobs, priorities, strict=True)))
    found: dict[str, Any] = {"seconds": [seconds for seconds, _ in done], "cpu": time.process_time() - cpu, "made": sum(made for _, made in done)}
    return found | engine.cache.stats()


async def swapped(model: Model, config: ExecutionConfig, jobs: list[list[int]]) -> tuple[int, int]:
    """New weights arrive while rollouts run. Returns how many tokens the old and the new version made."""
    engine = AsyncExecutionEngine(config, model)
    numbers = [await engine.submit_rollout(job) for job in jobs[:EACH]]
    await anext(engine.stream(numbers[0]))
    await engine.update_weights({name: value * 1.01 for name, value in model.weights.items()}, version=1)
    versions = np.concatenate([(await engine.result(number, timeout=600)).versions for number in numbers])
    return int((versions == 0).sum()), int((versions == 1).sum())


def draw(runs: dict[str, dict[str, Any]], priorities: list[float], path: str) -> None:
    """Left: CPU seconds and prompt tokens with and without sharing. Right: when rollouts of each priority ended."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for i, name in enumerate(("shared", "nothing shared")):
        run = runs[name]
        hit, asked = run["hit_tokens"], run["asked_tokens"]
        left.barh(i, asked - hit, color="tab:orange", label="computed" if not i else None)
        left.barh(i, hit, left=asked - hit, color="tab:green", alpha=0.5, label="found in the cache" if not i else None)
        left.text(asked / 2, i, f"hit rate {run['hit_rate']:.2f}, {run['cpu']:.2f} CPU s", ha="center", va="center")
    left.set(title="prompt tokens of 64 rollouts", yticks=[0, 1], yticklabels=["shared", "nothing\nshared"], ylim=(-0.6, 2.1))
    left.legend(loc="upper right")
    for level in sorted(set(priorities)):
        ends = sorted(seconds for seconds, priority in zip(runs["priorities"]["seconds"], priorities, strict=True) if priority == level)
        right.step([0, *ends], [0, *(100 * (i + 1) / len(ends) for i in range(len(ends)))], where="post", label=f"priority {level:g}", linewidth=2)
    right.set(title="8 slots for 64 rollouts", xlabel="seconds since all were submitted", ylabel="rollouts that ended, %")
    right.legend()
    right.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints the counters and times of each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a folder with config.json and safetensors")
    parser.add_argument("--length", type=int, default=192, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens that a rollout adds")
    parser.add_argument("--plot", help="a picture; needs matplotlib")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = ModelConfig("gpt2", vocab=1000, layers=4, heads=4, width=128, inner=512, context=options.length + options.new)
    model = Model.load(options.model) if options.model else Model.random(shape)
    whole = {"max_cache_size": 64 * (options.length + options.new), "max_new_tokens": options.new}
    jobs, equal = prompts(model, options.length, shared=True), [1.0] * (TASKS * EACH)
    runs = {
        "shared": asyncio.run(serve(model, ExecutionConfig(**whole), jobs, equal)),
        "nothing shared": asyncio.run(serve(model, ExecutionConfig(**whole), prompts(model, options.length, shared=False), equal)),
    }
    for name, run in runs.items():
        print(f"{name:15} {run['made']} new tokens in {run['cpu']:.2f} CPU s, {run['hit_tokens']} of {run['asked_tokens']} prompt tokens found "
              f"(hit rate {run['hit_rate']:.3f}), {run['tree_bytes'] / 1e6:.1f} MB of keys and values at the end")  # fmt: skip
    print(f"sharing makes it {runs['nothing shared']['cpu'] / runs['shared']['cpu']:.1f} times cheaper")
    priorities = [10.0 if i % 4 == 0 else 1.0 for i in range(TASKS * EACH)]
    runs["priorities"] = asyncio.run(
        serve(model, ExecutionConfig(max_concurrent_rollouts=8, **whole), prompts(model, options.length, shared=False), priorities)
    )
    for level in (10.0, 1.0):
        seconds = [s for s, priority in zip(runs["priorities"]["seconds"], priorities, strict=True) if priority == level]
        print(f"priority {level:4.0f}: {len(seconds)} rollouts, mean {np.mean(seconds):.2f} s, last {max(seconds):.2f} s")
    old, new = asyncio.run(swapped(model, ExecutionConfig(**whole), jobs))
    print(f"weights swapped between tokens: {old} tokens of version 0, {new} of version 1")
    if options.plot:
        draw(runs, priorities, options.plot)


if __name__ == "__main__":
    main()
