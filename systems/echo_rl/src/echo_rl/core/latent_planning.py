"""Latent plans: a trajectory's encoding that conditions the policy, and that can hold the best of several imagined continuations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from echo_rl.checks import check_fields, flag, real, whole
from echo_rl.engine import Engine, Request

Score = Callable[[tuple[int, ...], tuple[int, ...]], float]
"""From a prefix and a continuation, both tokens, to a number; the greatest wins."""
Embed = Callable[[Sequence[int]], Tensor]
"""From T tokens to states (T, state_dim)."""


@dataclass(frozen=True)
class PlanningConfig:
    """The shape of plans and how they are learned.

    Attributes:
        embedding_dim: width of a plan and of the encoder.
        state_window_size: the most states that a plan encodes.
        kl_weight: weight of the temporal divergence in `LatentPlanningOptimizer.auxiliary_loss`.
        learning_rate: the learning rate of the encoder; see `LatentPlanningOptimizer.groups`.
        layers, heads: the number of layers and of attention heads of the encoder. `heads` must divide `embedding_dim`.
        causal: whether a state sees only earlier ones. One pass then gives the plans of all prefixes of a window.
        spread_decay: decay of the running variance by which the temporal divergence is measured.
    """

    embedding_dim: int = 512
    state_window_size: int = 8
    kl_weight: float = 0.1
    learning_rate: float = 3e-4
    layers: int = 6
    heads: int = 8
    causal: bool = True
    spread_decay: float = 0.99

    def __post_init__(self) -> None:
        check_fields(
            self,
            embedding_dim=whole(1),
            state_window_size=whole(2),
            kl_weight=real(0),
            learning_rate=real(above=0),
            layers=whole(1),
            heads=whole(1),
            causal=flag(),
            spread_decay=real(0, below=1),
        )
        if self.embedding_dim % self.heads:
            raise ValueError(f"heads={self.heads} does not divide embedding_dim={self.embedding_dim}")


class TrajectoryEncoder(nn.Module):
    """Encodes a window of states as a plan, with a transformer (Vaswani et al. 2017; norms come first)."""

    def __init__(self, state_dim: int, config: PlanningConfig | None = None) -> None:
        super().__init__()
        self.config = c = config or PlanningConfig()
        self.embed = nn.Linear(state_dim, c.embedding_dim)
        self.positions = nn.Parameter(0.02 * torch.randn(c.state_window_size, c.embedding_dim))
        layer = nn.TransformerEncoderLayer(c.embedding_dim, c.heads, 4 * c.embedding_dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, c.layers, nn.LayerNorm(c.embedding_dim), enable_nested_tensor=False)

    def forward(self, states: Tensor) -> Tensor:
        """Plans (n, embedding_dim) of windows (n, k, state_dim), oldest state first. Raises ValueError for another shape or too many states."""
        return self._hidden(states)[:, -1]

    def consecutive(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The plans of windows (n, k, state_dim) and those of the same windows without their last state; k is at least 2."""
        if states.ndim != 3 or states.shape[1] < 2:
            raise ValueError(f"two plans need windows (n, k, state_dim) of at least two states, got {tuple(states.shape)}")
        if not self.config.causal:
            return self(states), self(states[:, :-1])
        hidden = self._hidden(states)
        return hidden[:, -1], hidden[:, -2]

    def _hidden(self, states: Tensor) -> Tensor:
        width = self.embed.in_features
        if states.ndim != 3 or states.shape[-1] != width or not 1 <= states.shape[1] <= len(self.positions):
            raise ValueError(f"windows must have the shape (n, k, {width}) with k from 1 to {len(self.positions)}, got {tuple(states.shape)}")
        k = states.shape[1]
        later = torch.ones(k, k, dtype=torch.bool, device=states.device).triu(1) if self.config.causal else None
        found: Tensor = self.layers(self.embed(states) + self.positions[:k], mask=later)
        return found


class SoftPrefix(nn.Module):
    """LayerNorm(a W_s state + (1 - a) W_t plan) with a learned share a; without a plan it is LayerNorm(W_s state)."""

    def __init__(self, state_dim: int, latent_dim: int, width: int) -> None:
        super().__init__()
        self.of_state, self.of_plan = nn.Linear(state_dim, width), nn.Linear(latent_dim, width)
        self.balance = nn.Parameter(torch.zeros(()))
        self.norm = nn.LayerNorm(width)

    def forward(self, states: Tensor, plans: Tensor | None = None) -> Tensor:
        """States (..., state_dim) and plans (..., latent_dim) -> (..., width)."""
        share = torch.sigmoid(self.balance)
        mixed = self.of_state(states) if plans is None else share * self.of_state(states) + (1 - share) * self.of_plan(plans)
        found: Tensor = self.norm(mixed)
        return found


