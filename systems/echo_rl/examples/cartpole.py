"""CartPole (Barto, Sutton and Anderson 1983) of many environments at once, with the constants of Gymnasium's CartPole-v1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * np.pi / 360
SCALES = np.array([X_LIMIT, 2.0, ANGLE_LIMIT, 2.0])
"""What each number is divided by, so that policies see numbers of about 1."""


def moved(state: Floats, actions: NDArray[Any]) -> Floats:
    """The states (n, 4) after one step: position, velocity, angle, angular velocity. Action 1 pushes to the right, and 0 to the left."""
    x, velocity, angle, turning = state.T
    force = np.where(actions == 1, FORCE, -FORCE)
    cos, sin, total = np.cos(angle), np.sin(angle), CART + POLE
    common = (force + POLE * HALF_LENGTH * turning**2 * sin) / total
    twist = (GRAVITY * sin - cos * common) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / total))
    push = common - POLE * HALF_LENGTH * twist * cos / total
    return np.stack([x + SECONDS * velocity, velocity + SECONDS * push, angle + SECONDS * turning, turning + SECONDS * twist], axis=1)


@dataclass
class Step:
    """Of n environments: the states that a step led to, and which episodes ended. `returns` are the lengths of those that did."""

    states: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    returns: list[int]


class CartPoles:
    """`count` environments; the reward of every step is 1. With `velocities=False` a policy sees positions only and must remember them."""

    def __init__(self, count: int, seed: int, velocities: bool = True, limit: int = 500) -> None:
        self.rng, self.limit = np.random.default_rng(seed), limit
        self.columns = [0, 1, 2, 3] if velocities else [0, 2]
        self.state, self.ages = self._fresh(count), np.zeros(count, np.int64)

    def seen(self) -> Floats:
        """What a policy sees, (count, 4) or (count, 2)."""
        return (self.state / SCALES)[:, self.columns]

    def step(self, actions: NDArray[Any]) -> Step:
        """Moves all environments. Those whose episode ended begin the next one, which `seen()` then shows."""
        self.state = moved(self.state, actions)
        self.ages += 1
        terminated = (np.abs(self.state[:, 0]) > X_LIMIT) | (np.abs(self.state[:, 2]) > ANGLE_LIMIT)
        truncated = ~terminated & (self.ages >= self.limit)
        over = terminated | truncated
        found = Step(self.seen(), terminated, truncated, self.ages[over].tolist())
        self.state[over], self.ages[over] = self._fresh(int(over.sum())), 0
        return found

    def _fresh(self, count: int) -> Floats:
        return self.rng.uniform(-0.05, 0.05, (count, 4))
