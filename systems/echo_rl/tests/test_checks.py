"""Wrong values of configurations, and values that are not numbers, are refused by the name of their field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from echo_rl import core  # noqa: E402
from echo_rl.checks import check_fields, whole  # noqa: E402
from echo_rl.core.gae import gae  # noqa: E402
from echo_rl.core.grpo import group_advantages  # noqa: E402
from echo_rl.core.ppo_learner import PPOLearner  # noqa: E402

NAN, INF = math.nan, math.inf

WRONG: dict[str, list[tuple[str, Any]]] = {
    "PPOConfig": [
        ("learning_rate", NAN), ("learning_rate", INF), ("gamma", NAN), ("entropy_coef", NAN), ("kl_coef", INF), ("epochs", 2.5), ("epochs", True),
        ("minibatch_size", 1.5), ("seed", -1), ("correction", "x"), ("normalize_advantages", "no"), ("target_kl", 0),
    ],
    "PlanningConfig": [("embedding_dim", 8.5), ("kl_weight", NAN), ("kl_weight", INF), ("causal", "no"), ("heads", 3)],
    "ExecutionConfig": [("scheduler", "foo"), ("max_concurrent_rollouts", 2.5), ("timeout", NAN), ("epsilon", 0)],
    "BandwidthConfig": [("scale", NAN), ("scale", INF), ("bandwidth_weight", NAN), ("cost", 3)],
    "GRPOConfig": [("scale", "x"), ("loss", 1)],
    "ReplayConfig": [
        ("hot_ratio", 1.5), ("hot_ratio", NAN), ("alpha", -1), ("age_threshold", -1), ("max_replay_age", -1), ("reward_weight", NAN), ("plan_decay", 2),
        ("hot_buffer_size", 1.5), ("seed", -1), ("beta", NAN), ("temperature", NAN), ("weighting", "x"), ("age_unit", "days"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("config", "field", "value"), [(c, *pair) for c, pairs in WRONG.items() for pair in pairs])
def test_a_wrong_field_is_named(config: str, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}[ =]"):
        getattr(core, config)(**{field: value})


def test_numbers_of_numpy_are_numbers() -> None:
    assert core.PPOConfig(epochs=np.int64(3), gamma=np.float32(0.5)).epochs == 3


def test_no_field_can_be_forgotten() -> None:
    @dataclass
    class Two:
        first: int = 1
        second: int = 1

    with pytest.raises(TypeError, match="Two: fields and rules must match, and \\['second'\\] don't"):
        check_fields(Two(), first=whole())


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_reward_that_is_no_number_does_not_reach_its_group(bad: float) -> None:
    with pytest.raises(ValueError, match="the reward of rollout 2 in group 1 is"):
        group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, bad, 0.0]]))


def test_rounding_is_no_spread_and_large_rewards_do_not_overflow() -> None:
    _, spread = group_advantages(torch.tensor([[0.1 + 0.2, 0.3, 0.3, 0.3]], dtype=torch.float64))
    assert spread.tolist() == [False]
    for rewards in (torch.tensor([[1e20, 1e20, 0.0, 0.0]]), torch.tensor([[300.0, 200.0, 100.0, 60000.0]], dtype=torch.float16), torch.tensor([[1, 0, 0, 0]])):
        found, spread = group_advantages(rewards)
        exact = rewards.double()
        expected = (exact - exact.mean()) / (exact.std() + 1e-4)
        torch.testing.assert_close(found, expected.float())
        assert spread.all() and float(found.abs().max()) > 0.8


def test_gae_refuses_what_is_neither_number_nor_flag() -> None:
    good: dict[str, Any] = {name: np.zeros(3) for name in ("rewards", "values", "next_values", "terminated", "truncated")}
    gae(**good)
    for name, value in (("rewards", NAN), ("values", INF), ("next_values", NAN), ("terminated", 0.5), ("truncated", 2)):
        with pytest.raises(ValueError, match=name):
            gae(**{**good, name: np.array([0, value, 0])})


class Policy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 3)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(states)
        return found[:, :2], found[:, 2]


def rollout() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    zeros = torch.zeros(6)
    return {
        "states": torch.randn(6, 2), "next_states": torch.randn(6, 2), "actions": torch.tensor([0, 1, 0, 1, 0, 1]), "log_probs": zeros - 0.7,
        "rewards": torch.randn(6), "terminated": torch.tensor([0, 0, 0, 0, 0, 1]), "truncated": zeros.bool(), "mask": torch.tensor([1, 1, 1, 0, 1, 1]),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [("log_probs", 3.0), ("log_probs", NAN), ("rewards", NAN), ("terminated", 0.5), ("mask", 0.5), ("states", INF)])
def test_a_rollout_with_a_wrong_number_is_refused(name: str, value: float) -> None:
    data = rollout()
    data[name] = data[name].float()
    data[name][1] = value
    with pytest.raises(ValueError, match=name):
        PPOLearner(Policy(), core.PPOConfig(seed=0)).update(data)


def test_nothing_of_a_masked_step_reaches_the_others() -> None:
    """Whatever it holds, the policy after the update is the same, bit for bit."""
    after = []
    for value in (0.0, 1e6, NAN):
        data = rollout()
        for name in ("states", "next_states", "log_probs", "rewards"):
            data[name][3] = value
        torch.manual_seed(1)
        learner = PPOLearner(Policy(), core.PPOConfig(seed=0, minibatch_size=3))
        learner.update(data)
        after.append(torch.cat([p.detach().flatten() for p in learner.policy.parameters()]))
    assert torch.isfinite(after[0]).all()
    assert torch.equal(after[0], after[1]) and torch.equal(after[0], after[2])
