"""Trainer, environments, benchmark and command lines of Echo-RL's README, as written there.

Two things are changed. ``smaller`` gives numbers with which a run takes seconds, and ``SMALL`` is the size of the benchmark's trainings. What the README leaves
out, such as an import or a task of the reader's own, stands in the test. No test has a key of a language model: what needs one must say "not run", and why.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import json
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from echo_rl import EchoRLTrainer, TrainingConfig, backbones, environments
from echo_rl.backbones import NAMES, Backbone, Prices, register_backbone
from echo_rl.backbones.local import LocalBackbone
from echo_rl.core import ExecutionConfig
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.environments import CheckedEnvironment, register_environment
from echo_rl.environments.digits import DigitsConfig, DigitsEnvironment
from echo_rl.evaluation import baselines, trained_agents
from echo_rl.evaluation.baselines import CellSettings, register_baseline
from echo_rl.evaluation.benchmark import EchoRLBenchmark

EXAMPLES = Path(__file__).parents[1] / "examples"

TRAINER = """
import asyncio
from echo_rl import EchoRLTrainer, TrainingConfig
async def main():
    # Create training configuration
    config = TrainingConfig(
        env_name="alfworld",
        total_timesteps=100000,
        num_actors=128,
        device="cuda"
    )
    # Initialize trainer
    trainer = EchoRLTrainer(config)
    # Run training
    metrics = await trainer.train()
    print(f"Success rate: {metrics.evaluation_results['success_rate']:.3f}")
    print(f"Avg reward: {metrics.evaluation_results['avg_reward']:.3f}")
asyncio.run(main())
"""
ALFWORLD = """
from echo_rl.environments.alfworld import ALFWorldEnvironment, ALFWorldConfig
config = ALFWorldConfig(task_type="pick_and_place", max_objects=10)
env = ALFWorldEnvironment(config)
"""
WEBSHOP = """
from echo_rl.environments.webshop import WebShopEnvironment, WebShopConfig
config = WebShopConfig(website_type="electronics", budget_limit=1000.0)
env = WebShopEnvironment(config)
"""
CRUXEVAL = """
from echo_rl.environments.cruxeval import CRUXEvalEnvironment, CRUXEvalConfig
config = CRUXEvalConfig(language="python", max_code_length=1000)
env = CRUXEvalEnvironment(config)
"""
ARC = """
from echo_rl.environments.arc import ARCEnvironment, ARCConfig
config = ARCConfig(grid_size=10, task_type="pattern_completion")
env = ARCEnvironment(config)
"""
MINIGRID = """
from echo_rl.environments.minigrid import MiniGridEnvironment, MiniGridConfig
config = MiniGridConfig(grid_size=8, task_type="key_door")
env = MiniGridEnvironment(config)
"""
BENCHMARK = """
from echo_rl.evaluation.benchmark import EchoRLBenchmark, BenchmarkConfig
config = BenchmarkConfig(
    tasks=["alfworld", "webshop", "cruxeval"],
    backbones=["gpt-4o", "claude-3.5-sonnet"],
    baselines=["react", "tot", "ppo-rlhf"],
    num_seeds=10
)
benchmark = EchoRLBenchmark(config)
results = await benchmark.run_benchmark()
"""
TRAINING_CONFIG = """
from echo_rl.training.trainer import TrainingConfig
config = TrainingConfig(
    env_name="alfworld",
    total_timesteps=1000000,
    learning_starts=10000,
    train_frequency=4,
    evaluation_frequency=10000,
    save_frequency=50000,
    num_actors=128,
    num_learners=2,
    batch_size=256,
    device="cuda"
)
"""
CUSTOM = """
from echo_rl.evaluation.benchmark import BenchmarkConfig
config = BenchmarkConfig(
    tasks=["custom_task"],
    backbones=["custom_backbone"],
    baselines=["custom_baseline"],
    num_seeds=5,
    num_episodes=50,
    echo_rl_configs={
        "total_timesteps": 50000,
        "num_actors": 64
    }
)
"""
TRAIN_COMMAND = r"""
python examples/train_echo_rl.py \
    --task alfworld \
    --backbone gpt-4o \
    --timesteps 100000 \
    --num-actors 128 \
    --batch-size 256
"""
BENCHMARK_COMMAND = r"""
python examples/benchmark_echo_rl.py \
    --tasks alfworld webshop cruxeval \
    --backbones gpt-4o claude-3.5-sonnet \
    --baselines react tot ppo-rlhf \
    --num-seeds 10 \
    --num-episodes 100
