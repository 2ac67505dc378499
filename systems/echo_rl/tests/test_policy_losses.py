from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from echo_rl.core import (  # noqa: E402
    GRPOConfig,
    corrections,
    grpo,
)

# The ratios are 1.5, 0.5, 4 and, outside the mask, an overflow.
BEHAVIOUR = torch.log(torch.tensor([0.2, 0.4, 0.1, 0.0]))
CURRENT = torch.log(torch.tensor([0.3, 0.2, 0.4, 0.5]))
ADVANTAGES = torch.tensor([1.0, -1.0, 2.0, 5.0])
MASK = torch.tensor([1, 1, 1, 0])


def close(values: torch.Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(values.detach(), torch.tensor(expected))


def test_none_is_the_policy_gradient() -> None:
    loss, metrics = corrections.none(CURRENT, ADVANTAGES, MASK)
    close(loss, [-math.log(0.3), math.log(0.2), -2 * math.log(0.4), 0.0])
    assert metrics == corrections.CorrectionMetrics(0, 1, 0)


def test_ppo_clips_against_the_behaviour() -> None:
    current = CURRENT.clone().requires_grad_()
    loss, metrics = corrections.ppo(current, BEHAVIOUR, ADVANTAGES, MASK)
    close(loss, [-1.2, 0.8, -2.4, 0.0])
    assert metrics.clip_share == 1
    loss.sum().backward()
    assert current.grad.tolist() == [0, 0, 0, 0], "clipped tokens, and one outside the mask"
    close(corrections.ppo(CURRENT, BEHAVIOUR, -ADVANTAGES, MASK)[0], [1.5, -0.5, 8.0, 0.0])


def test_tis_truncates_the_weight() -> None:
    current = CURRENT.clone().requires_grad_()
    loss, metrics = corrections.tis(current, BEHAVIOUR, ADVANTAGES, MASK, cap=2.0)
    close(loss, [-1.5 * math.log(0.3), 0.5 * math.log(0.2), -4 * math.log(0.4), 0.0])
    assert (metrics.mean_correction, metrics.capped_share) == pytest.approx((4 / 3, 1 / 3))
    loss.sum().backward()
    close(current.grad, [-1.5, 0.5, -4.0, 0.0])


def test_decoupled_corrects_and_clips_apart() -> None:
    proximal = torch.log(torch.tensor([0.3, 0.4, 0.4, 0.5]))  # r = 1, 0.5, 1; c = 1.5, 1, 2 of 4
    loss, metrics = corrections.decoupled(CURRENT, proximal, BEHAVIOUR, ADVANTAGES, MASK)
    close(loss, [-1.5, 0.8, -4.0, 0.0])
    assert (metrics.clip_share, metrics.mean_correction, metrics.capped_share) == pytest.approx((1 / 3, 1.5, 1 / 3))


def test_wrong_bounds_are_named() -> None:
    with pytest.raises(ValueError, match="clip_epsilon"):
        corrections.ppo(CURRENT, BEHAVIOUR, ADVANTAGES, MASK, clip_epsilon=0)
    with pytest.raises(ValueError, match="cap must"):
        corrections.tis(CURRENT, BEHAVIOUR, ADVANTAGES, MASK, cap=0)


def test_advantages_are_beside_the_group() -> None:
    rewards = torch.tensor([[1.0, 3.0], [0.1, 0.1]])
    advantages, spread = grpo.group_advantages(rewards)
    each = 1 / (math.sqrt(2) + 1e-4)
    torch.testing.assert_close(advantages, torch.tensor([[-each, each], [0.0, 0.0]]))
    assert spread.tolist() == [True, False]
    assert grpo.group_advantages(rewards, GRPOConfig(scale="none"))[0].tolist() == [[-1, 1], [0, 0]]
    with pytest.raises(ValueError, match="at least 2"):
        grpo.group_advantages(torch.ones(3, 1))
    with pytest.raises(ValueError, match="scale"):
        GRPOConfig(scale="mean")  # type: ignore[arg-type]


def test_the_loss_is_a_sum_or_a_mean_over_tokens_or_sequences() -> None:
    losses, mask, lengths = torch.tensor([1.0, 2.0, 3.0, 10.0, 99.0, 99.0]), torch.tensor([1, 1, 1, 1, 0, 0]), torch.tensor([3, 2, 1])
    assert float(grpo.reduce_loss(losses, mask, lengths)) == 4
    assert float(grpo.reduce_loss(losses, mask, lengths, GRPOConfig(loss="sequence"))) == 6
    assert float(grpo.reduce_loss(losses, mask, lengths, GRPOConfig(loss="sum"))) == 16
    with pytest.raises(ValueError, match="add up to 2"):
        grpo.reduce_loss(losses, mask, torch.tensor([2]))


def test_k3_is_the_divergence_on_average() -> None:
    p, q = torch.tensor([0.3, 0.7]), torch.tensor([0.5, 0.5])
    torch.testing.assert_close((p * grpo.k3(p.log(), q.log())).sum(), (p * (p / q).log()).sum())
