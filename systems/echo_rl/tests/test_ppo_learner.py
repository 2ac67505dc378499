"""PPO: it learns, it is right where episodes are cut off, and every field of its configuration has an effect."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from echo_rl.core import PPOConfig
from echo_rl.core.ppo_learner import PPOLearner


class Policy(nn.Module):
    """Logits and values from one hidden layer."""

    def __init__(self, states: int = 3, actions: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(states, 32), nn.Tanh())
        self.logits, self.values = nn.Linear(32, actions), nn.Linear(32, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(states)
        return self.logits(hidden), self.values(hidden)[:, 0]


def rollout(policy: nn.Module, steps: int = 64, seed: int = 0, lag: float = 0.0, **leaves: Any) -> dict[str, Any]:
    """Random states; the reward is 1 for action 1 where the first number is positive, and for action 0 elsewhere. `lag` moves the behaviour away."""
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.normal(size=(steps, 3)).astype(np.float32))
    with torch.no_grad():
        choices = torch.distributions.Categorical(logits=policy(states)[0] + lag * torch.from_numpy(rng.normal(size=(steps, 2)).astype(np.float32)))
        torch.manual_seed(seed)
        actions = choices.sample()
    rewards = (actions.bool() == (states[:, 0] > 0)).float()
    ends = torch.ones(steps, dtype=torch.bool)
    found = {"states": states, "actions": actions, "log_probs": choices.log_prob(actions), "rewards": rewards, "next_states": states}
    return {**found, "terminated": ends, "truncated": ~ends, **leaves}


@pytest.mark.parametrize("correction", ["none", "ppo", "tis", "decoupled"])
def test_a_bandit_is_solved_with_every_correction(correction: Any) -> None:
    policy = Policy()
    learner = PPOLearner(policy, PPOConfig(learning_rate=3e-3, correction=correction, kl_coef=0.0, seed=1))
    first = float(rollout(policy, 1000)["rewards"].mean())
    for seed in range(60):
        learner.update(rollout(policy, 256, seed))
    assert first < 0.7 and float(rollout(policy, 1000, 999)["rewards"].mean()) > 0.9


class Corridor:
    """Environments side by side: walk from cell 0 to cell 6 for the reward 1; an episode is cut off after 20 steps."""

    def __init__(self, count: int) -> None:
        self.cells, self.ages = np.zeros(count, int), np.zeros(count, int)

    def states(self) -> Any:
        return np.eye(7, dtype=np.float32)[self.cells]

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.cells = np.clip(self.cells + 2 * actions - 1, 0, 6)
        self.ages += 1
        terminated, following = self.cells == 6, self.states()
        truncated = ~terminated & (self.ages == 20)
        over = terminated | truncated
        self.cells, self.ages = np.where(over, 0, self.cells), np.where(over, 0, self.ages)
        return terminated.astype(np.float32), following, terminated, truncated


def test_a_corridor_is_learned_through_truncated_episodes() -> None:
    learner, corridor = PPOLearner(Policy(7), PPOConfig(learning_rate=3e-3, seed=1)), Corridor(16)
    torch.manual_seed(0)
    share = []
    for _ in range(50):
        steps: list[dict[str, Any]] = []
        for _ in range(32):
            states = corridor.states()
            actions, log_probs, _ = learner.act(states)
            rewards, following, terminated, truncated = corridor.step(actions.numpy())
            steps.append({"states": states, "actions": actions, "log_probs": log_probs, "rewards": rewards})
            steps[-1] |= {"next_states": following, "terminated": terminated, "truncated": truncated}
        whole = {name: np.stack([np.asarray(step[name]) for step in steps]) for name in steps[0]}
        learner.update(whole)
        share.append(whole["terminated"].sum() / (whole["terminated"] | whole["truncated"]).sum())
    assert share[0] < 0.6 and share[-1] == 1.0
    assert learner.act(np.eye(7, dtype=np.float32)[:6], greedy=True)[0].tolist() == [1] * 6


@pytest.mark.parametrize(("cut", "value"), [("truncated", 5.0), ("terminated", 1.0)])
def test_values_look_beyond_a_truncated_step_only(cut: str, value: float) -> None:
    # Each step brings 1 and gamma is 0.8, so that a life without end is worth 5.
    policy = Policy()
    learner = PPOLearner(policy, PPOConfig(learning_rate=1e-2, gamma=0.8, gae_lambda=0.0, max_grad_norm=10.0, seed=1))
    ends = {"terminated": torch.zeros(64, dtype=torch.bool), "truncated": torch.zeros(64, dtype=torch.bool)}
    ends[cut][:] = True
    for _ in range(150):
        learner.update(rollout(policy, rewards=torch.ones(64), **ends))
    assert float(learner.act(torch.zeros(1, 3))[2]) == pytest.approx(value, rel=0.1)


def weights_after(leaves: dict[str, Any], lag: float, **fields: Any) -> Tensor:
    policy = Policy()
    learner = PPOLearner(policy, PPOConfig(**{"seed": 1, "minibatch_size": 16, **fields}))
    learner.update(rollout(policy, lag=lag, **leaves))
    return nn.utils.parameters_to_vector(policy.parameters()).detach()


@pytest.mark.parametrize(
    ("field", "value", "base"),
    [
        ("learning_rate", 1e-3, {}),
        ("clip_epsilon", 0.01, {}),
        ("clip_epsilon", 0.01, {"correction": "decoupled"}),
        ("value_loss_coef", 0.0, {}),
        ("entropy_coef", 0.5, {}),
        ("kl_coef", 5.0, {}),
        ("gae_lambda", 0.1, {}),
        ("gamma", 0.1, {}),
        ("correction", "none", {}),
        ("correction", "tis", {}),
        ("correction", "decoupled", {}),
        ("correction_cap", 0.5, {"correction": "tis"}),
        ("correction_cap", 0.5, {"correction": "decoupled"}),
        ("epochs", 1, {}),
        ("minibatch_size", 64, {}),
        ("value_clip", 1e-4, {"learning_rate": 1e-2}),
        ("target_kl", 1e-9, {}),
        ("max_grad_norm", 1e-3, {}),
        ("normalize_advantages", False, {}),
        ("seed", 2, {}),
    ],
)
def test_every_field_changes_what_is_learned(field: str, value: Any, base: dict[str, Any]) -> None:
    leaves = {"terminated": torch.arange(64) % 8 == 7, "truncated": torch.zeros(64, dtype=torch.bool)}
    assert torch.equal(weights_after(leaves, 0.5, **base), weights_after(leaves, 0.5, **base)), "nothing else differs between two runs"
    assert not torch.equal(weights_after(leaves, 0.5, **base), weights_after(leaves, 0.5, **{**base, field: value}))


def test_optional_leaves_and_the_auxiliary_loss_count() -> None:
    plain = weights_after({}, 0.0)
    for name, leaf in {"weights": torch.arange(64.0), "mask": torch.arange(64) % 2, "reference_log_probs": torch.full((64,), -3.0)}.items():
        assert not torch.equal(plain, weights_after({name: leaf}, 0.0)), name
    policy = Policy()
    learner = PPOLearner(policy, PPOConfig(seed=1), auxiliary=lambda states: policy(states)[1].mean())
    assert learner.update(rollout(policy)).auxiliary_loss != 0


def test_a_masked_step_may_hold_anything() -> None:
    mask = torch.arange(64) % 2
    one, two = (weights_after({"mask": mask, "log_probs": torch.where(mask > 0, -0.7, other)}, 0.0) for other in (-1.0, -500.0))
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match="'mask' is 0 everywhere"):
        weights_after({"mask": torch.zeros(64)}, 0.0)


def test_a_target_divergence_ends_both_loops() -> None:
    policy = Policy()
    learner = PPOLearner(policy, PPOConfig(learning_rate=0.1, minibatch_size=16, target_kl=0.01, seed=1))
    metrics = learner.update(rollout(policy))
    assert 0 < metrics.steps < 4 * 4 and metrics.kl <= 0.01
    assert PPOLearner(Policy(), PPOConfig(learning_rate=0.1, minibatch_size=16, seed=1)).update(rollout(Policy())).steps == 16


def test_parameter_groups_have_their_own_rates() -> None:
    policy = Policy()
    before = policy.body[0].weight.clone()
    groups = [{"params": policy.body.parameters(), "lr": 0.0}, {"params": [*policy.logits.parameters(), *policy.values.parameters()]}]
    heads = policy.logits.weight.clone()
    PPOLearner(policy, PPOConfig(seed=1), groups=groups).update(rollout(policy))
    assert torch.equal(before, policy.body[0].weight) and not torch.equal(heads, policy.logits.weight)


def learner_with_groups(seed: int) -> tuple[PPOLearner, nn.Linear]:
    """Return a learner whose optimizer also has parameters beside the policy's, which the auxiliary loss trains."""
    policy = Policy(seed=seed)
    beside = nn.Linear(3, 1)
    groups = [{"params": policy.parameters()}, {"params": beside.parameters(), "lr": 0.01, "weight_decay": 0.1}]
    config = PPOConfig(learning_rate=1e-2, minibatch_size=16, seed=5)
    return PPOLearner(policy, config, auxiliary=lambda states: beside(states).pow(2).mean(), groups=groups), beside


