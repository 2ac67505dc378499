"""Proximal policy optimisation (Schulman et al. 2017) of any policy with discrete actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from echo_rl.checks import check, check_fields, flag, one_of, optional, real, whole
from echo_rl.core import corrections
from echo_rl.core.gae import gae
from echo_rl.core.grpo import k3
from echo_rl.core.learner_state import LearnerState, restore_state, state_of
from echo_rl.core.process_group import ALONE, ProcessGroup, sum_figures, sum_gradients
from echo_rl.device import resolve

_NEEDED = ("states", "actions", "log_probs", "rewards", "next_states", "terminated", "truncated")
_OPTIONAL = ("reference_log_probs", "weights", "mask")


@dataclass(frozen=True)
class PPOConfig:
    """Rules of an update.

    Attributes:
        learning_rate: the learning rate of Adam, for all parameters whose group has no learning rate of its own.
        clip_epsilon: ratios are clipped to 1 - clip_epsilon .. 1 + clip_epsilon, where the correction is "ppo" or "decoupled".
        value_loss_coef: weight of half the squared error of the values.
        entropy_coef: weight of the policy's entropy, which is maximised.
        kl_coef: weight of the estimated divergence from the reference policy, or from the behaviour policy where a rollout has no reference.
        gae_lambda: decay of the advantages' sums; gamma: discount of rewards.
        correction: how the loss corrects for rollouts of an older policy; `echo_rl.core.corrections` has the formulas.
        correction_cap: the greatest weight of "tis" and "decoupled".
        epochs: how often an update goes through its rollout.
        minibatch_size: how many steps of the rollout one gradient step uses.
        value_clip: the most that values move away from those at the update's start before their loss is clipped; None does not clip.
        target_kl: the update ends before the gradient step at which the estimated divergence from its start is greater; None never ends it.
        max_grad_norm: the greatest norm of the gradient. A gradient with a greater norm is scaled down to it.
        normalize_advantages: whether advantages get mean 0 and deviation 1 in each rollout.
        seed: the seed of the order of the steps. None takes a random seed.
    """

    learning_rate: float = 3e-4
    clip_epsilon: float = 0.2
    value_loss_coef: float = 0.5
    entropy_coef: float = 0.01
    kl_coef: float = 0.1
    gae_lambda: float = 0.95
    gamma: float = 0.99
    correction: corrections.Correction = "ppo"
    correction_cap: float = 2.0
    epochs: int = 4
    minibatch_size: int = 256
    value_clip: float | None = None
    target_kl: float | None = None
    max_grad_norm: float = 0.5
    normalize_advantages: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            learning_rate=real(above=0),
            clip_epsilon=real(above=0, below=1),
            value_loss_coef=real(0),
            entropy_coef=real(0),
            kl_coef=real(0),
            gae_lambda=real(0, 1),
            gamma=real(0, 1),
            correction=one_of("none", "ppo", "tis", "decoupled"),
            correction_cap=real(above=0),
            epochs=whole(1),
            minibatch_size=whole(1),
            value_clip=optional(real(above=0)),
            target_kl=optional(real(above=0)),
            max_grad_norm=real(above=0),
            normalize_advantages=flag(),
            seed=optional(whole(0)),
        )


@dataclass(frozen=True)
class PPOMetrics:
    """Means over the gradient steps of one update.

    Attributes:
        policy_loss, value_loss, entropy: the parts of the loss, without their weights.
        auxiliary_loss: what `auxiliary` returned, or 0.
        kl: estimated divergence of the policy from that at the update's start.
        reference_kl: estimated divergence from the reference or the behaviour policy; `kl_coef` is its weight.
        weighted_policy_loss: mean of weight times |policy loss|, for `BandwidthEfficiencyTracker.record_learner_update`.
        clip_share, mean_correction, capped_share: see `corrections.CorrectionMetrics`.
        gradient_norm: the norm of the gradient before it is scaled down.
        explained_variance: how much of the variance of the returns the values at the update's start explain. 1 is perfect, and 0 is not better than the mean
            of the returns.
        steps: how many gradient steps were taken; fewer than planned if `target_kl` ended the update.
    """

    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    auxiliary_loss: float = 0.0
    kl: float = 0.0
    reference_kl: float = 0.0
    weighted_policy_loss: float = 0.0
    clip_share: float = 0.0
    mean_correction: float = 1.0
    capped_share: float = 0.0
    gradient_norm: float = 0.0
    explained_variance: float = 0.0
    steps: int = 0


class PPOLearner:
    """Improves a policy on rollouts.

    Args:
        policy: a module from states (n, ...) to logits (n, actions) and values (n,).
        config: the rules.
        device: where the policy goes. Without CUDA, `cuda` warns and uses the CPU.
        auxiliary: a function from a minibatch's states to a loss that is added, for instance `LatentPlanningOptimizer.auxiliary_loss`. With several learners
            it must be a mean over the states, because each learner has a part of them.
        groups: parameter groups for Adam, for instance `LatentPlanningOptimizer.groups()`; by default all of the policy's parameters.

    Attributes:
        updates, steps: how many updates there were, and gradient steps in all of them.
        group: the learners that share each rollout; each is given the whole of it.
    """

    def __init__(
        self,
        policy: nn.Module,
        config: PPOConfig | None = None,
        device: str = "cpu",
        *,
        auxiliary: Callable[[Tensor], Tensor] | None = None,
        groups: Iterable[Any] | None = None,
    ) -> None:
        self.config, self.device, self.auxiliary = config or PPOConfig(), resolve(device), auxiliary
        self.policy = policy.to(self.device)
        self.optimizer = torch.optim.Adam(self.policy.parameters() if groups is None else groups, lr=self.config.learning_rate, eps=1e-5)
        self.updates = self.steps = 0
        self.group: ProcessGroup = ALONE
        # Own random numbers, so that nothing else in the process changes them, and `state` has all of them.
        self._random = {"shuffle": torch.Generator(), "draws": torch.Generator(self.device)}
        for i, generator in enumerate(self._random.values()):
            generator.seed() if self.config.seed is None else generator.manual_seed(self.config.seed + i)

    def act(self, states: ArrayLike | Tensor, *, greedy: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Draws actions for states (n, ...); `greedy` takes the likeliest. Returns actions, their log-probabilities and values, each (n,)."""
        self.policy.eval()
        with torch.no_grad():
            logits, values = self.policy(torch.as_tensor(states, dtype=torch.float32, device=self.device))
            choices = torch.distributions.Categorical(logits=logits)
            actions = logits.argmax(-1) if greedy else torch.multinomial(choices.probs, 1, generator=self._random["draws"])[:, 0]
            return actions, choices.log_prob(actions), values

    def update(self, rollout: Mapping[str, ArrayLike | Tensor]) -> PPOMetrics:
        """Takes the gradient steps of one rollout.

        Args:
            rollout: arrays whose first axes are steps and, if several environments ran side by side, environments: (T, ...) or (T, N, ...).
                `states`, `next_states` (the state a step led to, also the last one of an episode, and never the first of the next episode),
                `actions`, `log_probs` (of the policy that acted), `rewards`, `terminated`, `truncated`; and optionally
                `reference_log_probs`, `weights` (of replay; they multiply the loss outside of its clip) and `mask`. A step whose mask is 0 is ignored:
                it may hold any numbers, and the step before it takes only the value of the state that it led to.

        Raises:
            KeyError: a needed name is missing.
            ValueError: a name is unknown, shapes differ, a number is not finite, a log-probability is positive, or a flag is neither 0 nor 1.
        """
        config, data = self.config, self._checked(rollout)
        batch = self._prepared(data)
        count, planned = len(batch["actions"]), 0
        sums: dict[str, float] = {}
        self.policy.train()
        self.updates += 1
        for _ in range(config.epochs):
            for chosen in torch.randperm(count, generator=self._random["shuffle"]).to(self.device).split(config.minibatch_size):
                loss, figures = self._loss(batch, chosen)
                if config.target_kl is not None and figures["kl"] > config.target_kl:
                    return self._metrics(sums, planned, batch)
                if not np.isfinite(figures.pop("loss")):
                    raise ValueError(f"the loss is not finite: {figures}; the policy was not changed by this step")
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
                sum_gradients(parameters, self.group)
                figures["gradient_norm"] = float(nn.utils.clip_grad_norm_(parameters, config.max_grad_norm))
                self.optimizer.step()
                planned += 1
                self.steps += 1
                for name, value in figures.items():
                    sums[name] = sums.get(name, 0.0) + value
        return self._metrics(sums, planned, batch)

    def state(self) -> LearnerState:
        """Returns copies of everything that a continued run needs: `"tensors"` by name, and `"values"`, which JSON can hold.

        A policy that draws random numbers itself, as dropout does, takes them from PyTorch's global generator, which is not part of the state.
        """
        counters = {"updates": self.updates, "steps": self.steps}
        return state_of(self.policy, self.optimizer, self._random, {"config": asdict(self.config), **counters})

    def restore(self, state: LearnerState) -> None:
        """Goes on where `state` was taken, with the same results bit by bit.

        Raises:
            ValueError: the state is of another config, policy or optimizer, it lacks a name, or a number is not finite. Nothing has changed then.
        """
        values, mine = state["values"], asdict(self.config)
        given = values.get("config", {})
        if wrong := [name for name in mine if given.get(name, ...) != mine[name]]:
            raise ValueError(f"the state was made with {wrong[0]}={given.get(wrong[0])!r}, and this learner has {mine[wrong[0]]!r}")
        counters = {name: values.get(name) for name in ("updates", "steps")}
        for name, value in counters.items():
            check(name, value, whole(0))
        restore_state(state, self.policy, self.optimizer, self._random)
        vars(self).update(counters)

    def _checked(self, rollout: Mapping[str, ArrayLike | Tensor]) -> dict[str, Tensor]:
        for name in _NEEDED:
            if name not in rollout:
                raise KeyError(f"the rollout lacks {name!r}; it has {', '.join(map(repr, rollout)) or 'nothing'}")
        for name in rollout:
            if name not in _NEEDED + _OPTIONAL:
                raise ValueError(f"the rollout has {name!r}, which is unknown; use {', '.join(_NEEDED + _OPTIONAL)}")
        data = {name: torch.as_tensor(leaf, device=self.device) for name, leaf in rollout.items()}
        steps = data["rewards"].shape
        for name, leaf in data.items():
            begins = leaf.shape[: len(steps)] if name in ("states", "next_states") else leaf.shape
            if begins != steps or not steps or not steps[0]:
                raise ValueError(
                    f"{name!r} has the shape {tuple(leaf.shape)}; it must begin with the shape {tuple(steps)} of 'rewards', which must not be empty"
                )
        if data["states"].shape != data["next_states"].shape:
            raise ValueError(f"'states' has the shape {tuple(data['states'].shape)} and 'next_states' {tuple(data['next_states'].shape)}; they must be equal")
        for name in ("terminated", "truncated", "mask"):
            if name in data and not ((data[name] == 0) | (data[name] == 1)).all():
                raise ValueError(f"{name!r} holds a number that is neither 0 nor 1")
        mask = data["mask"].bool() if "mask" in data else torch.ones(steps, dtype=torch.bool, device=self.device)
        if not mask.any():
            raise ValueError("'mask' is 0 everywhere; no step counts")
        data["mask"] = mask
        for name, leaf in data.items():
            if leaf.is_floating_point():
                # A masked step may hold anything; zeros keep it out of sums and products.
                leaf = leaf.float().masked_fill(~mask.view(*mask.shape, *[1] * (leaf.ndim - mask.ndim)), 0.0)
                if not torch.isfinite(leaf).all():
                    raise ValueError(f"{name!r} holds a number that is not finite")
                data[name] = leaf
        for name in ("log_probs", "reference_log_probs"):
            if name in data and (data[name] > 1e-5).any():
                raise ValueError(f"{name!r} holds {float(data[name].max())}; a log-probability is never positive")
        if (data["actions"].masked_fill(~mask, 0) < 0).any():
            raise ValueError("'actions' holds a negative number")
        data["actions"] = data["actions"].masked_fill(~mask, 0)
        return data

    def _prepared(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rollout as (steps, ...), with advantages, returns, values and the log-probabilities of the policy as it is now."""
        steps = data["rewards"].shape
        flat = {name: leaf.reshape(-1, *leaf.shape[len(steps) :]) for name, leaf in data.items()}
        self.policy.eval()
        with torch.no_grad():
            found = [self._evaluate(*parts) for parts in zip(flat["states"].split(4096), flat["actions"].split(4096), strict=True)]
            proximal, _, values = (torch.cat(parts) for parts in zip(*found, strict=True))
            following = torch.cat([self.policy(part)[1] for part in flat["next_states"].float().split(4096)])
        # A step before a masked one takes nothing of what comes after it but the value of its own next state.
        cut = data["truncated"].bool().clone()
        cut[:-1] |= ~data["mask"][1:]
        # A masked step may hold any log-probability.
        ratios = torch.exp(torch.where(data["mask"], proximal.view(steps) - data["log_probs"], 0.0).clamp(max=20.0))
        needed = (data["rewards"], values.view(steps), following.view(steps), data["terminated"], cut, ratios)
        advantages, returns = self._estimated(*(leaf.cpu().numpy() for leaf in needed))
        flat["mask"] = flat["mask"].float()
        chosen = advantages.reshape(-1)[flat["mask"].cpu().numpy() > 0]
        if self.config.normalize_advantages:
            advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
        # A masked step may hold any log-probability, also one whose ratio overflows and would make the gradient NaN.
        flat |= {name: torch.where(flat["mask"] > 0, flat[name], proximal) for name in ("log_probs", "reference_log_probs") if name in flat}
        flat |= {"proximal": proximal, "values": values}
        for name, array in (("advantages", advantages), ("returns", returns)):
            flat[name] = torch.as_tensor(np.ascontiguousarray(array.reshape(-1)), dtype=torch.float32, device=self.device)
        del flat["next_states"], flat["rewards"], flat["terminated"], flat["truncated"]
        return flat

    def _estimated(
        self, rewards: NDArray[Any], values: NDArray[Any], following: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any], ratios: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The advantages and returns of a rollout; ``ratios`` are the actions' probabilities now divided by those when they were drawn."""
        return gae(rewards, values, following, terminated, truncated, self.config.gamma, self.config.gae_lambda)

    def _evaluate(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, values = self.policy(states.float())
        if logits.ndim != 2 or values.shape != logits.shape[:1]:
            raise ValueError(f"the policy must answer logits (n, actions) and values (n,), got {tuple(logits.shape)} and {tuple(values.shape)}")
        choices = torch.distributions.Categorical(logits=logits)
        return choices.log_prob(actions), choices.entropy(), values

    def _loss(self, rollout: dict[str, Tensor], chosen: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The loss of this learner's part of a minibatch, as its part of the minibatch's mean, and the figures of the whole minibatch."""
        config, size = self.config, len(chosen)
        count = (rollout["mask"][chosen] > 0).sum().clamp(min=1)
        part = chosen.tensor_split(self.group.size)[self.group.rank]
        # A learner that has no part of a small minibatch takes one step whose mask is 0.
        batch = {name: leaf[part if len(part) else chosen[:1]] for name, leaf in rollout.items()}
        mask = batch["mask"] = batch["mask"] if len(part) else torch.zeros_like(batch["mask"])

        def mean(values: Tensor) -> Tensor:
            return torch.where(mask > 0, values, 0.0).sum() / count

        current, entropy, values = self._evaluate(batch["states"], batch["actions"])
        losses, metrics = corrections.corrected(
            config.correction, current, batch["proximal"], batch["log_probs"], batch["advantages"], mask, config.clip_epsilon, config.correction_cap
        )
        weights = batch.get("weights", torch.ones_like(mask))
        policy_loss = mean(weights * losses)
        errors = (values - batch["returns"]) ** 2
        if config.value_clip is not None:
            moved = batch["values"] + (values - batch["values"]).clamp(-config.value_clip, config.value_clip)
            errors = torch.maximum(errors, (moved - batch["returns"]) ** 2)
        value_loss = 0.5 * mean(weights * errors)
        # Each estimate is never negative. The behaviour policy drew the actions, and the reference did not: hence the two directions.
        reference = batch.get("reference_log_probs")
        divergence = mean(k3(batch["log_probs"], current) if reference is None else k3(current, reference))
        loss = policy_loss + config.value_loss_coef * value_loss - config.entropy_coef * mean(entropy) + config.kl_coef * divergence
        auxiliary = torch.zeros(())
        if self.auxiliary is not None:
            auxiliary = self.auxiliary(batch["states"].float()) * (len(part) / size)
        loss = loss + auxiliary.to(loss.device)
        share = float((mask > 0).sum() / count)
        figures = {
            "loss": float(loss.detach()),
            "policy_loss": float(policy_loss.detach()),
            "value_loss": float(value_loss.detach()),
            "entropy": float(mean(entropy).detach()),
            "auxiliary_loss": float(auxiliary.detach()),
            "kl": float(mean(k3(batch["proximal"], current)).detach()),
            "reference_kl": float(divergence.detach()),
            "weighted_policy_loss": float(mean(weights * losses.abs()).detach()),
            "clip_share": metrics.clip_share * share,
            "mean_correction": metrics.mean_correction * share,
            "capped_share": metrics.capped_share * share,
        }
        return loss, sum_figures(figures, list(figures), self.group)

    def _metrics(self, sums: dict[str, float], steps: int, batch: dict[str, Tensor]) -> PPOMetrics:
        chosen = batch["mask"] > 0
        returns, errors = batch["returns"][chosen], (batch["returns"] - batch["values"])[chosen]
        spread = float(returns.var(correction=0))
        explained = 1 - float(errors.var(correction=0)) / spread if spread > 0 else 0.0
        means = {name: value / steps for name, value in sums.items()}
        return PPOMetrics(**means, explained_variance=explained, steps=steps)