"""
REPRODUCE_COMMAND = r"""
python examples/benchmark_echo_rl.py \
    --tasks alfworld webshop cruxeval arc minigrid \
    --backbones gpt-4o claude-3.5-sonnet gemini-1.5-pro llama-4 qwen-7b deepseek-r1 \
    --baselines react tot ppo-rlhf rlaif impala \
    --num-seeds 10 \
    --num-episodes 100
"""
# One update, of two rollouts of one action each; with observations of numbers, of four steps of two environments.
SMALL: dict[str, Any] = {
    "total_timesteps": 2,
    "batch_size": 2,
    "group_size": 2,
    "num_actors": 2,
    "train_frequency": 4,
    "execution": {"max_new_tokens": 2},
}
NEEDS = {"webshop": "bm25s", "minigrid": "minigrid"}  # the package of a task, where it has one


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no name of another test, small trainings, and an empty folder for results."""
    for known in NAMES.values():
        monkeypatch.delenv(known.variable, raising=False)
    monkeypatch.setattr(environments, "_registered", {})
    monkeypatch.setattr(backbones, "_registered", {})
    monkeypatch.setattr(baselines, "_BASELINES", dict(baselines._BASELINES))
    monkeypatch.setattr(trained_agents, "DEFAULTS", trained_agents.DEFAULTS | SMALL)
    monkeypatch.chdir(tmp_path)


def smaller(text: str, **changes: str) -> str:
    """The text with other numbers: ``name=number`` becomes ``name=new``. Each must stand in it once, so that no change is without effect."""
    for name, new in changes.items():
        parts = {form: text.count(form) for form in (f"{name}=", f'"{name}": ', f"--{name.replace('_', '-')} ")}
        (form,) = [form for form, count in parts.items() if count == 1]
        before, _, behind = text.partition(form)
        text = before + form + new + behind.lstrip("0123456789")
    return text


