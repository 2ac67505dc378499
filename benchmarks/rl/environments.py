"""The environments of echo-rl: what the oracle and random actions reach, and steps per second of CPU time.

    python -m benchmarks.rl.environments [--episodes 200] [NAME ...]

It prints a row of Markdown for each task. Episodes have the seeds from 0 on. CPU time is that of this process and of those that
it started; it includes ``reset``.
"""

from __future__ import annotations

import argparse
import resource
from typing import Any

import numpy as np

from echo_rl.environments import CheckedEnvironment, make_environment

HOUSEHOLD = ("pick_and_place", "look_in_light", "clean_and_place", "heat_and_place", "cool_and_place", "pick_two")
#: The rows: a title, the environment, its options, and by which number its episodes are divided because they take long.
TASKS: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("minigrid, key_door, 8 x 8", "minigrid", {}, 2),
    ("minigrid, multi_object", "minigrid", {"task_type": "multi_object"}, 2),
    ("minigrid, navigation", "minigrid", {"task_type": "navigation"}, 2),
    ("minigrid, BabyAI-BossLevel-v0", "minigrid", {"env_id": "BabyAI-BossLevel-v0"}, 10),
    ("arc, pattern_completion", "arc", {}, 1),
    ("arc, ARC-1 eval", "arc", {"task_type": "transformation", "split": "eval", "grid_size": 30}, 1),
    ("arc, ARC-2 eval", "arc", {"task_type": "transformation", "dataset": "arc2", "split": "eval", "grid_size": 30}, 1),
    ("webshop-like, electronics", "webshop-like", {}, 1),
    ("webshop-like, clothing", "webshop-like", {"website_type": "clothing"}, 1),
    ("cruxeval, output", "cruxeval", {}, 1),
    ("cruxeval, input", "cruxeval", {"task_type": "input", "allow_code": True}, 2),
    ("cruxeval, repair", "cruxeval", {"task_type": "repair", "allow_code": True}, 2),
    *((f"alfworld, {kind}", "alfworld", {"task_type": kind}, 1) for kind in HOUSEHOLD),
)


def cpu() -> float:
    """Seconds of CPU time that this process and its ended children have used."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def played(task: CheckedEnvironment, policy: str, episodes: int) -> tuple[float, float, float]:
    """The share of successes, the mean return, and steps per second of CPU time."""
    environment: Any = task.environment
    task.reset(0)
    begun, wins, total, steps = cpu(), 0, 0.0, 0
    for seed in range(episodes):
        rng, over = np.random.default_rng([seed, 1]), False
        task.reset(seed)
        while not over:
            transition = task.step(_action(environment, policy, rng))
            steps, total, over = steps + 1, total + transition.reward, transition.terminated or transition.truncated
        wins += transition.info["success"]
    return wins / episodes, total / episodes, steps / max(cpu() - begun, 1e-9)


def _action(environment: Any, policy: str, rng: np.random.Generator) -> Any:
    if policy == "oracle":
        return environment.solve()
    if hasattr(environment, "sample"):
        return environment.sample(rng)
    return environment.admissible[int(rng.integers(len(environment.admissible)))]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rl.environments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only tasks whose title contains one of these")
    parser.add_argument("--episodes", type=int, default=200)
    chosen = parser.parse_args(arguments)
    print("| task | episodes | oracle: success | random: success | random: mean return | steps/s, random |\n|---|---|---|---|---|---|")
    for title, name, options, divisor in TASKS:
        if chosen.names and not any(part in title for part in chosen.names):
            continue
        task, episodes = make_environment(name, **options), max(1, chosen.episodes // divisor)
        oracle, luck = played(task, "oracle", episodes), played(task, "random", episodes)
        print(f"| {title} | {episodes} | {oracle[0]:.1%} | {luck[0]:.1%} | {luck[1]:.3f} | {luck[2]:,.0f} |", flush=True)
        task.close()


if __name__ == "__main__":
    main()
