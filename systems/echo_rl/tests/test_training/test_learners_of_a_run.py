"""Whole runs with several learners: they train as one does, are resumed on another number, and can be watched."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
TESTS = Path(__file__).parents[1]

from echo_core import EchoError  # noqa: E402
from echo_core.client.observer import Observer  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import ExecutionConfig, PPOConfig  # noqa: E402
from echo_rl.rollouts.text_policy import SmallModel  # noqa: E402
from echo_rl.training.token_learner import TokenLearnerConfig  # noqa: E402
from echo_rl.training.token_losses import TokenLossConfig  # noqa: E402

BATCH = 16


def digits(updates: int, learners: int, **options: Any) -> TrainingConfig:
    given: dict[str, Any] = {"learning_starts": 0, "evaluation_frequency": 10**9, "evaluation_episodes": 4, "num_actors": 16, "batch_size": BATCH}
    given |= {"group_size": 4, "algorithm": "grpo", "actor_processes": 0, "seed": 5, "eta": 0, "deterministic": True, "num_learners": learners}
    given |= {"model": SmallModel(layers=1, heads=2, width=16, inner=16, context=32), "execution": ExecutionConfig(max_new_tokens=3, timeout=20.0)}
    given |= {"token_learner": TokenLearnerConfig(TokenLossConfig(kl_coef=0.1), learning_rate=3e-3, micro_tokens=40, max_grad_norm=0.1)}
    return TrainingConfig("digits", updates * BATCH, **(given | options))


def train(config: TrainingConfig, checkpoint: Path | None = None, stop: int = 0) -> EchoRLTrainer:
    """Train from a checkpoint, to the end or to an update."""
    trainer = EchoRLTrainer(config, on_update=lambda figures: trainer.stop() if figures["update"] == stop else None)
    if checkpoint is not None:
        trainer.restore(checkpoint)
    trainer.run()
    assert trainer._training.learners.pids == []
    return trainer


def weights(trainer: EchoRLTrainer) -> dict[str, Any]:
    return {name: np.array(array) for name, array in trainer._training.weights().items()}


def differ(one: EchoRLTrainer, other: EchoRLTrainer) -> float:
    """The greatest difference of a parameter."""
    mine, theirs = weights(one), weights(other)
    return max(float(np.abs(mine[name] - theirs[name]).max()) for name in mine)


def test_grpo_on_digits_is_that_of_one_learner_also_resumed_on_another_number(tmp_path: Path) -> None:
    """With two learners, a deterministic run has the same bits as another one that was stopped in the middle."""
    one, two = train(digits(4, 1)), train(digits(4, 2))
    assert one.metrics.updates == two.metrics.updates == 4 and differ(one, two) < 1e-5 and differ(one, EchoRLTrainer(digits(4, 1))) > 1e-3
    train(digits(4, 2), stop=2).save(tmp_path / "two.npz")
    again, alone = train(digits(4, 2), tmp_path / "two.npz"), train(digits(4, 1), tmp_path / "two.npz")
    assert differ(two, again) == 0 and again.metrics.updates == alone.metrics.updates == 4 and differ(two, alone) < 1e-5
    assert two.metrics.evaluation_results == again.metrics.evaluation_results


@pytest.mark.needs("echo-tcp")
def test_ppo_on_numbers_is_that_of_one_learner() -> None:
    pytest.importorskip("gymnasium")

    def cartpole(learners: int) -> EchoRLTrainer:
        options: dict[str, Any] = {"actor_processes": 0, "num_actors": 4, "train_frequency": 33, "batch_size": 50, "eta": 0, "num_learners": learners}
        rules = PPOConfig(epochs=2, target_kl=0.5, value_clip=0.2)
        return train(TrainingConfig("gym:CartPole-v1", 264, learning_starts=0, seed=1, evaluation_frequency=10**9, evaluation_episodes=2, ppo=rules, **options))

    one, two = cartpole(1), cartpole(2)
    assert one.metrics.updates == two.metrics.updates == 2 and one.metrics.episodes == two.metrics.episodes
    mine, theirs = one._training.state()["tensors"], two._training.state()["tensors"]
    assert mine.keys() == theirs.keys() and max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine) < 1e-5


@pytest.mark.needs("echo-tcp")
def test_learners_are_shown_and_the_death_of_one_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    seen: list[Any] = []

    def look(figures: dict[str, Any]) -> None:
        if figures["update"] == 2:
            with Observer(str(trainer.address), timeout=60) as observer:
                seen.append(observer.stats())
            seen.extend([*trainer.pids, *trainer._training.learners.pids])
            os.kill(seen[-1], signal.SIGKILL)

    trainer = EchoRLTrainer(digits(100_000, 2, deterministic=False, actor_processes=1, eta=1), on_update=look)
    with pytest.raises(EchoError, match=r"^learner 1 \(process \d+\) has ended by signal 9\. The learners share each update, .* last checkpoint"):
        asyncio.run(trainer.train())
    stats, *pids = seen
    assert stats["rl/learners"] == 2 and 0 < stats["rl/learners_wait_share"] < 1 and stats["rl/updates_total"] == 2
    assert len(pids) == 2 and trainer.metrics.updates in (2, 3)
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_a_reward_reaches_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adam is the learning rate, in the direction of the gradient. So rewards of the other sign move each weight the other way."""
    from echo_rl.environments.digits import DigitsEnvironment

    before, paid = EchoRLTrainer(digits(1, 1)), train(digits(1, 1))
    step = DigitsEnvironment.step

    def fined(self: DigitsEnvironment, action: str) -> Any:
        observation, reward, *rest = step(self, action)
        return observation, -reward, *rest

    monkeypatch.setattr(DigitsEnvironment, "step", fined)
    other = train(digits(1, 1))
    start = weights(before)
    for name, array in weights(paid).items():
        there, back = array - start[name], weights(other)[name] - start[name]
        moved = np.abs(there) > 1e-3  # the others have a gradient that is nearly 0
        assert moved.any() and np.allclose(there[moved], -back[moved], atol=1e-5), name
