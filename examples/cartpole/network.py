"""A small actor-critic in numpy: the forward pass, and gradients written by hand.

It has two separate tanh networks, because in a shared trunk the value error, which is large at
first, would dominate the policy's gradient. All parameters are in one flat vector, and the layers are
views of it. The optimiser is therefore a few numpy operations on one array, and these views are
published as weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Layers = list[dict[str, NDArray[Any]]]
"""One dict per layer: ``w`` (inputs, outputs) and ``b`` (outputs,)."""


def forward(layers: Layers, x: NDArray[Any]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Run a tanh network with a linear last layer over ``x`` of shape (N, inputs).

    Returns the outputs (N, outputs) and every layer's input, which `backward` needs.
    """
    inputs = [x]
    for layer in layers[:-1]:
        x = x @ layer["w"]
        x += layer["b"]
        np.tanh(x, out=x)
        inputs.append(x)
    return x @ layers[-1]["w"] + layers[-1]["b"], inputs


def backward(
    layers: Layers, inputs: list[NDArray[Any]], d_out: NDArray[Any], gradients: Layers
) -> None:
    """Write the gradients of a loss into ``gradients``, given ``d_out`` = dloss/doutputs."""
    d = d_out
    for index in range(len(layers) - 1, -1, -1):
        np.matmul(inputs[index].T, d, out=gradients[index]["w"])
        np.sum(d, axis=0, out=gradients[index]["b"])
        if index:
            d = d @ layers[index]["w"].T
            d *= 1.0 - inputs[index] * inputs[index]  # the derivative of tanh, from its output


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Log-probabilities (N, actions) of the categorical distribution over ``logits``."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalised: NDArray[Any] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


class ActorCritic:
    """Policy and value network over one flat parameter vector.

    ``flat`` and ``gradient`` are vectors of the same length; ``actor``/``critic`` and
    ``actor_gradient``/``critic_gradient`` are views into them, layer by layer.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: tuple[int, ...] = (64, 64),
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        actor_sizes = (observations, *hidden, actions)
        critic_sizes = (observations, *hidden, 1)
        count = parameters(actor_sizes) + parameters(critic_sizes)
        self.flat = np.zeros(count, dtype)
        self.gradient = np.zeros(count, dtype)
        self.actor, offset = layers_over(self.flat, actor_sizes, 0)
        self.critic, _ = layers_over(self.flat, critic_sizes, offset)
        self.actor_gradient, _ = layers_over(self.gradient, actor_sizes, 0)
        self.critic_gradient, _ = layers_over(self.gradient, critic_sizes, offset)
        rng = np.random.default_rng(seed)
        for layers, last_gain in ((self.actor, 0.01), (self.critic, 1.0)):
            for index, layer in enumerate(layers):
                # A nearly uniform first policy explores; tanh layers keep their variance.
                gain = last_gain if index == len(layers) - 1 else np.sqrt(2.0)
                layer["w"][...] = gain * orthogonal(rng, *layer["w"].shape)

    def values(self, observations: NDArray[Any]) -> NDArray[Any]:
        """State values (N,) of observations (N, observations)."""
        return forward(self.critic, observations)[0][:, 0]

    def log_probs(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Log-probabilities (N, actions) of observations (N, observations)."""
        return log_softmax(forward(self.actor, observations)[0])


def parameters(sizes: tuple[int, ...]) -> int:
    """The number of parameters of a network with layers of these sizes."""
    return sum(n_in * n_out + n_out for n_in, n_out in pairwise(sizes))


def layers_over(flat: NDArray[Any], sizes: tuple[int, ...], offset: int) -> tuple[Layers, int]:
    """A network's layers as views into ``flat`` from ``offset`` on, and the offset where they end."""
    layers: Layers = []
    for n_in, n_out in pairwise(sizes):
        w = flat[offset : offset + n_in * n_out].reshape(n_in, n_out)
        offset += n_in * n_out
        b = flat[offset : offset + n_out]
        offset += n_out
        layers.append({"w": w, "b": b})
    return layers, offset


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[Any]:
    """A random matrix whose rows are orthonormal, or its columns if there are fewer of them."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T
