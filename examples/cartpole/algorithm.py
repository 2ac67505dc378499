"""The learning algorithm: PPO's clipped objective on V-trace advantages, in numpy.

When the learner learns from a rollout, the policy that made it is some versions old. V-trace
(Espeholt et al. 2018) corrects the value targets for that, with the behaviour log-probabilities in
every rollout. PPO's clipping (Schulman et al. 2017) prevents several passes over one batch from
moving the policy too far away from the one that acted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .network import ActorCritic, backward, forward, log_softmax


@dataclass(frozen=True)
class Settings:
    """Parameters of the learning.

    ``reward_scale`` keeps the values near one. With values of a hundred, their error would dominate
    the gradient, and noise would disturb a good policy.
    """

    learning_rate: float = 1e-3
    discount: float = 0.99
    reward_scale: float = 0.1
    trace: float = 0.95
    clip: float = 0.2
    value_cost: float = 0.5
    entropy_cost: float = 0.005
    gradient_norm: float = 0.5
    epochs: int = 4
    minibatches: int = 4


@dataclass(frozen=True)
class Losses:
    """Means over one batch: the parts of the objective, and how far the policy moved."""

    policy: float
    value: float
    entropy: float
    divergence: float


class Adam:
    """Adam on one flat vector, with the gradient's norm clipped first."""

    def __init__(self, size: int, dtype: Any = np.float32) -> None:
        self.mean = np.zeros(size, dtype)
        self.square = np.zeros(size, dtype)
        self.steps = 0

    def step(self, flat: NDArray[Any], gradient: NDArray[Any], rate: float, norm: float) -> None:
        """Change ``flat`` in place; ``gradient`` is scaled down to ``norm`` if it is longer."""
        self.steps += 1
        length = float(np.sqrt(gradient @ gradient))
        g = gradient * min(1.0, norm / (length + 1e-8))
        self.mean += 0.1 * (g - self.mean)
        self.square += 0.001 * (g * g - self.square)
        mean = self.mean / (1.0 - 0.9**self.steps)
        square = self.square / (1.0 - 0.999**self.steps)
        flat -= rate * mean / (np.sqrt(square) + 1e-5)


