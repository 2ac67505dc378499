"""In the trainer the plan conditions the policy, the mean plan scores replay, and the cost of a request orders the queue; one key switches each off."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")
sys.path.insert(0, str(Path(__file__).parents[1]))

from echo_core import ConfigError  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import ExecutionConfig, PlanningConfig, PPOConfig, ReplayConfig  # noqa: E402
from echo_rl.core.vtrace import VTraceLearner, vtrace  # noqa: E402
from echo_rl.models.actor_critic import ActorCritic  # noqa: E402
from echo_rl.rollouts.acting import windows_of  # noqa: E402
from echo_rl.rollouts.segment_collector import SegmentCollector  # noqa: E402
from echo_rl.rollouts.tickets import Ticket  # noqa: E402
from echo_rl.training.rollout_loop import Published  # noqa: E402
from echo_rl.training.segment_replay import SegmentReplay, plans_of  # noqa: E402
from echo_rl.training.segment_training import SegmentTraining  # noqa: E402
from echo_rl.training.token_training import TokenTraining  # noqa: E402

PLAN = PlanningConfig(embedding_dim=16, layers=1, heads=2, state_window_size=5, learning_rate=1e-3)
REPLAY = ReplayConfig(hot_buffer_size=12, cold_buffer_size=20, alpha=1.0)


def trainer(updates: int = 3, **options: Any) -> EchoRLTrainer:
    given: dict[str, Any] = {
        "learning_starts": 0,
        "num_actors": 4,
        "actor_processes": 0,
        "train_frequency": 24,
        "batch_size": 48,
        "evaluation_frequency": 10**9,
        "evaluation_episodes": 2,
        "seed": 3,
        "eta": 0,
        "max_steps": 30,
        "ppo": PPOConfig(learning_rate=1e-3, epochs=1, kl_coef=0.0),
    }
    return EchoRLTrainer(TrainingConfig("gym:CartPole-v1", updates * 24 * 4, **(given | options)))


def segments(training: SegmentTraining, count: int) -> list[dict[str, Any]]:
    """Segments of one collector, one after the other, so that all but the first begin in the middle of an episode."""
    collector = SegmentCollector(training.rules)
    policy = Published(training.weights(), 0)
    found = [dict(collector.collect([Ticket(i, i, 0)], policy, lambda _: None)[0]) for i in range(count)]
    collector.close()
    return found


def training_of(made: EchoRLTrainer) -> SegmentTraining:
    assert isinstance(made._training, SegmentTraining)
    return made._training


def test_the_plan_conditions_the_policy_as_the_learner_sees_it() -> None:
    """The learner finds the actors' log-probabilities from the windows that it makes of a record; without the past they are others."""
    training = training_of(trainer(planning=PLAN))
    for record in segments(training, 3):
        windows, following = windows_of(record["states"], record["next_states"], record["began"], record["history"])
        assert windows.shape == (24, 4, 5, 4) and record["terminated"].any()
        steps, behaviour = np.flatnonzero(record["mask"].ravel()), record["log_probs"].ravel()
        found = []
        for each in (windows, np.repeat(windows[:, :, -1:], 5, axis=2)):
            with torch.no_grad():
                logits, _ = training.learner.policy(torch.from_numpy(each.reshape(-1, 5, 4)[steps]))
            found.append(logits.log_softmax(-1).numpy()[np.arange(len(steps)), record["actions"].ravel()[steps]])
        assert np.allclose(found[0], behaviour[steps], atol=1e-5)
        assert np.abs(found[1] - behaviour[steps]).max() > 1e-4
        # After a step, the window has moved by the state that the step led to; a step that ends no episode leads to the next step's window.
        goes_on = ~(record["terminated"][:-1] | record["truncated"][:-1]).astype(bool)
        assert np.array_equal(following[:-1][goes_on], windows[1:][goes_on])


