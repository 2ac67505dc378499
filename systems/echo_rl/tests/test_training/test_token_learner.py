"""The learner of language models: exact microbatches, exact restarts, refused batches, and a task that it learns with the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from echo_rl.core import GRPOConfig  # noqa: E402
from echo_rl.engine import Engine, Model, ModelConfig, Request  # noqa: E402
from echo_rl.environments.digits import DigitsConfig, DigitsEnvironment  # noqa: E402
from echo_rl.models import TrainableTransformer  # noqa: E402
from echo_rl.rollouts import FINISH_REASONS, Rollout, RolloutSchema, TokenBatch  # noqa: E402
from echo_rl.training.token_learner import TokenLearner, TokenLearnerConfig  # noqa: E402
from echo_rl.training.token_losses import TokenLossConfig, of_groups  # noqa: E402

CONFIG = ModelConfig("llama", vocab=12, layers=2, heads=2, width=32, inner=64, context=32)
LOSSES = {
    "grpo": TokenLossConfig(kl_coef=0.1, entropy_coef=0.01, loss="sequence"),
    "grpo, decoupled": TokenLossConfig(correction="decoupled", loss="sum", scale="none"),
    "reinforce": TokenLossConfig(advantages="reinforce", correction="none"),
    "ppo": TokenLossConfig(advantages="ppo", correction="tis", bootstrap=True),
}


def pack(schema: RolloutSchema, groups: list[tuple[list[Rollout], list[int]]]) -> TokenBatch:
    """Return the batch that a learner gets of some groups with their prompts, as a table would hand it out."""
    records = [schema.pack(rollouts, task=i, prompt=prompt) for i, (rollouts, prompt) in enumerate(groups)]
    fixed = ("task", "lengths", "turn_counts", "rewards", "attempts", "finish")
    batch = {name: np.stack([r[name] for r in records]) if name in fixed else np.concatenate([r[name] for r in records]) for name in records[0]}
    axes = {"token": "tokens", "turn": "turns", "prompt": "prompt"}
    offsets = {axis: np.concatenate([[0], np.cumsum([len(r[name]) for r in records])]) for axis, name in axes.items()}
    return schema.unpack(SimpleNamespace(batch=batch, offsets=offsets))


def batch(seed: int = 0, version: int = 0) -> TokenBatch:
    """Return three groups of four random rollouts; all rewards of the last group are equal, and some tokens are the environment's."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(3):
        rollouts = []
        for i in range(4):
            n = int(rng.integers(2, 12))
            mask = rng.random(n) < 0.8
            mask[-1] = True
            logprobs = np.where(mask, -rng.random(n) * 3, np.nan)
            reward = 1.0 if g == 2 else float(rng.random())
            rollouts.append(Rollout(rng.integers(0, 12, n), logprobs, version, mask, reward=reward, finish="length" if i == 1 else "stop"))
        groups.append((rollouts, rng.integers(0, 12, 3).tolist()))
    return pack(RolloutSchema(group=4, most=32), groups)


def learner(name: str, **options: Any) -> TokenLearner:
    loss = LOSSES[name]
    model = TrainableTransformer.random(CONFIG, 1, scale=0.3, value_head=loss.advantages == "ppo")
    reference = TrainableTransformer.random(CONFIG, 2, scale=0.3) if loss.kl_coef else None
    return TokenLearner(model, TokenLearnerConfig(loss, **({"learning_rate": 1e-3} | options)), reference=reference)


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tensors = a["tensors"].keys() == b["tensors"].keys() and all(torch.equal(x, b["tensors"][name]) for name, x in a["tensors"].items())
    return tensors and a["values"] == b["values"]


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_microbatches_is_that_of_the_whole_batch(name: str) -> None:
    """A budget of one token puts each rollout into a piece of its own."""
    found = []
    for tokens in (10_000, 30, 1):
        one = learner(name, micro_tokens=tokens, max_grad_norm=1e9)
        metrics = one.update(batch())
        found.append(({called: p.grad.clone() for called, p in one.model.named_parameters()}, metrics))
    (whole, expected), *parts = found
    assert expected.steps == 1 and expected.skipped_groups == (1 if "grpo" in name else 0) and expected.rollouts == 12
    for gradient, metrics in parts:
        for called, value in whole.items():
            torch.testing.assert_close(gradient[called], value, atol=1e-6, rtol=1e-4)
        for figure, value in vars(expected).items():
            assert getattr(metrics, figure) == pytest.approx(value, rel=1e-4, abs=1e-6), figure


