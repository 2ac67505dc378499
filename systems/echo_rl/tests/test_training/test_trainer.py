"""The whole loop by EchoRLTrainer: it is deterministic where that is asked for, it survives deaths and faults, and it is resumed from one moment."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import odd_environments  # noqa: E402

from echo_core import ConfigError, EchoError, EchoTimeoutError  # noqa: E402
from echo_core.client.observer import Observer  # noqa: E402
from echo_rl import EchoRLTrainer, TrainingConfig, TrainingMetrics  # noqa: E402
from echo_rl.core import ExecutionConfig, PPOConfig  # noqa: E402
from echo_rl.rollouts.text_policy import SmallModel  # noqa: E402
from echo_rl.training.token_learner import TokenLearnerConfig  # noqa: E402
from echo_testing.processes import until  # noqa: E402

pytestmark = pytest.mark.needs("echo-tcp")
STEPS = 4 * 4 * 2  # rollouts of a batch, with two actions each


@pytest.fixture(autouse=True)
def _actors_find_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def config(updates: int, **options: Any) -> TrainingConfig:
    given: dict[str, Any] = {
        "learning_starts": 0,
        "evaluation_frequency": 10**9,
        "save_frequency": 10**9,
        "num_actors": 16,
        "batch_size": 16,
        "group_size": 4,
        "algorithm": "grpo",
        "actor_processes": 0,
        "seed": 5,
        "eta": 0,
        "evaluation_episodes": 6,
        "model": SmallModel(layers=1, heads=2, width=16, inner=16, context=32),
        "execution": ExecutionConfig(max_new_tokens=2, timeout=20.0),
        "token_learner": TokenLearnerConfig(learning_rate=3e-3),
        "imports": ["odd_environments"],
        "patience": 120.0,
    }
    return TrainingConfig("test-sums", updates * STEPS, **(given | options))


def weights(trainer: EchoRLTrainer) -> bytes:
    return b"".join(array.tobytes() for _, array in sorted(trainer._training.weights().items()))


def learned(metrics: TrainingMetrics) -> list[Any]:
    """The figures of an update without its times."""
    return [{name: value for name, value in figures.items() if name not in ("seconds", "asked", "hit")} for figures in metrics.history]


def test_a_deterministic_run_is_that_of_the_synchronous_loop_also_resumed(tmp_path: Path) -> None:
    """In this process; with two actors over TCP; and stopped in the middle: the same bits."""
    here = EchoRLTrainer(config(6, deterministic=True))
    metrics = here.run()
    assert metrics.updates == 6 and metrics.steps == 6 * STEPS and metrics.lags == {0: 24} and metrics.failed == 0
    actors = EchoRLTrainer(config(6, deterministic=True, actor_processes=2))
    assert learned(asyncio.run(actors.train())) == learned(metrics) and weights(actors) == weights(here)
    assert actors.metrics.evaluation_results == metrics.evaluation_results and actors.metrics.lags == {0: 24} and actors.metrics.duplicates == 0

    stopped = EchoRLTrainer(config(6, deterministic=True), on_update=lambda figures: figures["update"] == 3 and stopped.stop())
    first = stopped.run()
    assert first.updates == 3
    stopped.save(tmp_path / "three.npz")
    resumed = EchoRLTrainer(config(6, deterministic=True))
    resumed.restore(tmp_path / "three.npz")
    second = resumed.run()
    assert learned(first) + learned(second) == learned(metrics) and weights(resumed) == weights(here)
    assert second.updates == 6 and second.lags == {0: 24} and second.evaluation_results == metrics.evaluation_results


def test_an_asynchronous_run_keeps_the_bound_while_actors_are_killed_and_it_can_be_watched() -> None:
    """Several gradient steps of a batch add no staleness: an update makes one version."""
    seen: list[dict[str, Any]] = []

    def look(figures: dict[str, Any]) -> None:
        if figures["update"] in (2, 4) and trainer.pids:
            os.kill(trainer.pids[0], signal.SIGKILL)
        if figures["update"] == 6:
            with Observer(str(trainer.address), timeout=60) as observer:
                seen.append(observer.stats())

    learner = TokenLearnerConfig(learning_rate=1e-3, epochs=2, minibatches=2)
    trainer = EchoRLTrainer(config(10, actor_processes=2, eta=1, token_learner=learner), on_update=look)
    metrics = asyncio.run(trainer.train())
    assert metrics.updates == 10 and sum(metrics.lags.values()) == 40 and max(metrics.lags) <= 1
    assert 1 <= metrics.restarted <= 2  # the run may end before the second death is noticed
    assert [figures["version"] for figures in metrics.history] == list(range(2, 12)) and any(figures.get("gradient_steps") == 4 for figures in metrics.history)
    assert max(figures.get("most_lag", 0) for figures in metrics.history) <= 1
    stats = seen[0]
    assert stats["rl/updates_total"] == 6 and stats["rl/reward"] >= 0.25 and stats["rl/tokens_per_s"] > 0 and 0 < stats["rl/hit_rate"] < 1
    assert sum(stats[f"rl/lag_{age}_total"] for age in (0, 1) if f"rl/lag_{age}_total" in stats) == 24
    assert "learner" in stats["rl/waits"] or "ticket" in stats["rl/waits"]


def test_environments_fail_and_the_others_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    odd_environments.OddEnvironment.made = 0
    odd_environments.OddEnvironment.release.clear()
    odd = config(4, execution=ExecutionConfig(max_new_tokens=2, timeout=2.0))
    trainer = EchoRLTrainer(TrainingConfig("test-odd", **{name: getattr(odd, name) for name in vars(odd) if name != "env_name"}))
    metrics = trainer.run()
    odd_environments.OddEnvironment.release.set()
    assert metrics.failed >= 4 and metrics.skipped_groups >= 1 and metrics.updates >= 4
    assert all(math.isfinite(figures["reward"]) and figures["reward"] >= 0.25 for figures in metrics.history)
    assert any("has not returned" in figures["fault"] or "has raised" in figures["fault"] for figures in metrics.history)
    results = metrics.evaluation_results
    assert results["episodes"] + results["timeouts"] + results["failures"] == 6 and results["failures"] >= 1
    with pytest.raises(EchoError, match=r"every rollout of 3 batches has failed; the last fault: environment test-odd: reset\(\d+\) has raised RuntimeError"):
        EchoRLTrainer(
            TrainingConfig(
                "test-odd", **{name: getattr(odd, name) for name in vars(odd) if name not in ("env_name", "env_options")}, env_options={"always": True}
            )
        ).run()


def test_actors_that_cannot_work_end_the_run_with_a_reason() -> None:
    with pytest.raises(ModuleNotFoundError):
        EchoRLTrainer(config(4, imports=["no_such_module"]))
    trainer = EchoRLTrainer(config(4, actor_processes=1, patience=0.5))
    trainer._actors = lambda address: _Nobody()  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(EchoTimeoutError, match=r"0 of 4 groups are there, and the results of tickets 0, 1, 2, 3 are missing .*; 0 actors are connected"):
        trainer.run()


class _Nobody:
    pids: list[int] = []
    restarted = 0

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_cancelled_run_ends_with_its_actors() -> None:
    trainer = EchoRLTrainer(config(10_000, actor_processes=1))

    async def cancel() -> list[int]:
        task = asyncio.create_task(trainer.train())
        while trainer.metrics.updates < 2:
            await asyncio.sleep(0.02)
        pids = trainer.pids
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pids

    pids = asyncio.run(cancel())
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_actors_end_when_their_learner_is_killed() -> None:
    actor = "import os, time; from echo_rl.rollouts.actor_process import end_with_the_parent as end; end(); print(os.getpid(), flush=True); time.sleep(600)"
    learner = f"import sys, time; from echo_rl.training.fleet import Fleet; Fleet([sys.executable, '-c', {actor!r}], 1); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", learner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes(), "the actor ends", 60)


def test_checkpoints_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    trainer = EchoRLTrainer(config(1, output_dir=str(tmp_path)))
    trainer.run()
    path = tmp_path / "checkpoint.npz"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["update", "evaluation"] and not list(tmp_path.glob(".*.part"))
    for options, words in (({"eta": 1}, "eta=0"), ({"group_size": 8}, "group_size=4"), ({"seed": 6}, "seed=5")):
        with pytest.raises(ConfigError, match=words):
            EchoRLTrainer(config(1, **options)).restore(path)
    for content, words in ((b"", "damaged"), (path.read_bytes()[:-2000], "damaged"), (b"PK nonsense", "damaged")):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            EchoRLTrainer(config(1)).restore(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ConfigError, match="is no checkpoint"):
        EchoRLTrainer(config(1)).restore(tmp_path / "other.npz")
    with pytest.raises(ConfigError, match="cannot be read"):
        EchoRLTrainer(config(1)).restore(tmp_path / "none.npz")


def test_cartpole_is_trained_and_resumed_with_actors(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")

    def cartpole(steps: int, processes: int) -> TrainingConfig:
        rules = PPOConfig(learning_rate=1e-3, gamma=0.98, gae_lambda=0.8, epochs=10, entropy_coef=0.0, kl_coef=0.0)
        options = {"actor_processes": processes, "num_actors": 4, "train_frequency": 64, "batch_size": 128, "eta": 1, "ppo": rules}
        return TrainingConfig("gym:CartPole-v1", steps, learning_starts=0, seed=1, evaluation_frequency=10**9, evaluation_episodes=8, **options)

    trainer = EchoRLTrainer(cartpole(2048, 0))
    first = trainer.run()
    assert first.steps == 2048 and first.updates == 8 and first.episodes > 20 and max(first.lags) <= 1 and first.evaluation_results["avg_reward"] > 9
    trainer.save(tmp_path / "cartpole.npz")
    resumed = EchoRLTrainer(cartpole(6144, 1))
    resumed.restore(tmp_path / "cartpole.npz")
    assert weights(resumed) == weights(trainer)
    second = resumed.run()
    assert second.updates == 24 and second.steps == 6144
    returns = [figures["reward"] for figures in (first.history + second.history) if "reward" in figures]
    assert np.mean(returns[-4:]) > 1.5 * np.mean(returns[:4]), returns


def test_a_language_model_is_saved_while_it_is_trained_and_goes_on_elsewhere(tmp_path: Path) -> None:
    saved = threading.Event()

    def save() -> None:
        trainer.save(tmp_path / "moment.npz")  # it waits for the end of an update
        saved.set()

    def start(figures: dict[str, Any]) -> None:
        if figures["update"] == 2:
            thread.start()
        if saved.is_set():
            trainer.stop()

    thread = threading.Thread(target=save)
    trainer = EchoRLTrainer(config(100_000, algorithm="ppo", eta=1, batch_size=8, group_size=2), on_update=start)
    trainer.run()
    thread.join()
    other = EchoRLTrainer(config(100_000, algorithm="ppo", eta=1, batch_size=8, group_size=2), on_update=lambda figures: other.stop())
    other.restore(tmp_path / "moment.npz")
    before = other.metrics.updates
    assert 2 <= before <= trainer.metrics.updates and other.run().updates == before + 1 and "value_loss" in other.metrics.history[0]


def test_a_checkpoint_that_is_asked_for_while_a_run_ends_is_written(tmp_path: Path) -> None:
    trainer = EchoRLTrainer(config(1))
    saving = threading.Thread(target=trainer.save, args=(tmp_path / "late.npz",), daemon=True)
    with trainer._running:  # a run that looks no more whether it was asked
        saving.start()
        until(lambda: not trainer._saves.empty(), "the request is there")
    saving.join(60)
    assert not saving.is_alive() and (tmp_path / "late.npz").exists()


def test_cuda_that_is_not_there_is_a_warning_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="the CPU is used") as warned:
        EchoRLTrainer(config(1, device="cuda"))
    assert len(warned) == 1
    with pytest.raises(ConfigError, match="strict_device"):
        EchoRLTrainer(config(1, device="cuda", strict_device=True))


logging.getLogger("echo").setLevel(logging.WARNING)