def test_the_divergence_of_plans_is_in_the_loss_and_planning_none_has_neither() -> None:
    with_plan, no_weight, without = (trainer(planning=plan) for plan in (PLAN, PlanningConfig(**{**vars(PLAN), "kl_weight": 0.0}), None))
    metrics = [each.run() for each in (with_plan, no_weight, without)]
    losses = [[figures["auxiliary_loss"] for figures in each.history] for each in metrics]
    assert min(losses[0]) > 0 and losses[1] == [0.0] * 3 and losses[2] == [0.0] * 3
    assert isinstance(training_of(without).learner.policy, ActorCritic) and training_of(without).planner is None
    weights = [training_of(each).weights() for each in (with_plan, no_weight)]
    name = "encoder.embed.weight"
    assert not np.array_equal(weights[0][name], weights[1][name]), "the divergence has changed what the encoder has learned"
    begun = training_of(trainer(planning=PLAN)).weights()
    assert not np.array_equal(weights[1][name], begun[name]), "the loss of the policy trains the encoder"
    assert metrics[0].evaluation_results["episodes"] == 2


def test_a_plan_is_saved_and_goes_on(tmp_path: Path) -> None:
    first = trainer(2, planning=PLAN, algorithm="impala", replay=REPLAY)
    first.run()
    first.save(tmp_path / "plan.npz")
    other = trainer(3, planning=PLAN, algorithm="impala", replay=REPLAY)
    other.restore(tmp_path / "plan.npz")
    one, two = (training_of(each).weights() for each in (first, other))
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)
    assert other.run().updates == 3


def test_replay_is_saved_and_goes_on(tmp_path: Path) -> None:
    """The segments come back with their scores and the mean plan, and are trained on again."""
    path = tmp_path / "replay.npz"
    first = trainer(2, planning=PLAN, algorithm="impala", replay=REPLAY)
    first.run()
    first.save(path)
    other = trainer(3, planning=PLAN, algorithm="impala", replay=REPLAY)
    other.restore(path)
    one, two = (training_of(each).replay for each in (first, other))
    assert one is not None and two is not None and len(one) == len(two) == 8
    assert np.array_equal(one.buffer.score.average, two.buffer.score.average)
    drawn = [replay.buffer.sample_batch(64) for replay in (one, two)]
    assert all(np.array_equal(drawn[0][0][name], drawn[1][0][name]) for name in drawn[0][0]) and np.array_equal(drawn[0][1], drawn[1][1])
    assert [figures["replay_size"] for figures in other.run().history] == [12]
    with pytest.raises(ConfigError, match=r"kept with alpha=1\.0, and this run has 0\.5"):
        trainer(3, planning=PLAN, algorithm="impala", replay=replace(REPLAY, alpha=0.5)).restore(path)


def test_a_damaged_replay_is_refused_and_changes_nothing() -> None:
    training = training_of(trainer(planning=PLAN, algorithm="impala", replay=REPLAY))
    replay, names = training.replay, ("states", "next_states", "actions", "log_probs", "rewards", "terminated", "truncated", "mask", "began", "history")
    assert replay is not None
    (record,) = segments(training, 1)
    replay.add({name: record[name] for name in names}, 0)
    whole = replay.state()
    largest = max(whole, key=lambda name: len(whole[name]))
    for wrong, text in (
        ({**whole, "../elsewhere": whole["replay.json"]}, "outside its folder"),
        ({name: content for name, content in whole.items() if name != "replay.json"}, "cannot be restored"),
        ({**whole, "replay.json": whole["replay.json"][:-9]}, "cannot be restored"),
        ({**whole, largest: np.append(whole[largest][:-1], whole[largest][-1] ^ 1)}, "cannot be restored"),
    ):
        with pytest.raises(ValueError, match=text):
            replay.loaded(wrong)
        assert len(replay) == 4
    broken = training.state()
    broken["tensors"].popitem()
    with pytest.raises(ValueError, match="missing or unknown"):  # the learner's part is damaged, and the replay has no segments
        training.restore({**broken, "replay": {}})
    assert len(replay) == 4
    replay.take(replay.loaded(whole))
    assert len(replay) == 4