@pytest.mark.parametrize("name", LOSSES)
def test_a_restored_learner_goes_on_bit_by_bit(name: str) -> None:
    one = learner(name, epochs=2, minibatches=2)
    for update in range(2):
        one.update(batch(update))
    state = one.state()
    state["values"] = json.loads(json.dumps(state["values"]))
    other = learner(name, epochs=2, minibatches=2)
    other.restore(state)
    assert same(other.state(), one.state())
    for update in range(2, 4):
        assert one.update(batch(update, 2)) == other.update(batch(update, 2))
    assert same(other.state(), one.state()) and one.version == 4 and not same(state, one.state())
    fresh = learner(name, epochs=2, minibatches=2)
    fresh.update(batch())
    fresh.restore(learner(name, epochs=2, minibatches=2).state())
    assert same(fresh.state(), learner(name, epochs=2, minibatches=2).state())


def test_a_wrong_state_changes_nothing() -> None:
    one = learner("reinforce")
    one.update(batch())
    before = one.state()
    wrong = [learner("reinforce", epochs=2).state(), learner("ppo").state(), one.state(), one.state(), one.state()]
    wrong[1]["values"]["config"] = before["values"]["config"]
    del wrong[2]["tensors"]["adam.exp_avg.norm.weight"]
    wrong[3]["tensors"]["model.norm.weight"][0] = float("nan")
    wrong[4]["values"]["version"] = -1
    for state, words in zip(wrong, ["epochs=2", "value_head", r"adam\.exp_avg\.norm", "not finite", "version"], strict=True):
        with pytest.raises(ValueError, match=words):
            one.restore(state)
        assert same(one.state(), before)


def spoil(array: Any, at: Any, value: Any) -> Any:
    array = array.copy()
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: {"rewards": spoil(b.rewards, 3, np.nan)}, "reward of rollout 3 is not finite"),
        (lambda b: {"logprobs": spoil(b.logprobs, b.mask, np.nan)}, "must be finite"),
        (lambda b: {"logprobs": spoil(b.logprobs, b.mask, 3.0)}, "not positive"),
        (lambda b: {"mask": np.append(b.mask, True)}, "mask has the shape"),
        (lambda b: {"mask": b.mask & False}, "no token of the batch counts"),
        (lambda b: {"mask": spoil(b.mask, 0, True)}, "no token is before it"),
        (lambda b: {"versions": spoil(b.versions, b.mask, 5)}, "versions are in 5"),
        (lambda b: {"tokens": spoil(b.tokens, 4, 12)}, r"the model knows 0 \.\. 11"),
        (lambda b: {"cu_seqlens": b.cu_seqlens + 1}, "cu_seqlens must ascend"),
        (lambda b: {"group": spoil(b.group, 0, 1)}, "follow one another"),
    ],
)
def test_a_wrong_batch_changes_nothing(change: Any, words: str) -> None:
    one, given = learner("grpo", minibatches=2), batch().with_prompts()
    before = one.state()
    with pytest.raises(ValueError, match=words):
        one.update(replace(given, **change(given)))
    assert same(one.state(), before)
    with pytest.raises(ValueError, match="kl_coef=0.1 needs a reference"):
        TokenLearner(one.model, one.config)
    with pytest.raises(ValueError, match="value_head=True"):
        TokenLearner(one.model, TokenLearnerConfig(LOSSES["ppo"]))


def test_a_group_without_spread_is_skipped_and_not_trained_on() -> None:
    """Nothing of it reaches the model, not even by the divergence from the reference. If all groups are so, nothing changes."""
    given = batch()
    one, other = learner("grpo"), learner("grpo")
    spoiled = given.logprobs.copy()
    spoiled[given.cu_seqlens[8] :] = -5.0
    assert one.update(given).skipped_groups == other.update(replace(given, logprobs=spoiled)).skipped_groups == 1
    assert same(one.state(), other.state())
    weights = one.model.weights()
    metrics = one.update(replace(given, rewards=np.ones(12, np.float32)))
    assert (metrics.steps, metrics.skipped_groups, one.version, one.updates, one.skipped_groups) == (0, 3, 1, 2, 4)
    assert metrics.lag == metrics.most_lag == 1
    assert all(torch.equal(weight, weights[name]) for name, weight in one.model.weights().items())


