"""Whole runs: three tasks, methods with and without a language model, and what cannot be run."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import runpy
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_rl import backbones, environments
from echo_rl.backbones import Backbone, Prices, backbone, register_backbone
from echo_rl.backbones.local import LocalBackbone
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.environments import register_environment
from echo_rl.evaluation import baselines
from echo_rl.evaluation.baselines import NotRun, register_baseline
from echo_rl.evaluation.benchmark import BenchmarkConfig, EchoRLBenchmark
from echo_rl.evaluation.episodes import EpisodesFile
from echo_rl.evaluation.language_agents import parsed_action

EXAMPLE = Path(__file__).parents[2] / "examples" / "benchmark_echo_rl.py"


@pytest.fixture(autouse=True)
def names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_registered", {})
    monkeypatch.setattr(backbones, "_registered", {})
    monkeypatch.setattr(baselines, "_BASELINES", dict(baselines._BASELINES))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


class Doors:
    """Three doors; the text says which one is right. Two steps at most."""

    admissible = ["red", "green", "blue"]

    def __init__(self, fails: bool = False) -> None:
        self.fails, self._right, self._steps = fails, "", 0

    def reset(self, seed: int) -> str:
        if self.fails:
            raise RuntimeError("the house is closed")
        self._right, self._steps = self.admissible[int(np.random.default_rng(seed).integers(3))], 0
        return f"The {self._right} door is open."

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        right = action == self._right
        return f"Not {action}. The {self._right} door is open.", float(right), right, self._steps == 2, {"success": right}

    def solve(self) -> str:
        return self._right


class Chat(ThreadingHTTPServer):
    """Speaks OpenAI's protocol, and goes through the door that the last message says is open. It keeps the bodies it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[Any] = []
        self.judges = False