def test_the_mean_plan_scores_replay() -> None:
    """Segments whose plans are far from the mean are drawn more often; without a planner, and without rewards, all are drawn alike."""
    training = training_of(trainer(planning=PLAN, algorithm="impala", replay=REPLAY))
    planner = training.planner
    assert planner is not None
    rules = ReplayConfig(hot_buffer_size=32, cold_buffer_size=32, reward_weight=0.0, weighting="softmax", temperature=4.0, seed=1)
    replay, plain = SegmentReplay(rules, planner), SegmentReplay(rules)
    names = ("states", "next_states", "actions", "log_probs", "rewards", "terminated", "truncated", "mask", "began", "history")
    plans = []
    for i, record in enumerate(segments(training, 4)):
        columns = {name: record[name] for name in names} | {"number": np.tile(np.arange(4) + 4 * i, (24, 1))}
        replay.add(columns, 0)
        plain.add(columns, 0)
        _, windows = windows_of(*(columns[name] for name in ("states", "next_states", "began", "history")))
        plans.append(plans_of(planner, windows[-1]).astype(np.float64))
    mean = plans[0].mean(0)
    for each in plans[1:]:
        mean = 0.99 * mean + 0.01 * each.mean(0)
    assert np.allclose(replay.buffer.score.average, mean, atol=1e-6)
    surprises = np.square(np.concatenate(plans) - mean).sum(1)
    replay.draw(2048)  # which scores what it draws by the mean plan of now
    drawn = replay.draw(8192)
    shares, order = np.bincount(drawn["number"][0], minlength=16) / 8192, surprises.argsort()
    assert shares.argmax() == order[-1] and shares[order[-4:]].sum() > 2 * shares[order[:4]].sum()
    assert drawn["weights"].max() == 1.0 and drawn["weights"].min() < 0.8 and drawn["states"].shape == (24, 8192, 4)
    assert np.abs(np.bincount(plain.draw(8192)["number"][0], minlength=16) / 8192 - 1 / 16).sum() < 0.06
    replay.buffer.close()
    plain.buffer.close()


def test_replay_trains_on_old_segments_and_none_does_not() -> None:
    seen: list[tuple[int, ...]] = []

    def watch(made: EchoRLTrainer) -> EchoRLTrainer:
        learner = training_of(made).learner
        update = learner.update
        learner.update = lambda rollout: (seen.append(np.shape(rollout["rewards"])), update(rollout))[1]  # type: ignore[method-assign, func-returns-value]
        return made

    metrics = watch(trainer(3, algorithm="impala", replay=REPLAY)).run()
    assert seen == [(24, 4), (24, 8), (24, 8)] and [figures["replay_size"] for figures in metrics.history] == [4, 8, 12]
    seen.clear()
    metrics = watch(trainer(3, algorithm="impala")).run()
    assert seen == [(24, 4)] * 3 and "replay_size" not in metrics.history[-1]


def test_v_trace_is_its_definition() -> None:
    """v_s = V_s + sum of gamma^(t-s) (product of c_i) delta_t up to the episode's end (Espeholt et al. 2018, equation 1)."""
    rng = np.random.default_rng(0)
    T, N, gamma, decay = 12, 3, 0.9, 0.95
    rewards, values, ratios = rng.normal(size=(T, N)), rng.normal(size=(T, N)), rng.lognormal(size=(T, N))
    terminated, truncated = rng.random((T, N)) < 0.2, rng.random((T, N)) < 0.2
    following = np.where(terminated | truncated, rng.normal(size=(T, N)), np.concatenate([values[1:], rng.normal(size=(1, N))]))
    advantages, targets = vtrace(rewards, values, following, terminated, truncated, ratios, gamma, decay)
    weight = np.minimum(ratios, 1)
    delta = weight * (rewards + gamma * np.where(terminated, 0, following) - values)
    wanted = np.zeros((T + 1, N))
    for n in range(N):
        for s in range(T):
            total, product = 0.0, 1.0
            for t in range(s, T):
                total += gamma ** (t - s) * product * delta[t, n]
                product *= decay * weight[t, n]
                if terminated[t, n] or truncated[t, n]:
                    break
            wanted[s, n] = values[s, n] + total
            later = 0.0 if terminated[s, n] else following[s, n]
            if s + 1 < T and not (terminated[s, n] or truncated[s, n]):
                later = np.nan  # v of the next step, which is checked below
            if not np.isnan(later):
                assert advantages[s, n] == pytest.approx(rewards[s, n] + gamma * later - values[s, n])
    assert np.allclose(targets, wanted[:T])
    inner = ~(terminated | truncated)[:-1]
    assert np.allclose(advantages[:-1][inner], (rewards[:-1] + gamma * wanted[1:T] - values[:-1])[inner])
    with pytest.raises(ValueError, match="one shape"):
        vtrace(rewards, values, following, terminated, truncated, ratios[1:])


