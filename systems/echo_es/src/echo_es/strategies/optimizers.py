"""Gradient ascent, with the moments in the strategy's state."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .base import Array, State

__all__ = ["OPTIMIZERS", "Optimizer", "finite"]


class Optimizer(Protocol):
    def init(self, theta: Array) -> State:
        """Moments of zero."""

    def step(self, state: State, gradient: Array, lr: float, count: int) -> tuple[Array, State]:
        """What to add to theta at step number `count`, which begins at 1, and the new moments."""


class _SGD:
    momentum = 0.9

    def init(self, theta: Array) -> State:
        return {"momentum": np.zeros_like(theta)}

    def step(self, state: State, gradient: Array, lr: float, count: int) -> tuple[Array, State]:
        momentum = self.momentum * state["momentum"] + (1 - self.momentum) * gradient
        return lr * momentum, {"momentum": momentum}


class _Adam:
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def init(self, theta: Array) -> State:
        return {"adam_mean": np.zeros_like(theta), "adam_square": np.zeros_like(theta)}

    def step(self, state: State, gradient: Array, lr: float, count: int) -> tuple[Array, State]:
        mean = self.beta1 * state["adam_mean"] + (1 - self.beta1) * gradient
        square = self.beta2 * state["adam_square"] + (1 - self.beta2) * gradient * gradient
        rate = lr * float(np.sqrt(1 - self.beta2**count)) / (1 - self.beta1**count)
        return rate * mean / (np.sqrt(square) + self.epsilon), {"adam_mean": mean, "adam_square": square}


def finite(gradient: Array) -> Array:
    """The gradient. Raises ValueError if rewards that nothing shaped have made it or its square infinite: moments never come back from that."""
    if not np.isfinite(gradient @ gradient):
        raise ValueError("rewards: they are too large for the parameters' dtype; scale them, or use shaping='centered_rank'")
    return gradient


OPTIMIZERS: dict[str, Optimizer] = {"adam": _Adam(), "sgd": _SGD()}
