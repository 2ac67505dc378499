"""The learning: double DQN (van Hasselt et al. 2016) with importance weights (Schaul et al. 2016), in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cartpole.algorithm import Adam
from ..cartpole.network import Layers, backward, forward, layers_over, orthogonal, parameters


@dataclass(frozen=True)
class Settings:
    """Parameters of the learning. `reward_scale` keeps values near ten, so that errors stay within the quadratic part of the Huber loss."""

    learning_rate: float = 1e-3  # at first; it falls to a tenth during a run
    reward_scale: float = 0.05
    follow: float = 0.02  # share by which the target network moves towards the online one at each update
    gradient_norm: float = 10.0


class QNetwork:
    """Action values over one flat parameter vector. `layers` are views of it, and `gradients` are views of `gradient`."""

    def __init__(self, observations: int, actions: int, hidden: tuple[int, ...] = (64, 64), seed: int = 0, dtype: Any = np.float32) -> None:
        sizes = (observations, *hidden, actions)
        self.flat = np.zeros(parameters(sizes), dtype)
        self.gradient = np.zeros_like(self.flat)
        self.layers: Layers = layers_over(self.flat, sizes, 0)[0]
        self.gradients: Layers = layers_over(self.gradient, sizes, 0)[0]
        rng = np.random.default_rng(seed)
        for layer, (n_in, n_out) in zip(self.layers, pairwise(sizes), strict=True):
            layer["w"][...] = (np.sqrt(2.0) if n_out != actions else 0.1) * orthogonal(rng, n_in, n_out)


def loss_and_errors(
    network: QNetwork, obs: NDArray[Any], actions: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any]
) -> tuple[float, NDArray[Any]]:
    """The weighted Huber loss over (N,) transitions, and their errors (target minus value). The gradient is written to `network.gradient`."""
    values, inputs = forward(network.layers, obs)
    rows = np.arange(len(actions))
    errors = targets - values[rows, actions]
    size = np.abs(errors)
    loss = float((weights * np.where(size <= 1.0, 0.5 * errors * errors, size - 0.5)).mean())
    slope = np.zeros_like(values)
    slope[rows, actions] = -weights * np.clip(errors, -1.0, 1.0) / len(actions)
    backward(network.layers, inputs, slope, network.gradients)
    return loss, errors


class Agent:
    """An online network, a target network that follows it, and the optimiser."""

    def __init__(self, observations: int, actions: int, settings: Settings, seed: int = 0) -> None:
        self.settings = settings
        self.online = QNetwork(observations, actions, seed=seed)
        self.target = QNetwork(observations, actions, seed=seed)
        self.optimiser = Adam(self.online.flat.size)

    def learn(self, sample: Any, progress: float = 0.0) -> NDArray[Any]:
        """Make one update on the N transitions of a table's sample. `progress` (0 to 1) says how much of the run is over.

        Returns their temporal-difference errors (N,), whose absolute values are their next priorities.
        """
        settings, rows, following = self.settings, np.arange(len(sample.weights)), sample.next["obs"]
        best = forward(self.online.layers, following)[0].argmax(axis=1)
        values = forward(self.target.layers, following)[0][rows, best]
        # A terminated episode has no value after its end. One that was cut off is bootstrapped from its last observation.
        targets = settings.reward_scale * sample.returns + sample.discounts * ~sample.terminated * values
        _, errors = loss_and_errors(self.online, sample.batch["obs"], sample.batch["action"], targets.astype(np.float32), sample.weights)
        self.optimiser.step(self.online.flat, self.online.gradient, settings.learning_rate * (1 - 0.9 * progress), settings.gradient_norm)
        self.target.flat += settings.follow * (self.online.flat - self.target.flat)
        return errors
