"""Plays whole episodes, for the tests of environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from echo_rl.environments import CheckedEnvironment, Transition


def choice(task: CheckedEnvironment, policy: str, rng: np.random.Generator) -> Any:
    """An action of a policy: the oracle's, or a random one of those that are possible."""
    environment: Any = task.environment
    if policy == "oracle":
        return environment.solve()
    if hasattr(environment, "sample"):
        return environment.sample(rng)
    actions = task.admissible
    assert actions
    return actions[int(rng.integers(len(actions)))]


def episode(task: CheckedEnvironment, policy: str, seed: int) -> list[Transition]:
    """All transitions of one episode."""
    rng, transitions = np.random.default_rng([7, seed]), []
    task.reset(seed)
    while not transitions or not (transitions[-1].terminated or transitions[-1].truncated):
        transitions.append(task.step(choice(task, policy, rng)))
    return transitions


def successes(task: CheckedEnvironment, policy: str, episodes: int) -> float:
    """The share of episodes that a policy solves, of the seeds from 0 on."""
    return sum(episode(task, policy, seed)[-1].info["success"] for seed in range(episodes)) / episodes


def trace(task: CheckedEnvironment, seed: int, steps: int = 40) -> list[Any]:
    """All that random actions see in one episode."""
    rng = np.random.default_rng(seed)
    seen: list[Any] = [task.reset(seed)]
    for _ in range(steps):
        transition = task.step(choice(task, "random", rng))
        seen.append((transition, task.admissible))
        if transition.terminated or transition.truncated:
            break
    return seen


def farmed(task: CheckedEnvironment, action: Any, seed: int = 0, steps: int = 30) -> float:
    """The return of doing the same again and again."""
    task.reset(seed)
    total = 0.0
    for _ in range(steps):
        transition = task.step(action)
        total += transition.reward
        if transition.terminated or transition.truncated:
            break
    return total