def go_on(learner: PPOLearner, beside: nn.Module, seeds: range) -> list[Tensor]:
    found: list[Tensor] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        states = rng.normal(size=(64, 3)).astype(np.float32)
        actions, log_probs, values = learner.act(states)
        rewards, ends = rng.normal(size=64), np.arange(64) % 8 == 7
        leaves = {"states": states, "actions": actions, "log_probs": log_probs, "rewards": rewards, "next_states": states}
        learner.update({**leaves, "terminated": ends, "truncated": np.zeros(64, bool)})
        found += [actions, log_probs, values, *(p.detach().clone() for p in [*learner.policy.parameters(), *beside.parameters()])]
    return found


def test_a_restored_learner_continues_bit_by_bit() -> None:
    """Through JSON, in a learner that has drawn and learned something else meanwhile, with a learning rate that was changed."""
    one, beside = learner_with_groups(0)
    go_on(one, beside, range(3))
    one.optimizer.param_groups[0]["lr"] = 3e-3
    state = one.state()
    state["values"] = json.loads(json.dumps(state["values"]))
    expected = go_on(one, beside, range(3, 6))
    other, own = learner_with_groups(1)
    go_on(other, own, range(10, 14))
    other.restore(state)
    assert (other.updates, other.steps) == (3, 3 * 16)
    found = go_on(other, own, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    ends = [learner.state() for learner in (one, other)]
    assert ends[0]["values"] == ends[1]["values"] and ends[0]["values"]["steps"] == 6 * 16
    assert all(torch.equal(value, ends[1]["tensors"][name]) for name, value in ends[0]["tensors"].items())
    one.restore(state)  # The continued run has changed no tensor of the state.
    assert all(torch.equal(a, b) for a, b in zip(go_on(one, beside, range(3, 6)), expected, strict=True))
    fresh, last = learner_with_groups(2)
    fresh.restore(learner_with_groups(3)[0].state())  # before the first step
    assert go_on(fresh, last, range(1))


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    learner, beside = learner_with_groups(0)
    go_on(learner, beside, range(1))
    before = learner.state()
    wrong: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
        "made with gamma=0.5, and this learner has 0.99": lambda tensors, values: values["config"].update(gamma=0.5),
        "steps must be a whole number": lambda tensors, values: values.update(steps=-1),
        "'module.body.0.weight' and 0 others are missing": lambda tensors, values: tensors.pop("module.body.0.weight"),
        "'optimizer.99.step', and this optimizer has 8 parameters": lambda tensors, values: tensors.update({"optimizer.99.step": torch.zeros(())}),
        "lacks tensors of some": lambda tensors, values: tensors.pop("optimizer.0.exp_avg"),
        r"'beside.6' is torch.float32 \(2, 2\); torch.float32 \(1, 3\) is needed": lambda tensors, values: tensors.update({"beside.6": torch.zeros(2, 2)}),
        "'module.logits.bias' holds a number that is not finite": lambda tensors, values: tensors["module.logits.bias"].fill_(torch.nan),
        "has the groups": lambda tensors, values: values["groups"].pop(),
    }
    for words, spoil in wrong.items():
        broken = copy.deepcopy(before)
        spoil(broken["tensors"], broken["values"])
        with pytest.raises(ValueError, match=words):
            learner.restore(broken)
        after = learner.state()
        assert after["values"] == before["values"] and all(torch.equal(after["tensors"][name], value) for name, value in before["tensors"].items()), words