def vtrace(
    values: NDArray[Any],
    rewards: NDArray[Any],
    terminated: NDArray[Any],
    valid: NDArray[Any],
    ratios: NDArray[Any],
    discount: float,
    trace: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Value targets and advantages, both (B, T).

    ``values`` is (B, T + 1); everything else is (B, T). ``ratios`` are the new probabilities of the
    taken actions, divided by the behaviour probabilities. ``valid`` is False on steps in which a
    vector environment resets itself. Nothing is learned from them, and because one follows every end
    of an episode, no trace runs across two episodes. A truncated episode is bootstrapped from its
    last observation; a terminated one has value 0 after its end.
    """
    follow = discount * (1.0 - terminated)
    rho = np.minimum(ratios, 1.0)
    delta = rho * (rewards + follow * values[:, 1:] - values[:, :-1]) * valid
    carry = follow * trace * rho * valid
    excess = np.zeros_like(values)  # target minus value; zero after the last step
    for t in range(rewards.shape[1] - 1, -1, -1):
        excess[:, t] = delta[:, t] + carry[:, t] * excess[:, t + 1]
    targets = excess[:, :-1] + values[:, :-1]
    # The advantage uses the trace from the next step on, like generalised advantage estimation; both
    # are the same on policy.
    advantages = (
        rewards + follow * (values[:, 1:] + trace * excess[:, 1:]) - values[:, :-1]
    ) * valid
    return targets, advantages


def loss_and_gradient(
    network: ActorCritic,
    observations: NDArray[Any],
    actions: NDArray[Any],
    behaviour: NDArray[Any],
    advantages: NDArray[Any],
    targets: NDArray[Any],
    settings: Settings,
) -> tuple[float, Losses]:
    """The loss over N steps; its gradient is written to ``network.gradient``.

    ``behaviour`` (N,) are log-probabilities of ``actions`` (N,) when they were taken.
    """
    count = len(actions)
    rows = np.arange(count)
    logits, actor_inputs = forward(network.actor, observations)
    outputs, critic_inputs = forward(network.critic, observations)
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    ratio = np.exp(log_p[rows, actions] - behaviour)
    plain = ratio * advantages
    clipped = np.clip(ratio, 1.0 - settings.clip, 1.0 + settings.clip) * advantages
    entropy = -(p * log_p).sum(axis=1)
    error = outputs[:, 0] - targets

    policy_loss = -float(np.minimum(plain, clipped).mean())
    value_loss = 0.5 * float((error * error).mean())
    mean_entropy = float(entropy.mean())
    loss = policy_loss + settings.value_cost * value_loss - settings.entropy_cost * mean_entropy

    # If the clipped branch is the smaller one, it is constant and has no gradient.
    d_log_p = np.where(plain <= clipped, -plain, 0.0)[:, None] / count
    d_logits = -p * d_log_p
    d_logits[rows, actions] += d_log_p[:, 0]
    d_logits += (settings.entropy_cost / count) * p * (log_p + entropy[:, None])
    d_values = (settings.value_cost / count) * error[:, None]
    backward(network.actor, actor_inputs, d_logits.astype(logits.dtype), network.actor_gradient)
    backward(network.critic, critic_inputs, d_values.astype(logits.dtype), network.critic_gradient)
    divergence = float((ratio - 1.0 - np.log(ratio)).mean())
    return loss, Losses(policy_loss, value_loss, mean_entropy, divergence)


class Learner:
    """Turns batches of rollouts into better parameters."""

    def __init__(self, network: ActorCritic, settings: Settings, seed: int = 0) -> None:
        self.network = network
        self.settings = settings
        self.optimiser = Adam(network.flat.size, network.flat.dtype)
        self.rng = np.random.default_rng(seed)

    def learn(self, batch: dict[str, NDArray[Any]], rate: float | None = None) -> Losses:
        """Make several passes over one batch of B rollouts of T steps (see `rollout.example`)."""
        settings, network = self.settings, self.network
        rate = settings.learning_rate if rate is None else rate
        observations = batch["obs"]  # (B, T + 1, 4)
        size, steps = batch["action"].shape
        values = network.values(observations.reshape(size * (steps + 1), -1))
        current = observations[:, :-1].reshape(size * steps, -1)
        actions = batch["action"].reshape(-1).astype(np.intp)
        log_p = network.log_probs(current)[np.arange(size * steps), actions]
        ratios = np.exp(log_p.reshape(size, steps) - batch["log_prob"])
        targets, advantages = vtrace(
            values.reshape(size, steps + 1),
            batch["reward"] * settings.reward_scale,
            batch["terminated"],
            batch["valid"],
            ratios,
            settings.discount,
            settings.trace,
        )
        keep = np.flatnonzero(batch["valid"].reshape(-1))
        advantages = advantages.reshape(-1)
        kept = advantages[keep]
        advantages = (advantages - kept.mean()) / (kept.std() + 1e-8)
        behaviour = batch["log_prob"].reshape(-1)
        targets = targets.reshape(-1)
        losses = []
        for _ in range(settings.epochs):
            self.rng.shuffle(keep)
            for part in np.array_split(keep, settings.minibatches):
                _, seen = loss_and_gradient(
                    network,
                    current[part],
                    actions[part],
                    behaviour[part],
                    advantages[part],
                    targets[part],
                    settings,
                )
                losses.append(seen)
                self.optimiser.step(network.flat, network.gradient, rate, settings.gradient_norm)
        return Losses(
            *(
                float(np.mean([getattr(one, field) for one in losses]))
                for field in ("policy", "value", "entropy", "divergence")
            )
        )
