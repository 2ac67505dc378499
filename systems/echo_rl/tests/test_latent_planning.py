"""Plans: their encoder, the policy that they condition, their divergence in time, and the search on an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from echo_rl.core import PlanningConfig, PPOConfig
from echo_rl.core.latent_planning import LatentPlanningOptimizer, PolicyNetwork, SoftPrefix, StateWindows, TrajectoryEncoder
from echo_rl.core.ppo_learner import PPOLearner
from echo_rl.engine import Engine, Model, ModelConfig

SMALL = {"embedding_dim": 16, "layers": 2, "heads": 4, "state_window_size": 6}
MODEL = ModelConfig("gpt2", vocab=40, layers=2, heads=2, width=16, inner=32, context=64)


def planner(state_dim: int = 4, seed: int = 0, **options: Any) -> LatentPlanningOptimizer:
    torch.manual_seed(seed)
    fields = {name: options.pop(name) for name in list(options) if name in PlanningConfig.__dataclass_fields__}
    return LatentPlanningOptimizer(state_dim, 3, PlanningConfig(**{**SMALL, **fields}), width=32, **options)


def windows(count: int = 32, k: int = 6, seed: int = 0) -> torch.Tensor:
    """Random walks, so that neighbouring states are alike and those of different windows are not."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, 1, 4, generator=generator) + 0.1 * torch.randn(count, k, 4, generator=generator).cumsum(1)


def test_a_causal_encoder_gives_the_plans_of_all_prefixes_at_once() -> None:
    encoder, states = planner().encoder.eval(), windows()
    now, before = encoder.consecutive(states)
    torch.testing.assert_close(now, encoder(states))
    torch.testing.assert_close(before, encoder(states[:, :-1]))
    # Of an encoder that sees everything they are different passes.
    whole = planner(causal=False).encoder.eval()
    torch.testing.assert_close(whole.consecutive(states)[1], whole(states[:, :-1]))
    assert not torch.allclose(whole._hidden(states)[:, -2], whole(states[:, :-1]))


def test_a_plan_depends_on_every_state_and_on_their_order() -> None:
    encoder, states = planner().encoder.eval(), windows(1)
    plan = encoder(states)
    for i in range(6):
        other = states.clone()
        other[0, i] += 1
        assert not torch.allclose(encoder(other), plan, atol=1e-4), i
    assert not torch.allclose(encoder(states.flip(1)), plan, atol=1e-4)


def test_the_fields_shape_the_encoder() -> None:
    def encoder(**fields: Any) -> TrajectoryEncoder:
        return planner(**fields).encoder

    assert encoder(embedding_dim=32)(windows()).shape == (32, 32)
    assert len(encoder(layers=3).layers.layers) == 3
    assert encoder(heads=2).layers.layers[0].self_attn.num_heads == 2
    with pytest.raises(ValueError, match=r"\(n, k, 4\) with k from 1 to 5, got \(32, 6, 4\)"):
        encoder(state_window_size=5)(windows())
    with pytest.raises(ValueError, match="at least two states"):
        encoder().consecutive(windows(k=1))


def test_the_soft_prefix_mixes_state_and_plan() -> None:
    prefix, states, plans = SoftPrefix(4, 16, 8), torch.randn(5, 4), torch.randn(5, 16)
    with torch.no_grad():
        prefix.balance.fill_(1.0)
        a = float(torch.sigmoid(torch.tensor(1.0)))
        expected = prefix.norm(a * prefix.of_state(states) + (1 - a) * prefix.of_plan(plans))
        torch.testing.assert_close(prefix(states, plans), expected)
        torch.testing.assert_close(prefix(states), prefix.norm(prefix.of_state(states)))


def test_the_policy_takes_states_of_any_shape_with_and_without_plans() -> None:
    policy = PolicyNetwork(state_dim=4, action_dim=3, latent_dim=16)
    logits, values = policy(torch.randn(2, 7, 4))
    assert logits.shape == (2, 7, 3) and values.shape == (2, 7)
    state = torch.randn(2, 4)
    assert not torch.equal(policy(state)[1], policy(state, torch.randn(2, 16))[1])
    assert torch.distributions.Categorical(logits=policy(state)[0]).entropy().min() > 1.09, "nearly uniform over 3 actions"