def test_what_is_wrong_is_named() -> None:
    learner, good = PPOLearner(Policy()), rollout(Policy())
    with pytest.raises(KeyError, match="the rollout lacks 'next_states'; it has 'states'"):
        learner.update({name: leaf for name, leaf in good.items() if name != "next_states"})
    with pytest.raises(ValueError, match="'extra', which is unknown"):
        learner.update({**good, "extra": good["rewards"]})
    with pytest.raises(ValueError, match=r"'actions' has the shape \(3,\); it must begin with the shape \(64,\)"):
        learner.update({**good, "actions": torch.zeros(3)})
    with pytest.raises(ValueError, match="'rewards' holds a number that is not finite"):
        learner.update({**good, "rewards": torch.full((64,), torch.nan)})
    with pytest.raises(ValueError, match="they must be equal"):
        learner.update({**good, "next_states": torch.zeros(64, 4)})
    with pytest.raises(ValueError, match=r"logits \(n, actions\) and values \(n,\)"):
        PPOLearner(Wide()).update(good)
    for name, value in {"learning_rate": 0.0, "gamma": 1.1, "clip_epsilon": 1.0, "kl_coef": -1.0, "correction": "best", "target_kl": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            PPOConfig(**{name: value})


class Wide(nn.Module):
    """A policy whose values have one axis too many."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(states), self.layer(states)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_cuda_falls_back_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="the CPU is used") as caught:
        assert PPOLearner(Policy(), device="cuda").device.type == "cpu"
    assert caught[0].filename == __file__, "the warning names the line that asked for it"
