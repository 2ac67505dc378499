"""The fields of a run: what is refused, by which name, and where a value came from; and the intervals of an evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from echo_core import ConfigError  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig  # noqa: E402
from echo_rl.core import GRPOConfig, PPOConfig, ReplayConfig  # noqa: E402
from echo_rl.training.evaluation import evaluated  # noqa: E402
from echo_rl.training.metrics import mean_interval, share_interval  # noqa: E402
from echo_rl.training.token_learner import TokenLearnerConfig  # noqa: E402
from echo_rl.training.token_losses import TokenLossConfig  # noqa: E402


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_name": ""}, "env_name must be"),
        ({"total_timesteps": 0}, "total_timesteps must be a whole number of at least 1"),
        ({"total_timesteps": 5_000}, "learning_starts=10000 must be less than total_timesteps=5000"),
        ({"train_frequency": 2.5}, "train_frequency must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"device": "tpu"}, "device must be"),
        ({"algorithm": "dqn"}, "algorithm must be one of"),
        ({"eta": -1}, "eta must be"),
        ({"correction": "vtrace"}, "correction must be"),
        ({"num_learners": 0}, "num_learners"),
        ({"algorithm": "grpo", "group_size": 1}, "group_size must be at least 2"),
        ({"deterministic": True, "eta": 0}, "deterministic needs eta=0 and a seed"),
        ({"deterministic": True, "seed": 1}, "deterministic needs eta=0"),
        ({"deterministic": True, "seed": 1, "eta": 0, "interrupt": "swap"}, "interrupt='swap'"),
        ({"deterministic": True, "seed": 1, "eta": 0, "interrupt": "resume"}, "interrupt='resume'"),
        ({"seed": -1}, "seed must be"),
        ({"replay": ReplayConfig()}, "replay needs algorithm='impala'"),
        ({"ppo": PPOConfig(correction="tis")}, "ppo.correction='tis' is not correction='ppo'"),
        ({"token_learner": TokenLearnerConfig(TokenLossConfig(correction="tis"))}, "token_learner.loss.correction"),
        ({"grpo": GRPOConfig("none"), "token_learner": TokenLearnerConfig(TokenLossConfig(loss="sum"))}, "token_learner.loss.loss='sum'"),
        ({"patience": math.nan}, "patience must be"),
        ({"env_options": []}, "env_options must be"),
    ],
)
def test_a_wrong_field_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainingConfig(**({"env_name": "digits", "total_timesteps": 100_000} | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_name": "digit"}, "did you mean 'digits'"),
        ({"env_name": "no-such-task"}, "no-such-task"),
        ({"batch_size": 100, "group_size": 16}, "batch_size=100 must be a multiple of group_size=16"),
        ({"backbone": "gpt-5o"}, "backbone='gpt-5o' is no folder"),
        ({"backbone": "gpt-4o"}, "gpt-4o needs OPENAI_API_KEY"),
        ({"env_options": {"length": 99}}, "length has to be"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=words):
        EchoRLTrainer(TrainingConfig(**({"env_name": "digits", "total_timesteps": 100_000} | options)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gym:CartPole-v1", {"algorithm": "grpo"}, "algorithm='grpo' trains language models"),
        ("gym:CartPole-v1", {"num_actors": 5, "actor_processes": 2}, "num_actors=5 must be a multiple of the 2 actor processes"),
        ("gym:CartPole-v1", {"deterministic": True, "eta": 0, "seed": 1}, "deterministic is for text environments"),
        ("gym:Pendulum-v1", {}, "needs discrete actions"),
    ],
)
def test_an_environment_of_gymnasium_that_does_not_fit_is_refused(name: str, options: dict[str, Any], words: str) -> None:
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=words):
        EchoRLTrainer(TrainingConfig(name, 100_000, **options))


def test_a_file_the_environment_and_the_command_line_are_read_and_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[rl]\nenv_name = "digits"\ntotal_timesteps = 20_000\neta = 0\n[rl.execution]\nmax_new_tokens = 3\n[rl.token_learner.loss]\nentropy_coef = 0.05\n'
    )
    env = {"ECHO_RL__BATCH_SIZE": "64", "ECHO_RL__PPO__GAMMA": "0.9"}
    config = TrainingConfig.load(file, env=env, command_line=["rl.group_size=4", "rl.algorithm=grpo"], overrides={"seed": 3})
    assert (config.batch_size, config.eta, config.group_size, config.seed, config.algorithm) == (64, 0, 4, 3, "grpo")
    assert config.execution.max_new_tokens == 3 and config.ppo.gamma == 0.9 and config.token_rules.loss.entropy_coef == 0.05
    assert config.token_rules.loss.advantages == "grpo"
    for arguments, words in (
        ({"env": {"ECHO_RL__BATCH_SIZE": "many"}}, "environment variable ECHO_RL__BATCH_SIZE: rl.batch_size: must be a whole number"),
        ({"command_line": ["rl.bach_size=3"]}, "command line: rl.bach_size: unknown key.*batch_size"),
        ({"overrides": {"eta": -1}}, "arguments: rl.eta: eta must be"),
        ({"command_line": ["rl.ppo.gamma=2"]}, "rl.ppo.gamma: gamma must be"),
    ):
        with pytest.raises(ConfigError, match=words):
            TrainingConfig.load(file, **({"env": {}} | arguments))
    with pytest.raises(ConfigError, match=r"rl.env_name: missing"):
        TrainingConfig.load({"rl": {"total_timesteps": 3}}, env={})


def test_intervals_are_those_of_the_tables() -> None:
    """Student's t quantiles are 12.7062, 4.3027, 2.7764, 2.2622 and 1.9842 for 1, 2, 4, 9 and 99 degrees of freedom. Wilson's bounds of 9 of 10 are known."""
    for freedom, quantile in ((1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (99, 1.9842)):
        n = freedom + 1
        values = [float(i % 2) for i in range(n)]
        mean = sum(values) / n
        deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / freedom)
        low, high = mean_interval(values)
        assert high - low == pytest.approx(2 * quantile * deviation / math.sqrt(n), rel=5e-4)
    assert share_interval(9, 10) == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert share_interval(0, 0) == (0.0, 1.0) and share_interval(10, 10)[1] == 1.0 and mean_interval([3.0]) == (-math.inf, math.inf)


def test_time_outs_and_failures_count_in_no_mean() -> None:
    def one(reward: float, success: bool | None = None, fault: str = "", late: bool = False) -> Any:
        return SimpleNamespace(reward=reward, success=success, fault=fault, late=late)

    found = evaluated([one(1.0, True), one(0.5, False), one(0.0, None, "late", True), one(0.0, None, "broken")])
    assert (found["avg_reward"], found["success_rate"], found["episodes"], found["timeouts"], found["failures"]) == (0.75, 0.5, 2, 1, 1)
    nothing = evaluated([one(0.0, None, "broken")])
    assert math.isnan(nothing["avg_reward"]) and "success_rate" not in nothing