@pytest.mark.parametrize("name", ["grpo", "reinforce", "ppo"])
def test_a_rollout_whose_environment_failed_is_left_out(name: str) -> None:
    """Its reward and its tokens reach neither the loss nor the mean of its group. A group of which one rollout is left, or none, is skipped."""
    given = batch()
    failed = spoil(given.finish, [1, 4, 5, 6], FINISH_REASONS.index("error"))
    other = spoil(given.rewards, [1, 4, 5, 6], 1e6)
    logprobs = spoil(given.logprobs, slice(given.cu_seqlens[1], given.cu_seqlens[2]), -7.0)
    one, two = learner(name), learner(name)
    metrics = one.update(replace(given, finish=failed))
    assert metrics == two.update(replace(given, finish=failed, rewards=other, logprobs=logprobs)) and same(one.state(), two.state())
    if name == "grpo":
        assert metrics.skipped_groups == 2  # the last one has no spread
        advantages, used = of_groups(given.rewards.astype(float), given.group, GRPOConfig(), failed == 0)
        three, _ = of_groups(given.rewards[[0, 2, 3]].astype(float), given.group[[0, 2, 3]], GRPOConfig())
        assert advantages[[0, 2, 3]].tolist() == three.tolist() and advantages[1] == 0 and used.tolist() == [True, False, True, True] + [False] * 8
    nothing = learner(name)
    before = nothing.state()["tensors"]
    assert nothing.update(replace(given, finish=np.full_like(given.finish, 3))).steps == 0
    assert all(torch.equal(tensor, before[called]) for called, tensor in nothing.state()["tensors"].items())


def test_the_gradient_is_clipped() -> None:
    one = learner("grpo, decoupled", max_grad_norm=0.01)
    assert one.update(batch()).gradient_norm > 0.01
    norm = torch.cat([p.grad.flatten() for p in one.model.parameters()]).norm()
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


def rollouts_of(engine: Engine, seeds: range, size: int) -> list[tuple[list[Request], list[int], list[float]]]:
    """Let the engine answer the digits of each seed several times, and let the environment judge."""
    asked = []
    for seed in seeds:
        environment = DigitsEnvironment(DigitsConfig(length=2, base=4))
        prompt = ["0123456789>".index(c) for c in environment.reset(seed)]
        asked.append((seed, prompt, [engine.submit(prompt, 2, seed=1000 * seed + i) for i in range(size)]))
    engine.run()
    found = []
    for seed, prompt, requests in asked:
        rewards = []
        for request in requests:
            environment = DigitsEnvironment(DigitsConfig(length=2, base=4))
            environment.reset(seed)
            rewards.append(environment.step("".join("0123456789>"[t] if t < 11 else "?" for t in request.output))[1])
        found.append((requests, prompt, rewards))
    return found


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_tiny_transformer_learns_to_sort_digits(name: str) -> None:
    """The engine makes the rollouts, and gets the weights of each update. At staleness 0, its log-probabilities are those of the learner."""
    loss = TokenLossConfig(advantages=name)  # type: ignore[arg-type]
    one = TokenLearner(TrainableTransformer.random(CONFIG, value_head=name == "ppo", scale=0.1), TokenLearnerConfig(loss, learning_rate=5e-3))
    engine, rewards = Engine(Model(one.model.config, one.model.weights()), slots=64, room=8), []
    schema = RolloutSchema(group=8, most=2)
    for update in range(25):
        groups = []
        for requests, prompt, given in rollouts_of(engine, range(16 * update, 16 * update + 16), 8):
            rollouts = [Rollout(r.output, r.logprobs, r.versions, reward=reward) for r, reward in zip(requests, given, strict=True)]
            groups.append((rollouts, prompt))
        metrics = one.update(pack(schema, groups))
        assert metrics.kl < 1e-8 and metrics.clip_share == 0 and metrics.most_lag == 0
        rewards.append(metrics.reward)
        if metrics.steps:
            engine.update_weights(one.model.weights(), one.version)
    assert rewards[0] < 0.2 and np.mean(rewards[-3:]) > 0.6, rewards