def test_the_bounds_of_the_heads_hold_and_are_reached() -> None:
    policy = PolicyNetwork(4, 3, 16, width=8)
    weight, bound = policy.policy_head.weight.detach(), policy.head_bounds()["policy_head"]
    moves = torch.randn(1000, 8)
    assert ((moves @ weight.T).norm(dim=1) <= bound * moves.norm(dim=1) * (1 + 1e-5)).all()
    direction = torch.linalg.svd(weight)[2][0]
    assert float((weight @ direction).norm()) == pytest.approx(bound, rel=1e-5)
    assert set(policy.head_bounds()) == {"policy_head", "value_head"}


@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
@pytest.mark.parametrize("dim", [16, 128])
def test_the_divergence_neither_grows_with_plans_nor_shrinks_with_them(scale: float, dim: int) -> None:
    module = planner(embedding_dim=dim).train()
    with torch.no_grad():
        module.encoder.layers.norm.weight.mul_(scale)  # all plans become that much larger
    smooth = float(module.temporal_kl(windows(256)).detach())
    jumps = float(module.temporal_kl(torch.cat([windows(256, 5), 3 * torch.randn(256, 1, 4)], dim=1)).detach())
    assert 0 < smooth < 0.3 and smooth < jumps < 3


def test_the_running_variance_is_kept_in_training_only() -> None:
    module = planner(spread_decay=0.5)
    module.eval().temporal_kl(windows())
    assert not module.spread.any()
    module.train().temporal_kl(windows())
    first = module.spread.clone()
    module.temporal_kl(windows(seed=1))
    plans = module.encoder(windows(seed=1)).detach()
    torch.testing.assert_close(module.spread, 0.5 * first + 0.5 * plans.var(dim=0))


def rollout(module: LatentPlanningOptimizer) -> dict[str, torch.Tensor]:
    states, generator = windows(64), torch.Generator().manual_seed(3)
    with torch.no_grad():
        logits, _ = module.eval()(states)
    actions = torch.randint(0, 3, (64,), generator=generator)
    found = {"states": states, "next_states": states, "actions": actions, "log_probs": logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]}
    ends = torch.ones(64, dtype=torch.bool)
    return {**found, "rewards": (actions == 1).float(), "terminated": ends, "truncated": ~ends}


