"""Each loss of packed tokens equals a slow loop over tokens in plain Python."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from echo_rl.core.grpo import GRPOConfig, token_weights  # noqa: E402
from echo_rl.training import token_losses  # noqa: E402
from echo_rl.training.token_losses import Targets, TokenLossConfig  # noqa: E402

CU = np.array([0, 4, 6, 11, 14], np.int32)  # four rollouts, of which the third has no token that counts
MASK = np.array([0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1], bool)
TURNS = np.array([0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0], bool)  # tokens of the environment between those of the policy, and at the end
N = len(MASK)


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CURRENT, BEHAVIOUR, PROXIMAL, REFERENCE = (-numbers(i).abs() for i in range(4))
ADVANTAGES, VALUES, RETURNS, ENTROPY = numbers(4), numbers(5), numbers(6), numbers(7).abs()


def slow_token(t: int, config: TokenLossConfig) -> float:
    lp, beh, prox, ref, a = (float(x[t]) for x in (CURRENT, BEHAVIOUR, PROXIMAL, REFERENCE, ADVANTAGES))

    def clipped(base: float) -> float:
        r = math.exp(lp - base)
        return -min(r * a, min(max(r, 1 - config.clip_epsilon), 1 + config.clip_epsilon) * a)

    loss = {
        "none": lambda: -lp * a,
        "ppo": lambda: clipped(beh),
        "tis": lambda: -min(math.exp(lp - beh), config.correction_cap) * lp * a,
        "decoupled": lambda: min(math.exp(prox - beh), config.correction_cap) * clipped(prox),
    }[config.correction]()
    loss += config.kl_coef * (math.exp(ref - lp) - (ref - lp) - 1)
    loss -= config.entropy_coef * float(ENTROPY[t])
    return loss + config.value_loss_coef * 0.5 * (float(VALUES[t]) - float(RETURNS[t])) ** 2


def slow(config: TokenLossConfig) -> float:
    sequences = [[slow_token(t, config) for t in range(a, b) if MASK[t]] for a, b in itertools.pairwise(CU.tolist())]
    each = [loss for sequence in sequences for loss in sequence]
    if config.loss == "sum":
        return sum(each)
    if config.loss == "token":
        return sum(each) / len(each)
    means = [sum(sequence) / len(sequence) for sequence in sequences if sequence]
    return sum(means) / len(means)


def targets(config: TokenLossConfig, spoiled: float) -> Targets:
    mask = torch.from_numpy(MASK)
    outside = [torch.where(mask, x, spoiled) for x in (ADVANTAGES, BEHAVIOUR, PROXIMAL, REFERENCE)]
    weights = token_weights(mask, torch.from_numpy(np.diff(CU)), config.grpo)
    return Targets(mask, weights, *outside[:3], returns=torch.where(mask, RETURNS, 0.0), reference=outside[3])


@pytest.mark.parametrize("loss", ["sum", "token", "sequence"])
@pytest.mark.parametrize("correction", ["none", "ppo", "tis", "decoupled"])
def test_the_loss_equals_a_loop(correction: Any, loss: Any) -> None:
    """Tokens that don't count hold NaN, which reaches neither the loss nor a gradient. The gradient is compared with differences."""
    config = TokenLossConfig(correction=correction, loss=loss, kl_coef=0.3, entropy_coef=0.1, value_loss_coef=0.7, clip_epsilon=0.25, correction_cap=1.5)
    current = torch.where(torch.from_numpy(MASK), CURRENT, float("nan")).requires_grad_()
    found, figures = token_losses.token_loss(current, ENTROPY, VALUES, targets(config, float("nan")), config)
    assert float(found.detach()) == pytest.approx(slow(config), rel=1e-6)
    assert figures["loss"] == pytest.approx(float(found.detach()))
    count = MASK.sum()
    tokens = [t for t in range(N) if MASK[t]]
    d = [float(CURRENT[t] - BEHAVIOUR[t]) for t in tokens]
    assert figures["kl"] / count == pytest.approx(sum(math.exp(x) - x - 1 for x in d) / count)
    assert figures["entropy"] / count == pytest.approx(sum(float(ENTROPY[t]) for t in tokens) / count)
    assert figures["capped_share"] <= count
    found.backward()
    assert current.grad is not None
    assert torch.isfinite(current.grad).all() and not current.grad[~torch.from_numpy(MASK)].any()
    if correction in ("none", "ppo", "decoupled"):  # no gradient flows through the weight of "tis"
        for t in tokens:
            ends = []
            for step in (1e-6, -2e-6):
                CURRENT[t] += step
                ends.append(slow(config))
            CURRENT[t] += 1e-6
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(current.grad[t]), rel=1e-4, abs=1e-6)