def test_impala_learns_from_the_choices_of_another_policy() -> None:
    """A bandit whose actions a skewed policy draws: V-trace learns the values of its own policy, and prefers the better action, which was seldom drawn."""
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    learner = VTraceLearner(ActorCritic(1, 2, (8,), seed=1), PPOConfig(learning_rate=2e-2, epochs=1, minibatch_size=512, entropy_coef=0.0, seed=1))
    for _ in range(60):
        actions = (rng.random((1, 512)) < 0.1).astype(np.int64)
        log_probs = np.log(np.where(actions == 1, 0.1, 0.9)).astype(np.float32)
        states, ones = np.ones((1, 512, 1), np.float32), np.ones((1, 512), np.uint8)
        learner.update({"states": states, "next_states": states, "actions": actions, "log_probs": log_probs, "rewards": actions.astype(np.float32),
                        "terminated": ones, "truncated": 0 * ones})  # fmt: skip
    with torch.no_grad():
        logits, _ = learner.policy(torch.ones(1, 1))
    assert float(logits.softmax(-1)[0, 1]) > 0.8


@pytest.mark.parametrize(("scheduler", "first"), [("bandwidth", 1), ("fcfs", 0)])
def test_the_cost_orders_the_queue_of_an_actors_engine(scheduler: str, first: int) -> None:
    """Of two waiting requests, that with the smaller b_eff is admitted first under "bandwidth": it came later, is longer, and most of it is cached."""
    execution = ExecutionConfig(scheduler=scheduler, max_concurrent_rollouts=1, max_new_tokens=2)
    made = EchoRLTrainer(TrainingConfig("digits", 100_000, num_actors=4, actor_processes=0, seed=1, batch_size=32, execution=execution))
    training = made._training
    assert isinstance(training, TokenTraining)
    engine = training.rules.engine(training.weights(), 0)
    prefix = [int(t) for t in np.random.default_rng(0).integers(0, 10, 60)]
    engine.submit(prefix, 1)
    engine.run()
    engine.scheduler.record(60.0)  # requests wait long as a rule, so that a busy machine doesn't make the older one go first for its age
    waiting = [engine.submit([10] * 40, 2), engine.submit([*prefix, 3], 2)]
    while not any(request.output for request in waiting):
        engine.step()
    assert [bool(request.output) for request in waiting] == [first == 0, first == 1]
    engine.run()
    assert waiting[1].cached >= 48 and waiting[0].cached == 0
    training.close()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gym:CartPole-v1", {"replay": REPLAY}, "replay needs algorithm='impala'"),
        ("gym:CartPole-v1", {"algorithm": "impala", "correction": "tis"}, "correction='tis' has no meaning with algorithm='impala'"),
        ("digits", {"planning": PLAN}, "planning is for policies of numbers"),
        ("digits", {"algorithm": "impala"}, "algorithm='impala' trains policies of numbers"),
        ("digits", {"algorithm": "impala", "replay": REPLAY}, "algorithm='impala' trains policies of numbers"),
    ],
)
def test_combinations_without_a_meaning_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        EchoRLTrainer(TrainingConfig(name, 100_000, num_actors=4, actor_processes=0, **options))