def test_ppo_learns_encoder_and_policy_together() -> None:
    def learned(**fields: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
        module = planner(**fields)
        learner = PPOLearner(module, PPOConfig(seed=1), auxiliary=module.auxiliary_loss, groups=module.groups())
        metrics = learner.update(rollout(module))
        assert metrics.auxiliary_loss < 0.2 * (metrics.value_loss + abs(metrics.policy_loss)), "it does not drown the rest"
        parts = (torch.nn.utils.parameters_to_vector(part.parameters()).detach() for part in (module.encoder, module.policy))
        return (*parts, metrics.auxiliary_loss)

    before = torch.nn.utils.parameters_to_vector(planner().encoder.parameters()).detach()
    encoder, policy, loss = learned()
    assert not torch.equal(before, encoder) and loss > 0
    assert learned(kl_weight=0.0)[2] == 0 and not torch.equal(learned(kl_weight=0.0)[0], encoder)
    slow = learned(learning_rate=1e-6)
    assert (slow[0] - before).abs().max() < 1e-4 < (encoder - before).abs().max()
    assert (slow[1] - policy).abs().max() < 0.1, "the policy's rate is PPO's"


def test_minimising_the_divergence_makes_plans_smoother() -> None:
    module, states = planner().train(), windows(128)
    before = float(module.temporal_kl(states).detach())
    optimizer = torch.optim.Adam(module.encoder.parameters(), lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        module.temporal_kl(states).backward()
        optimizer.step()
    assert float(module.temporal_kl(states).detach()) < 0.8 * before


def engine(**options: Any) -> Engine:
    return Engine(Model.random(MODEL, scale=0.3), slots=8, room=16, seed=0, **options)


def test_the_best_of_the_branches_is_encoded() -> None:
    prefix = tuple(range(1, 20))
    module = planner(16, engine=engine(), score=lambda prefix, tokens: float(sum(token == 7 for token in tokens)))
    found = module.plan(prefix, branches=6, horizon=12, seed=5)
    assert len(found.branches) == 6 and {len(branch.tokens) for branch in found.branches} == {12}
    assert len({branch.tokens for branch in found.branches}) == 6, "every branch has draws of its own"
    assert found.best.score == max(branch.tokens.count(7) for branch in found.branches) == found.best.tokens.count(7)
    last = (prefix + found.best.tokens)[-6:]
    embedded = module.engine.model.weights["wte.weight"][list(last)]
    torch.testing.assert_close(found.plan, module.encoder(embedded[None])[0].detach())
    # The prefix without its last token is computed once: the other five branches share it.
    assert found.reused_tokens == 5 * 18
    assert module.engine.stats()["computed_tokens"] == 18 + 6 * 12
    again = planner(16, engine=engine(), score=module.score).plan(prefix, 6, 12, seed=5)
    assert again.branches == found.branches and torch.equal(again.plan, found.plan)


def test_the_likeliest_continuation_wins_without_a_score() -> None:
    found = planner(16, engine=engine()).plan([1, 2, 3], branches=8, horizon=4, seed=1)
    assert found.best.mean_log_prob == found.best.score == max(branch.mean_log_prob for branch in found.branches)
    cold = planner(16, engine=engine()).plan([1, 2, 3], branches=2, horizon=4, temperature=0.0)
    assert cold.branches[0].tokens == cold.branches[1].tokens


def test_other_requests_of_the_engine_go_on() -> None:
    shared = engine()
    other = shared.submit([5, 6], 3)
    planner(16, engine=shared).plan([1, 2, 3], branches=2, horizon=8)
    assert other.finish == "length" and len(other.output) == 3


def test_what_a_search_lacks_is_said() -> None:
    with pytest.raises(RuntimeError, match="needs an engine"):
        planner().plan([1])
    with pytest.raises(ValueError, match=r"state_dim=4 needs \(6, 4\)"):
        planner(engine=engine()).plan([1, 2, 3], horizon=8)
    with pytest.raises(ValueError, match="branches must be at least 1"):
        planner(16, engine=engine()).plan([1], branches=0)
    paused = engine()
    paused.pause()
    with pytest.raises(RuntimeError, match="is paused"):
        planner(16, engine=paused).plan([1])
    with pytest.raises(TimeoutError, match="4 branches of 8 tokens did not end within 0 s"):
        planner(16, engine=(paused := engine())).plan([1, 2], horizon=8, timeout=0)
    assert not (paused.waiting or paused.filling or paused.decoding), "nothing is left behind"
    own = planner(4, engine=engine(), embed=lambda tokens: torch.ones(len(tokens), 4))
    assert own.plan([1, 2], branches=2, horizon=3).plan.shape == (16,)


def test_windows_begin_anew_with_an_episode() -> None:
    kept = StateWindows(2, 3, 1)
    assert kept.push(torch.tensor([[1.0], [5.0]]))[:, :, 0].tolist() == [[1, 1, 1], [5, 5, 5]]
    assert kept.followed_by(torch.tensor([[2.0], [6.0]]))[:, :, 0].tolist() == [[1, 1, 2], [5, 5, 6]]
    kept.end(torch.tensor([False, True]))
    assert kept.push(torch.tensor([[2.0], [9.0]]))[:, :, 0].tolist() == [[1, 1, 2], [9, 9, 9]]


def test_a_wrong_field_is_named() -> None:
    for name, value in {"embedding_dim": 0, "state_window_size": 1, "kl_weight": -1.0, "learning_rate": 0.0, "layers": 0, "spread_decay": 1.0}.items():
        with pytest.raises(ValueError, match=name):
            PlanningConfig(**{name: value})
    with pytest.raises(ValueError, match="heads=7 does not divide embedding_dim=512"):
        PlanningConfig(heads=7)