def test_parts_add_up_to_the_whole() -> None:
    config = TokenLossConfig(loss="sequence", kl_coef=0.3)
    whole = targets(config, 0.0)
    expected, sums = token_losses.token_loss(CURRENT, ENTROPY, VALUES, whole, config)
    parts = []
    for part in (slice(0, 6), slice(6, N)):
        piece = Targets(**{name: None if x is None else x[part] for name, x in vars(whole).items()})
        parts.append(token_losses.token_loss(CURRENT[part], ENTROPY[part], VALUES[part], piece, config))
    assert sum(float(loss) for loss, _ in parts) == pytest.approx(float(expected))
    for name, value in sums.items():
        assert sum(figures[name] for _, figures in parts) == pytest.approx(value), name


@pytest.mark.parametrize("scale", ["std", "none"])
def test_advantages_of_groups(scale: Any) -> None:
    rewards, group = np.array([1, 0, 0, 2, 2, 2, 3, 4, 8], np.float32), np.repeat(np.arange(3, dtype=np.int32), 3)
    found, spread = token_losses.of_groups(rewards, group, GRPOConfig(scale))
    assert spread.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    for g in range(3):
        own = [float(x) for x in rewards[3 * g : 3 * g + 3]]
        mean = sum(own) / 3
        divisor = math.sqrt(sum((x - mean) ** 2 for x in own) / 2) + 1e-4 if scale == "std" else 1.0
        assert found[3 * g : 3 * g + 3].tolist() == pytest.approx([(x - mean) / divisor for x in own])
    for wrong in (np.array([0, 0, 0, 0, 0, 1, 1, 1, 1], np.int32), np.array([0, 1, 2] * 3, np.int32)):
        with pytest.raises(ValueError, match="all groups must have one size"):
            token_losses.of_groups(rewards, wrong, GRPOConfig())


def test_advantages_of_values_equal_a_loop() -> None:
    """Also where the environment's tokens lie between those of the policy, at a rollout's end, and where a rollout was cut off."""
    rewards, cut = np.array([1.0, -2.0, 7.0, 0.5]), np.array([False, True, True, False])
    values = VALUES.numpy()
    for mask in (MASK, TURNS):
        advantages, returns = token_losses.of_values(values, rewards, mask, CU, cut, 0.9, 0.8)
        for i, (a, b) in enumerate(itertools.pairwise(CU.tolist())):
            own = [t for t in range(a, b) if mask[t]]
            later = 0.0
            for k in reversed(range(len(own))):
                end = k == len(own) - 1
                after = (values[b - 1] if cut[i] else 0.0) if end else values[own[k + 1] - 1]
                before = values[own[k] - 1]
                later = (rewards[i] if end else 0.0) + 0.9 * after - before + 0.9 * 0.8 * later
                assert advantages[own[k]] == pytest.approx(later) and returns[own[k]] == pytest.approx(later + before)
        assert not advantages[~mask].any() and not returns[~mask].any()


def test_wrong_settings_name_their_field() -> None:
    for name, value in (("advantages", "trpo"), ("loss", "mean"), ("kl_coef", float("nan")), ("gamma", 1.5), ("bootstrap", 1), ("baseline_decay", 1.0)):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            TokenLossConfig(**{name: value})