class PolicyNetwork(nn.Module):
    """A policy and a value that may be conditioned on a plan."""

    def __init__(self, state_dim: int, action_dim: int, latent_dim: int, width: int = 256) -> None:
        super().__init__()
        self.prefix = SoftPrefix(state_dim, latent_dim, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.policy_head, self.value_head = nn.Linear(width, action_dim), nn.Linear(width, 1)
        # The first policy is nearly uniform (Andrychowicz et al. 2021).
        nn.init.orthogonal_(self.policy_head.weight, 0.01)
        nn.init.zeros_(self.policy_head.bias)

    def forward(self, states: Tensor, plans: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (..., action_dim) and values (...) of states (..., state_dim), conditioned on plans (..., latent_dim) if there are any."""
        hidden = self.body(self.prefix(states, plans))
        return self.policy_head(hidden), self.value_head(hidden)[..., 0]

    def head_bounds(self) -> dict[str, float]:
        """The spectral norms of the heads: how much their output moves at most for a move of 1 of their input. They bound no other layer."""
        heads = {"policy_head": self.policy_head, "value_head": self.value_head}
        return {name: float(torch.linalg.matrix_norm(head.weight.detach(), 2)) for name, head in heads.items()}


@dataclass(frozen=True)
class Branch:
    """One imagined continuation: its tokens, its score, and the mean log-probability of its tokens under the distribution they were drawn from."""

    tokens: tuple[int, ...]
    score: float
    mean_log_prob: float


@dataclass(frozen=True)
class Plan:
    """What `LatentPlanningOptimizer.plan` found.

    Attributes:
        plan: the encoding of the prefix and its best continuation, (embedding_dim,).
        best: the continuation with the greatest score. If several have the same score, it is the first of them.
        branches: all continuations.
        reused_tokens: how many tokens of the branches' prompts were not computed again, because the keys and values were shared.
    """

    plan: Tensor
    best: Branch
    branches: tuple[Branch, ...]
    reused_tokens: int


class LatentPlanningOptimizer(nn.Module):
    """An encoder and a policy that are learned together, and a search for plans on an engine.

    It is a policy for `PPOLearner`: states are windows (n, k, state_dim), and the policy gets each window's last state and its plan.

        planner = LatentPlanningOptimizer(state_dim, action_dim, config)
        learner = PPOLearner(planner, auxiliary=planner.auxiliary_loss, groups=planner.groups())

    Args:
        state_dim: width of a state; action_dim: how many actions there are.
        config: the shape of plans.
        engine: the engine on which `plan` imagines continuations. Nobody else may step this engine while it plans.
        score: a function that scores a continuation. By default the score is its mean log-probability.
        embed: a function from tokens to states. By default it takes the token embeddings of the engine's model, and `state_dim` must then be the model's width.
        width: width of the policy's layers.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: PlanningConfig | None = None,
        *,
        engine: Engine | None = None,
        score: Score | None = None,
        embed: Embed | None = None,
        width: int = 256,
    ) -> None:
        super().__init__()
        self.config = config or PlanningConfig()
        self.encoder = TrajectoryEncoder(state_dim, self.config)
        self.policy = PolicyNetwork(state_dim, action_dim, self.config.embedding_dim, width)
        self.engine, self.score, self.embed = engine, score, embed
        self.register_buffer("spread", torch.zeros(self.config.embedding_dim))
        self.spread: Tensor

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, action_dim) and values (n,) of windows (n, k, state_dim)."""
        found: tuple[Tensor, Tensor] = self.policy(windows[:, -1], self.encoder(windows))
        return found

    def temporal_kl(self, windows: Tensor) -> Tensor:
        """The divergence of each plan's Gaussian from its predecessor's, per dimension: the mean of (tau_t - tau_{t-1})^2 / (2 sigma^2).

        sigma^2 is the running variance of plans in each dimension, which training updates. Plans of unrelated states so have a divergence
        of about 1, however wide and large plans are, and shrinking all plans does not lower it.
        """
        plans, previous = self.encoder.consecutive(windows)
        if self.training and len(plans) > 1:
            with torch.no_grad():
                variance = plans.var(dim=0)
                decay = self.config.spread_decay if self.spread.any() else 0.0
                self.spread.mul_(decay).add_(variance, alpha=1 - decay)
        # Before the first update there is no variance to measure by.
        variance = self.spread.clamp(min=1e-4) if self.spread.any() else torch.ones_like(self.spread)
        return ((plans - previous) ** 2 / (2 * variance)).mean()

    def auxiliary_loss(self, windows: Tensor) -> Tensor:
        """`kl_weight` times the temporal divergence."""
        return self.config.kl_weight * self.temporal_kl(windows)

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups: the encoder with this configuration's learning rate, and the policy with that of the optimiser."""
        return [{"params": list(self.encoder.parameters()), "lr": self.config.learning_rate}, {"params": list(self.policy.parameters())}]

    def plan(
        self, prefix: Sequence[int], branches: int = 4, horizon: int = 16, *, temperature: float = 1.0, seed: int | None = None, timeout: float = 60.0
    ) -> Plan:
        """Imagines continuations of a prefix on the engine, scores them, and encodes the best one.

        The branches share the keys and values of the prefix. The plan encodes the last states of the prefix and its best continuation, as
        many as a window has. Other requests of the engine go on meanwhile.

        Args:
            prefix: tokens, at least one.
            branches: how many continuations; horizon: how many tokens each has.
            temperature: the temperature of the draws.
            seed: makes the draws repeatable.
            timeout: the longest time in seconds.

        Raises:
            RuntimeError: there is no engine, or it is paused.
            ValueError: the prefix, `branches` or `horizon` does not fit the engine, or states are not `state_dim` wide.
            TimeoutError: the branches did not end in time; they are aborted.
        """
        if self.engine is None:
            raise RuntimeError("plan() needs an engine; give one to LatentPlanningOptimizer(engine=...)")
        if branches < 1:
            raise ValueError(f"branches must be at least 1, got {branches}")
        requests = self._imagine(self.engine, tuple(prefix), branches, horizon, temperature, seed, timeout)
        found = tuple(self._branch(tuple(prefix), request) for request in requests)
        best = max(found, key=lambda branch: branch.score)
        states = self._states((tuple(prefix) + best.tokens)[-self.config.state_window_size :], self.engine)
        with torch.no_grad():
            plan = self.encoder(states[None].to(self.encoder.positions.device))[0]
        return Plan(plan, best, found, sum(request.cached for request in requests))

    def _imagine(
        self, engine: Engine, prefix: tuple[int, ...], branches: int, horizon: int, temperature: float, seed: int | None, timeout: float
    ) -> list[Request]:
        root = engine.submit(prefix, horizon, temperature=temperature, seed=seed)
        # A fork of a request that has not begun continues its prompt, and shares its keys and values.
        seeds = None if seed is None else [seed + i for i in range(1, branches)]
        requests = [root, *engine.fork(root, branches - 1, horizon, temperature=temperature, seeds=seeds)]
        end = time.monotonic() + timeout
        try:
            while any(request.finish is None for request in requests):
                if engine.paused:
                    raise RuntimeError("the engine is paused; call resume() before plan()")
                if time.monotonic() > end:
                    raise TimeoutError(f"{branches} branches of {horizon} tokens did not end within {timeout} s; ask for fewer, or wait longer")
                engine.step()
        finally:
            for request in requests:
                engine.abort(request)  # does nothing to those that have ended
        return requests

    def _branch(self, prefix: tuple[int, ...], request: Request) -> Branch:
        tokens, likely = tuple(request.output), sum(request.logprobs) / len(request.logprobs)
        return Branch(tokens, likely if self.score is None else float(self.score(prefix, tokens)), likely)

    def _states(self, tokens: tuple[int, ...], engine: Engine) -> Tensor:
        states = engine.model.embedding[list(tokens)] if self.embed is None else self.embed(tokens)
        width = self.encoder.embed.in_features
        if states.shape != (len(tokens), width):
            raise ValueError(f"the states of {len(tokens)} tokens have the shape {tuple(states.shape)}; state_dim={width} needs ({len(tokens)}, {width})")
        return states


class StateWindows:
    """The last `size` states of each of `count` environments, for acting. The first state of an episode stands for those before it."""

    def __init__(self, count: int, size: int, state_dim: int) -> None:
        self.states = torch.zeros(count, size, state_dim)
        self._begins = torch.ones(count, dtype=torch.bool)

    def push(self, states: Tensor) -> Tensor:
        """Adds states (count, state_dim) and returns a copy of the windows (count, size, state_dim), oldest first."""
        moved = torch.cat([self.states[:, 1:], states[:, None]], dim=1)
        self.states = torch.where(self._begins[:, None, None], states[:, None], moved)
        self._begins = torch.zeros_like(self._begins)
        return self.states.clone()

    def followed_by(self, states: Tensor) -> Tensor:
        """What the windows would be after these states (count, state_dim), for `next_states`; nothing is added."""
        return torch.cat([self.states[:, 1:], states[:, None]], dim=1)

    def end(self, over: Tensor) -> None:
        """Says which environments' episodes are over, bool (count,): their next state begins another one."""
        self._begins = self._begins | over