def run(code: str, **names: Any) -> dict[str, Any]:
    """Execute a snippet, also one that awaits, and return its names."""
    task = eval(compile(code, "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if task is not None:
        asyncio.run(task)
    return names


def words_of(text: str) -> list[str]:
    """The words of a command line, as a shell reads them: a backslash joins a line with the next one."""
    return shlex.split(text.replace("\\\n", ""))


def command(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command line in this process, and return its exit code."""
    python, file, *arguments = words_of(text)
    assert python == "python" and file.startswith("examples/")
    monkeypatch.setattr(sys, "argv", [file, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / Path(file).name), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def tiny(**options: Any) -> Backbone:
    """A small transformer with random weights, which runs here."""
    config = ModelConfig("gpt2", vocab=260, layers=1, heads=2, width=16, inner=32, context=4096)
    return LocalBackbone(Engine(Model.random(config, scale=0.3), slots=4, room=16, seed=3), **{"prices": Prices({}), **options})


@pytest.mark.needs("echo-tcp")
@pytest.mark.filterwarnings("ignore:device='cuda' was asked for, but CUDA is not available")
def test_the_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    small = "2, learning_starts=0, batch_size=2, group_size=2, max_steps=1, evaluation_episodes=1, execution=ExecutionConfig(max_new_tokens=2)"
    names = run(smaller(TRAINER, total_timesteps=small, num_actors="1"), ExecutionConfig=ExecutionConfig)
    said = capsys.readouterr().out.splitlines()
    assert said == ["Success rate: 0.000", "Avg reward: 0.000"], "one random action solves nothing"
    assert names["EchoRLTrainer"] is EchoRLTrainer


@pytest.mark.parametrize(("code", "package"), [(ALFWORLD, ""), (WEBSHOP, "bm25s"), (CRUXEVAL, ""), (ARC, ""), (MINIGRID, "minigrid")])
def test_an_environment(code: str, package: str) -> None:
    if package:
        pytest.importorskip(package)
    environment = run(code)["env"]
    task = CheckedEnvironment(environment, "the README's")
    assert task.reset(seed=3) == task.reset(seed=3)
    over, total = False, 0.0
    while not over:
        found = task.step(environment.solve())
        over, total = found.terminated or found.truncated, total + found.reward
    assert found.info["success"] and total > 0
    task.close()


@pytest.mark.filterwarnings("ignore:device='cuda' was asked for, but CUDA is not available")
def test_the_configuration_of_a_training() -> None:
    trainer = EchoRLTrainer(run(TRAINING_CONFIG)["config"])
    assert trainer.config.num_learners == 2 and trainer.config == TrainingConfig("alfworld", 1_000_000, num_learners=2, device="cuda")


def test_the_benchmark(tmp_path: Path) -> None:
    found = run(smaller(BENCHMARK, num_seeds="1, num_episodes=1, max_steps=1"))
    _checked(found["results"].rows, ["alfworld", "webshop", "cruxeval"], ["gpt-4o", "claude-3.5-sonnet"], ["react", "tot"], ["ppo-rlhf"])
    assert (tmp_path / "benchmark_results" / "report.md").exists()


def test_tasks_backbones_and_baselines_of_the_readers_own() -> None:
    class Sorts:
        def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
            assert settings.backbone is not None
            self._model = settings.backbone

        def begin(self, task_seed: int) -> None:
            pass

        def act(self, observation: str) -> str:
            assert self._model.generate([observation], max_tokens=1)
            return "".join(sorted(observation.rstrip(">")))

    register_environment("custom_task", lambda: DigitsEnvironment(DigitsConfig(length=4)))
    register_backbone("custom_backbone", tiny)
    register_baseline("custom_baseline", Sorts, needs_backbone=True)
    config = run(smaller(CUSTOM, num_seeds="2", num_episodes="3", total_timesteps="32", num_actors="16"))["config"]
    rows = {row["method"]: row for row in asyncio.run(EchoRLBenchmark(config).run_benchmark()).rows}
    assert set(rows) == {"custom_baseline@custom_backbone", "echo-rl"} and all(row["episodes"] == 6 for row in rows.values()), rows
    assert rows["custom_baseline@custom_backbone"]["success"]["mean"] == 1.0 and rows["echo-rl"]["trained_steps"] >= 32


def test_the_command_of_a_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gymnasium")
    assert command(TRAIN_COMMAND, monkeypatch) == 2
    said = capsys.readouterr()
    assert said.err == "train_echo_rl: not run: backbone 'gpt-4o': gpt-4o needs OPENAI_API_KEY: set this environment variable to your key\n", said
    # With a model in the place of the one that needs a key, and in this process, which alone knows it.
    monkeypatch.setitem(backbones._registered, "gpt-4o", tiny)
    more = " --actor-processes 0 --max-steps 2 rl.train_frequency=2 rl.evaluation_episodes=1 rl.execution.max_new_tokens=2"
    assert command(smaller(TRAIN_COMMAND, timesteps="8", num_actors="2", batch_size="4") + more, monkeypatch) == 0
    said = capsys.readouterr()
    assert "2 updates, 8 steps" in said.out and "evaluation: success_rate 0.000" in said.out, said


@pytest.mark.parametrize("text", [BENCHMARK_COMMAND, REPRODUCE_COMMAND])
def test_the_command_of_a_benchmark(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(smaller(text, num_seeds="1", num_episodes="1 --max-steps 1"), monkeypatch) == 0
    rows = json.loads((tmp_path / "benchmark_results" / "report.json").read_text())["rows"]
    words = words_of(text)
    starts = [words.index(name) for name in ("--tasks", "--backbones", "--baselines", "--num-seeds")]
    tasks, models, methods = (words[first + 1 : last] for first, last in itertools.pairwise(starts))
    trained = [name for name in methods if name in ("ppo-rlhf", "impala")]
    _checked(rows, tasks, models, [name for name in methods if name not in trained], trained)


def _checked(rows: list[dict[str, Any]], tasks: list[str], models: list[str], asked: list[str], trained: list[str]) -> None:
    """Whether each method that trains was played where it can be, and everything else says why it was not run."""
    found = {(row["task"], row["method"]): row for row in rows}
    assert len(found) == len(tasks) * (len(models) * len(asked) + len(trained))
    for task in tasks:
        own = {method: row for (name, method), row in found.items() if name == ("webshop-like" if task == "webshop" else task)}
        for method in asked:
            for model in models:
                row = own[f"{method}@{model}"]
                assert row["episodes"] == 0 and f"{model} needs {NAMES[model].variable}" in row["not_run"]
        for method in trained:
            row, package = own[method], NEEDS.get(task)
            if package and not installed(package):
                assert row["episodes"] == 0 and "not installed" in row["not_run"]
            elif method == "impala" and task != "minigrid":
                assert row["episodes"] == 0 and "is a text environment" in row["not_run"]
            else:
                assert row["episodes"] == 1 and not row["not_run"] and row["trained_steps"] >= SMALL["total_timesteps"], row