class _Handler(BaseHTTPRequestHandler):
    server: Chat

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        seen = body["messages"][-1]["content"]
        door = next((name for name in Doors.admissible if f"The {name} door" in seen), "none")
        if self.server.judges:
            seen = "How likely" if "Action: b" in seen else "Action: a"
        text = "9" if "How likely" in seen else "2" if self.server.judges else f"Thought: it is open.\nAction: {door.upper()}."
        choices = [{"index": i, "message": {"content": text}, "finish_reason": "stop"} for i in range(body.get("n", 1))]
        data = json.dumps({"choices": choices, "usage": {"prompt_tokens": 1000, "completion_tokens": 10 * len(choices)}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def chat() -> Iterator[Chat]:
    server = Chat()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def remote(chat: Chat, **options: Any) -> Backbone:
    prices = Prices({"m": {"prompt": 1.0, "made": 100.0}})
    return backbone("openai:m", url=f"http://127.0.0.1:{chat.server_address[1]}/v1", key="k", **{"prices": prices, **options})


def tiny(**options: Any) -> Backbone:
    config = ModelConfig("gpt2", vocab=260, layers=1, heads=2, width=16, inner=32, context=4096)
    return LocalBackbone(Engine(Model.random(config, scale=0.3), slots=4, room=16, seed=3), **{"prices": Prices({}), **options})


def rows(report: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["task"], row["method"]): row for row in report.rows}


def test_three_tasks_and_three_baselines_and_a_missing_key(tmp_path: Path, chat: Chat) -> None:
    for name in ("one", "two", "three"):
        register_environment(name, Doors)
    register_backbone("chat", lambda **options: remote(chat, **options))
    register_backbone("tiny", tiny)
    config = BenchmarkConfig(
        ["one", "two", "three"],
        backbones=["chat", "gpt-4o", "tiny"],
        baselines=["random", "oracle", "react"],
        num_episodes=4,
        max_tokens=4,
        output_dir=str(tmp_path),
    )
    report = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    found = rows(report)
    assert len(found) == 3 * 5
    for task in config.tasks:
        assert found[task, "oracle"]["success"]["mean"] == found[task, "react@chat"]["success"]["mean"] == 1.0
        assert 0 < found[task, "random"]["success"]["mean"] < 1
        assert found[task, "react@gpt-4o"]["episodes"] == 0 and "OPENAI_API_KEY" in found[task, "react@gpt-4o"]["not_run"]
        react = found[task, "react@chat"]
        assert react["tokens"] == 12 * 10 and react["cost_per_success"] == pytest.approx(0.002) and react["kv_reuse"] is None
        local = found[task, "react@tiny"]
        assert local["episodes"] == 12 and local["kv_reuse"] > 0 and local["cost"] is None and local["faults"] == 0
        assert react["eta_bw"] is None and local["eta_bw"] is not None, "a server has not counted its cache"
    episodes = EpisodesFile(tmp_path / "episodes.jsonl").read().cells()
    seeds = [{episode.task_seed for episode in episodes["one", method, seed]} for method in ("random", "oracle") for seed in range(3)]
    assert seeds[:3] == seeds[3:] and len(set.union(*seeds)) == 12, "methods play the same tasks, and seeds play different ones"
    assert (tmp_path / "report.md").read_text() == report.markdown() and json.loads((tmp_path / "report.json").read_text()) == report.to_json()
    assert (tmp_path / "report.png").exists() == (importlib.util.find_spec("matplotlib") is not None)


def test_a_judge_trains_a_language_model_and_without_one_the_cells_are_not_run(tmp_path: Path, chat: Chat) -> None:
    """The policy learns what the judge likes, which is the answer "b" and not what the environment rewards."""

    class Letter:
        alphabet = "ab?"

        def reset(self, seed: int) -> str:
            return "?"

        def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "", float(action == "a"), True, False, {"success": action == "a"}

    chat.judges = True
    register_environment("letter", Letter)
    register_backbone("chat", lambda **options: remote(chat, **options))
    trainer = {
        "total_timesteps": 192, "algorithm": "grpo", "batch_size": 32, "group_size": 16, "num_actors": 32, "eta": 0,
        "execution": {"max_new_tokens": 1}, "token_learner": {"learning_rate": 1e-2}, "model": {"layers": 1, "width": 16, "inner": 16, "heads": 2},
    }  # fmt: skip
    config = BenchmarkConfig(["letter"], ["chat"], ["rlaif"], 1, 4, trainer, output_dir=str(tmp_path / "one"))
    judged = rows(EchoRLBenchmark(config).run())["letter", "rlaif@chat"]
    assert judged["episodes"] == 4 and judged["success"]["mean"] == 0.0 and judged["trained_steps"] == 192
    asked = [body["messages"][-1]["content"] for body in chat.bodies]
    assert all("How good is the last action" in each for each in asked) and {each.partition("Action: ")[2][:1] for each in asked} >= {"a", "b"}
    last = [each.partition("Action: ")[2][:1] for each in asked[-32:]]
    assert last.count("b") > 24, "the last batch is mostly what the judge likes"
    (row,) = EchoRLBenchmark(BenchmarkConfig(["letter"], baselines=["rlaif"], num_seeds=1, output_dir=str(tmp_path / "two"))).run().rows
    assert row["episodes"] == 0 and "needs a judge: name a language model in backbones" in row["not_run"]


def test_a_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    register_environment("one", Doors)
    config = BenchmarkConfig(["one"], num_seeds=2, num_episodes=3, output_dir=str(tmp_path))
    EchoRLBenchmark(config).run()
    path = tmp_path / "episodes.jsonl"
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"random", "seed": 1, "episode": 2' not in line]
    path.write_text("".join(kept))
    first = {e.task_seed: e for e in EpisodesFile(path).read().episodes if e.method == "random"}
    played: list[Any] = []
    EchoRLBenchmark(config, on_cell=lambda cell, episodes, reason: played.append((cell, episodes))).run()
    again = EpisodesFile(path).read().episodes
    assert len(again) == 12 and all(episodes == 3 for _, episodes in played)
    assert all(first[e.task_seed] == e for e in again if e.method == "random" and e.task_seed in first), "what was recorded is not played again"
    with pytest.raises(ConfigError, match="max_steps=None, and this run has 1"):
        EchoRLBenchmark(BenchmarkConfig(["one"], max_steps=1, output_dir=str(tmp_path))).run()


def test_tree_of_thoughts_asks_for_thoughts_actions_and_values(tmp_path: Path, chat: Chat) -> None:
    register_environment("one", Doors)
    register_backbone("chat", lambda **options: remote(chat, **options))
    config = BenchmarkConfig(["one"], backbones=["chat"], baselines=["tot"], num_seeds=1, num_episodes=1, output_dir=str(tmp_path))
    report = EchoRLBenchmark(config).run()
    assert report.rows[0]["success"]["mean"] == 1.0
    asked = [body["messages"][-1]["content"] for body in chat.bodies]
    kinds = ["thought" if "thought on what" in text else "action" if "next action" in text else "value" for text in asked]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["thought", "value", "action", "value"]
    assert report.rows[0]["prompt_tokens"] == 1000 * len(asked)


def test_the_custom_example_of_the_seed(tmp_path: Path) -> None:
    class First:
        def begin(self, task_seed: int) -> None:
            pass

        def act(self, observation: Any) -> Any:
            return "red"

    def made(environment: Any, settings: Any) -> First:
        if settings.seed == 4:
            raise NotRun("four is not its number")
        return First()

    register_environment("custom_task", Doors)
    register_backbone("custom_backbone", tiny)
    register_baseline("custom_baseline", made, label="the first door")
    config = BenchmarkConfig(
        tasks=["custom_task"], backbones=["custom_backbone"], baselines=["custom_baseline"], num_seeds=5, num_episodes=5, output_dir=str(tmp_path)
    )
    report = EchoRLBenchmark(config).run()
    assert report.rows[0]["episodes"] == 20 and report.rows[0]["not_run"] == "seed 4: four is not its number"
    assert "`custom_baseline`: the first door" in report.markdown()


def test_the_example_of_echo_rls_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names two models whose keys are missing. Training, its third baseline, has a test of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    config = BenchmarkConfig(tasks=["alfworld", "webshop", "cruxeval"], backbones=["gpt-4o", "claude-3.5-sonnet"], baselines=["react", "tot"], num_seeds=10)
    report = asyncio.run(EchoRLBenchmark(config).run_benchmark())
    assert len(report.cells) == 3 * 4 * 10
    assert all("_API_KEY" in cell["not_run"] and not cell["episodes"] for cell in report.cells)


def test_a_policy_is_trained_for_each_seed(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    trainer = {"total_timesteps": 128, "num_actors": 4, "train_frequency": 32, "batch_size": 64}
    config = BenchmarkConfig(["gym:CartPole-v1"], baselines=["random", "oracle", "ppo-rlhf"], num_seeds=2, num_episodes=2, max_steps=30,
                             echo_rl_configs=trainer, output_dir=str(tmp_path))  # fmt: skip
    found = rows(EchoRLBenchmark(config).run())
    trained = found["gym:CartPole-v1", "ppo-rlhf"]
    assert trained["episodes"] == 4 and trained["trained_steps"] >= 128 and trained["success"] is None and trained["return"]["mean"] > 5
    assert "has no oracle" in found["gym:CartPole-v1", "oracle"]["not_run"] and found["gym:CartPole-v1", "echo-rl"]["episodes"] == 4
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"ppo-rlhf", "seed": 1, "episode": 0' not in line))
    again = rows(EchoRLBenchmark(config).run())["gym:CartPole-v1", "ppo-rlhf"]
    assert again["episodes"] == 3 and "not mixed with those of another" in again["not_run"]


def test_an_environment_that_fails_ends_its_cell(tmp_path: Path) -> None:
    register_environment("one", Doors)
    config = BenchmarkConfig(["one"], num_seeds=1, num_episodes=9, task_options={"one": {"fails": True}}, output_dir=str(tmp_path))
    (random, oracle) = EchoRLBenchmark(config).run().rows
    assert random["faults"] == oracle["faults"] == 3 and "3 faults one after the other: environment one: reset" in random["not_run"]
    assert "the house is closed" in random["not_run"]


def test_a_fault_of_one_cell_leaves_the_others_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each cell says why, the report is written, and the log has the traceback of a programming error once for each task and method."""

    class Unlicensed(Doors):
        def __init__(self) -> None:
            raise RuntimeError("no license")

    class Exits(Doors):
        def reset(self, seed: int) -> str:
            raise SystemExit(3)

    class NotClosed(Doors):
        def close(self) -> None:
            raise OSError("it does not close")

    class Divides:
        def __init__(self, environment: Any, settings: Any) -> None:
            if settings.seed == 1:
                raise LookupError("no weights")

        def begin(self, task_seed: int) -> None:
            pass

        def act(self, observation: Any) -> Any:
            return 1 / 0

    for name, kind in (("one", Doors), ("unlicensed", Unlicensed), ("exits", Exits), ("not closed", NotClosed)):
        register_environment(name, kind)
    register_baseline("divides", Divides)
    tasks = ["unlicensed", "exits", "not closed", "one"]
    report = EchoRLBenchmark(BenchmarkConfig(tasks, baselines=["divides", "oracle"], num_seeds=2, num_episodes=4, output_dir=str(tmp_path))).run()
    cells = {(cell["task"], cell["method"], cell["seed"]): cell for cell in report.cells}
    for seed in (0, 1):
        assert cells["one", "oracle", seed]["success"] == 1.0 and cells["not closed", "oracle", seed]["episodes"] == 4
        assert cells["unlicensed", "oracle", seed]["not_run"] == "environment unlicensed cannot be made: RuntimeError: no license"
        assert "environment exits: reset" in cells["exits", "oracle", seed]["not_run"] and "SystemExit: 3" in cells["exits", "oracle", seed]["not_run"]
    divides = cells["one", "divides", 0]
    assert divides["faults"] == 3 and divides["not_run"] == "3 faults one after the other: method divides has raised ZeroDivisionError: division by zero"
    assert cells["one", "divides", 1]["not_run"] == "LookupError: no weights"
    assert (tmp_path / "report.md").read_text() == report.markdown()
    shown = [(each.args[:2], each.exc_info[0]) for each in caplog.records if each.exc_info]  # type: ignore[index]
    assert shown.count((("unlicensed", "oracle"), RuntimeError)) == shown.count((("one", "divides"), ZeroDivisionError)) == 1 and len(set(shown)) == len(shown)


def test_an_environment_that_hangs_ends_its_cell(tmp_path: Path) -> None:
    go = threading.Event()

    class Hangs(Doors):
        def step(self, action: Any) -> Any:
            go.wait(30)
            return super().step(action)

    register_environment("one", Hangs)
    try:
        config = BenchmarkConfig(["one"], baselines=["oracle"], num_seeds=1, num_episodes=2, timeout=0.2, output_dir=str(tmp_path))
        (row,) = EchoRLBenchmark(config).run().rows
    finally:
        go.set()
    assert row["faults"] == 1 and "the environment hangs" in row["not_run"]


def test_wrong_names_are_errors(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tasks": ["minigrit"]}, "tasks: there is no environment 'minigrit'"),
        ({"backbones": ["gtp-4o"], "baselines": ["react"]}, "backbones: there is no 'gtp-4o'"),
        ({"baselines": ["reakt"]}, "there is no baseline 'reakt'"),
        ({"baselines": ["react"]}, "react needs a language model"),
        ({"task_options": {"arc": {}}}, "task_options: arc is none of tasks"),
        ({"prices": "/none.toml"}, "prices: /none.toml"),
        ({"tasks": ["webshop", "webshop-like"]}, "webshop is another name of webshop-like"),
    ]
    for given, message in wrong:
        fields: dict[str, Any] = {"tasks": ["digits"], "output_dir": str(tmp_path), **given}
        with pytest.raises(ConfigError, match=message):
            EchoRLBenchmark(BenchmarkConfig(**fields))
    with pytest.raises(ValueError, match="tasks must be a list of names"):
        BenchmarkConfig("alfworld")
    with pytest.raises(ValueError, match="task_options must be a dictionary of options for each task"):
        BenchmarkConfig(["digits"], task_options={"digits": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="a baseline 'react' already"):
        register_baseline("react", lambda environment, settings: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="a backbone 'gpt-4o' already"):
        register_backbone("gpt-4o", tiny)
    assert EchoRLBenchmark(BenchmarkConfig(["webshop"]))._tasks == {"webshop-like": {}}, "a shop of ours is not reported as WebShop"


def test_the_action_of_an_answer() -> None:
    assert parsed_action("Thought: x\nAction: Go  Forward.", ["go forward", "done"]) == "go forward"
    assert parsed_action("Action: a\nAction: 12\n34\n", None) == "12\n34"
    assert parsed_action("so\nI say fly", ["go"]) == "I say fly" and parsed_action("", None) == "" and parsed_action("", ["go"]) == ""


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    Path("custom_names.py").write_text(
        f"from {__name__.rpartition('.')[2]} import Doors\nfrom echo_rl.environments import register_environment\nregister_environment('custom_task', Doors)\n"
    )
    arguments = "--import custom_names --tasks custom_task --baselines random react --backbones gpt-4o --num-episodes 2"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "custom_task, random, seed 2: 2 episodes" in said and "not run: gpt-4o needs OPENAI_API_KEY" in said
    report = Path("benchmark_results/report.json").read_text()
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--report-only"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert Path("benchmark_results/report.json").read_text() == report
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--tasks", "minigrit"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 2 and "there is no environment 'minigrit'" in capsys.readouterr().err


LETTER = """
from echo_rl.environments import register_environment

class Letter:
    alphabet = "ab?"

    def reset(self, seed):
        return "?"

    def step(self, action):
        return "", float(action == "a"), True, False, {"success": action == "a"}

register_environment("letter", Letter)
"""


def example(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return ended.value.code


def test_actors_of_the_example_know_the_imported_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("letter_names.py").write_text(LETTER)
    training = "--actor-processes 1 --timesteps 64 --batch-size 32 --num-actors 32"
    arguments = f"--import letter_names --tasks letter --baselines ppo-rlhf --num-seeds 1 --num-episodes 2 {training}"
    assert example(monkeypatch, *arguments.split()) == 0
    assert "letter, ppo-rlhf, seed 0: 2 episodes\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--task-options", '{"digits": 3}'], "task_options must be a dictionary of options for each task"),
        (["--log-level", "nope"], "--log-level: invalid choice: 'NOPE'"),
        (["--import", "no_module_of_this_name"], "--import no_module_of_this_name: No module named"),
        (["--output-dir", "/proc/x"], "/proc/x/episodes.jsonl cannot be written"),
        (["--plot", "/none/picture.png"], "--plot: there is no folder /none"),
        (["--report-only"], "there is no file benchmark_results/episodes.jsonl"),
    ],
)
def test_wrong_arguments_of_the_example(
    arguments: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert example(monkeypatch, "--tasks", "digits", "--num-episodes", "1", *arguments) == 2
    said = capsys.readouterr()
    assert fault in said.err.splitlines()[-1] and not said.out and not list(tmp_path.iterdir())
