"""A network that balances the pole, and what its parameters are worth."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from echo_es.flatten import flatten, unflatten

__all__ = ["DIMS", "evaluate", "play", "start"]

HIDDEN = 16
NETWORK = {"in": np.zeros((4, HIDDEN), np.float32), "bias": np.zeros(HIDDEN, np.float32), "out": np.zeros((HIDDEN, 2), np.float32)}
DIMS = flatten(NETWORK).size


def start(seed: int) -> np.ndarray[Any, Any]:
    """Where the search begins, shape (DIMS,). Not at zero: there, a product of two layers has no gradient."""
    return np.random.default_rng(seed).normal(0, 0.5, DIMS).astype(np.float32)


def play(env: gymnasium.Env[Any, Any], theta: np.ndarray[Any, Any], seed: int) -> float:
    """The return of one episode with the parameters `theta`, shape (DIMS,). The seed says how the pole stands at first."""
    network = unflatten(theta, NETWORK)
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        scores = np.tanh(observation @ network["in"] + network["bias"]) @ network["out"]
        observation, reward, terminated, truncated, _ = env.step(int(scores[1] > scores[0]))
        total, over = total + float(reward), terminated or truncated
    return total


def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> list[float]:
    """The returns of candidates, shape (n, DIMS). All candidates of an epoch begin with the same pole, so that they differ by their parameters alone."""
    env = gymnasium.make("CartPole-v1")
    try:
        return [play(env, theta, seed=epoch) for theta in thetas]
    finally:
        env.close()
