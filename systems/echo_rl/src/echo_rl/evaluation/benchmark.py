"""A benchmark: a matrix of tasks, methods and seeds, whose episodes are recorded one by one."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from echo_core import ConfigError, EchoError
from echo_rl.backbones import NAMES, Backbone, BackboneError, BackboneUnavailable, Prices, adapters, backbone, is_known
from echo_rl.checks import Rule, check_fields, instance, optional, real, whole
from echo_rl.environments import _ALIASES, FORMS, CheckedEnvironment, EnvironmentFailure, environments, is_environment, make_environment
from echo_rl.evaluation.baselines import Agent, Baseline, CellSettings, NotRun, Spent, find_baseline
from echo_rl.evaluation.episodes import Cell, Episode, EpisodesFile, Recorded, lost
from echo_rl.evaluation.report import Report
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure
from echo_rl.training.evaluation import EVALUATION_TASKS

__all__ = ["BenchmarkConfig", "EchoRLBenchmark"]

_log = logging.getLogger("echo.rl")
_MOST = 100_000  # episodes of a cell: each seed has as many tasks of its own
_LOST = 3  # faults one after the other, after which a cell ends


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is compared.

    Attributes:
        tasks: names of environments.
        backbones: language models, such as ``"gpt-4o"`` or ``"local:FOLDER"``; each baseline that needs one is run with each.
        baselines: methods, such as ``"random"``, ``"oracle"``, ``"react"``, ``"tot"``, ``"ppo-rlhf"`` or ``"echo-rl"``.
        num_seeds: each seed has its own tasks, and a method that trains is trained anew with each. num_episodes: of each seed.
        echo_rl_configs: fields of ``TrainingConfig`` for the methods that train. If they are given, ``"echo-rl"`` is one of the methods.
        task_options: for each task's name, what ``make_environment`` takes further.
        max_steps: the most actions of an episode; None leaves it to the environment.
        max_tokens: the most tokens of one answer of a language model.
        timeout: the most seconds that the environment may take for a call.
        prices: a TOML file with the prices of tokens; without it ECHO_RL_PRICES names it.
        output_dir: where ``episodes.jsonl`` and the report are. A run with the same settings goes on there: what is recorded is not played again.
    """

    tasks: Sequence[str]
    backbones: Sequence[str] = ()
    baselines: Sequence[str] = ("random", "oracle")
    num_seeds: int = 3
    num_episodes: int = 20
    echo_rl_configs: Mapping[str, Any] | None = None
    task_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_steps: int | None = None
    max_tokens: int = 256
    timeout: float = 30.0
    prices: str | None = None
    output_dir: str = "benchmark_results"

    def __post_init__(self) -> None:
        rules: dict[str, Rule] = dict.fromkeys(("tasks", "backbones", "baselines"), _names)
        rules |= {"num_seeds": whole(1, 10_000), "num_episodes": whole(1, _MOST), "echo_rl_configs": optional(instance(dict)), "task_options": _options}
        rules |= {"max_steps": optional(whole(1)), "max_tokens": whole(1), "timeout": real(above=0), "prices": optional(instance(str))}
        check_fields(self, **rules, output_dir=instance(str))
        if not self.tasks or not self.baselines:
            raise ValueError("tasks and baselines must each have at least one name")


class EchoRLBenchmark:
    """Plays the episodes that are not recorded yet, and reports on all of them.

    ::

        report = await EchoRLBenchmark(BenchmarkConfig(["webshop"], baselines=["random", "oracle"])).run_benchmark()
        print(report.markdown())

    Args:
        config: what is compared.
        on_cell: called after each cell with (task, method, seed), the number of its recorded episodes, and why it or its rest was not run, or "".

    Raises:
        ConfigError: there is no such task, baseline or backbone, or a baseline needs a backbone and none is given. What is only not installed, or has no key,
            becomes cells that are not run.
    """

    def __init__(self, config: BenchmarkConfig, *, on_cell: Callable[[Cell, int, str], None] = lambda cell, episodes, reason: None) -> None:
        self.config, self._on_cell = config, on_cell
        for task in config.tasks:
            if not is_environment(task):
                raise ConfigError(
                    f"tasks: there is no environment {task!r}; there are {', '.join(environments())}, {FORMS}, and register_environment adds others"
                )
        for name in config.backbones:
            if not is_known(name):
                known = f"{', '.join(NAMES)}, ADAPTER:MODEL with {', '.join(sorted(adapters()))}"
                raise ConfigError(f"backbones: there is no {name!r}; there are {known}, and register_backbone adds others")
        if unknown := config.task_options.keys() - set(config.tasks):
            raise ConfigError(f"task_options: {', '.join(sorted(unknown))} is none of tasks, {', '.join(config.tasks)}")
        for alias, name in _ALIASES.items():
            if alias in config.tasks and name in config.tasks:
                raise ConfigError(f"tasks: {alias} is another name of {name}, and each task may be there once; leave one of them out")
        prices = None if config.prices is None else _prices(config.prices)
        self._options: dict[str, Any] = {} if prices is None else {"prices": prices}
        # A shop of ours must not be reported as WebShop, whichever name was asked for.
        self._tasks = {_ALIASES.get(task, task): dict(config.task_options.get(task, {})) for task in config.tasks}
        self._methods = self._all_methods()
        self._file = EpisodesFile(Path(config.output_dir) / "episodes.jsonl")
        self._opened: dict[str, Backbone | str] = {}
        self._logged = set[tuple[str, str, type]]()  # of which errors the log has a traceback
        self._stop = threading.Event()

    async def run_benchmark(self) -> Report:
        """Play, write the report, and return it. Cancelling this ends it after the episode that is being played, or after a training.

        Raises:
            ConfigError: the folder holds episodes of other settings, or a record that cannot be read.
        """
        work = asyncio.get_running_loop().run_in_executor(None, self.run)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait([work])
            raise

    def run(self) -> Report:
        """As ``run_benchmark``, in this thread."""
        self._stop.clear()
        recorded = self._file.read()
        self._file.plan(self._plan(recorded))
        there = recorded.cells()
        with ExitStack() as stack:
            stack.callback(self._close)
            for task in self._tasks:
                for method in self._methods:
                    for seed in range(self.config.num_seeds):
                        if not self._stop.is_set():
                            self._cell((task, method, seed), there.get((task, method, seed), []))
        report = Report(self._file.read())
        report.write(self.config.output_dir)
        return report

    def _all_methods(self) -> dict[str, tuple[Baseline, str]]:
        """Each method's baseline and backbone."""
        config, found = self.config, dict[str, tuple[Baseline, str]]()
        names = [*config.baselines, *([] if config.echo_rl_configs is None or "echo-rl" in config.baselines else ["echo-rl"])]
        for name in names:
            baseline = find_baseline(name)
            if baseline.needs_backbone and not config.backbones and not baseline.without:
                raise ConfigError(f"baselines: {name} needs a language model; name one in backbones")
            for model in (config.backbones if baseline.needs_backbone else ()) or [""]:
                found[f"{name}@{model}" if model else name] = (baseline, model)
        return found

    def _plan(self, recorded: Recorded) -> dict[str, Any]:
        """The plan of this run. Raises ConfigError if the folder has episodes of other settings, which must not be mixed with these."""
        config = self.config
        settings = {
            "task_options": self._tasks,
            "max_steps": config.max_steps,
            "max_tokens": config.max_tokens,
            "echo_rl_configs": config.echo_rl_configs or {},
        }
        try:
            settings = json.loads(json.dumps(settings))
        except TypeError as error:
            raise ConfigError(f"task_options and echo_rl_configs must be values that JSON can hold: {error}") from error
        before = recorded.plan.get("settings", {})
        for name, value in settings.items() if recorded.episodes else ():
            old = before.get(name, value)
            if name == "task_options":  # another task may join
                value, old = ({task: options for task, options in one.items() if task in other} for one, other in ((value, old), (old, value)))
            if old != value:
                raise ConfigError(f"{self._file.path} has episodes with {name}={old!r}, and this run has {value!r}; give another output_dir")
        settings["task_options"] = {**before.get("task_options", {}), **settings["task_options"]}
        labels = {**recorded.plan.get("labels", {}), **{method: baseline.label for method, (baseline, _) in self._methods.items()}}
        seeds = list(range(config.num_seeds))
        return {"tasks": [*self._tasks], "methods": [*self._methods], "seeds": seeds, "episodes": config.num_episodes, "settings": settings, "labels": labels}

    def _cell(self, cell: Cell, recorded: Sequence[Episode]) -> None:
        """Play what is missing of a cell."""
        count, (baseline, model) = self.config.num_episodes, self._methods[cell[1]]
        done = {episode.episode for episode in recorded if not episode.fault}
        missing = [number for number in range(count) if number not in done]
        reason, played = "", list[Episode]()
        if missing and recorded and baseline.trains:
            reason = "episodes of one training are not mixed with those of another; delete the cell's other episodes to have it played anew"
        elif missing:
            try:
                with ExitStack() as stack:
                    reason = self._play(stack, cell, baseline, model, missing, played)
            except (EchoError, _Unavailable) as error:
                reason = str(error)
            except Exception as error:  # an environment, an agent or a backbone has a fault; other cells do not depend on it
                self._log_once(cell, error)
                reason = f"{type(error).__name__}: {error}"
        if reason:
            _log.info("%s: not run: %s", cell, reason)
            self._file.not_run(cell, reason)
        self._on_cell(cell, len(done) + sum(not episode.fault for episode in played), reason or lost(played))

    def _log_once(self, cell: Cell, error: BaseException) -> None:
        """Log the traceback of an error that is not Echo's, once for each task and method: without it nobody could mend the program."""
        inner = error.__cause__ or error if isinstance(error, EnvironmentFailure) else error
        key = (*cell[:2], type(inner))
        if not isinstance(inner, EchoError | BackboneError) and key not in self._logged:
            self._logged.add(key)
            _log.error("task %s, method %s, seed %d: an error of the environment or of the method", *cell, exc_info=inner)

    def _play(self, stack: ExitStack, cell: Cell, baseline: Baseline, model: str, missing: Sequence[int], played: list[Episode]) -> str:
        """Play episodes, record them, and add those that are recorded to ``played``. Return why the rest is not run, or ""."""
        task, _, seed = cell
        config, options = self.config, baseline.options(task, self._tasks[task])
        language = self._backbone(model) if model else None
        if baseline.needs_backbone and language is None:
            raise NotRun(baseline.without)
        try:
            environment = make_environment(task, **options)
        except ConfigError as error:
            raise _Unavailable(str(error)) from error
        except Exception as error:
            self._log_once(cell, error)
            raise _Unavailable(f"environment {task} cannot be made: {type(error).__name__}: {error}") from error
        calls = TimedCalls(config.timeout)
        stack.callback(calls.close, [environment.close], [f"environment {task}: close()"])
        agent = baseline.make(environment, CellSettings(task, options, seed, language, config.max_steps, config.max_tokens, config.echo_rl_configs or {}))
        stack.callback(getattr(agent, "close", lambda: None))
        faults, kept = 0, list[Episode]()

        def record(*episodes: Episode) -> None:
            self._file.add(*episodes)
            played.extend(episodes)

        for number in missing:
            if self._stop.is_set():
                return ""  # a cell of a method that trains is recorded as a whole or not at all
            episode, ended = _episode(environment, agent, calls, cell, number, config.max_steps)
            late = isinstance(ended, TimeoutFailure)
            faults = faults + 1 if episode.fault else 0
            if ended is not None:
                self._log_once(cell, ended)
            if baseline.trains:
                kept.append(episode)
            else:
                record(episode)
            if late or faults == _LOST:
                record(*kept)
                return f"{'the environment hangs' if late else f'{faults} faults one after the other'}: {episode.fault}"
        record(*kept)
        return ""

    def _backbone(self, name: str) -> Backbone:
        """The language model of this name, opened once."""
        if name not in self._opened:
            try:
                self._opened[name] = backbone(name, **self._options)
            except (BackboneUnavailable, ImportError, OSError, ValueError) as error:
                self._opened[name] = str(error)
        found = self._opened[name]
        if isinstance(found, str):
            raise _Unavailable(found)
        return found

    def _close(self) -> None:
        for each in self._opened.values():
            if not isinstance(each, str):
                each.close()
        self._opened.clear()


class _Unavailable(Exception):
    """Something that a cell needs is not there."""


def _episode(
    environment: CheckedEnvironment, agent: Agent, calls: TimedCalls, cell: Cell, number: int, most: int | None
) -> tuple[Episode, Exception | None]:
    """Play one episode. Also return the error that has ended it, or None. Raise NotRun if the agent cannot act here."""
    task_seed, reward, steps, success, fault = EVALUATION_TASKS + cell[2] * _MOST + number, 0.0, 0, None, ""
    ended: Exception | None = None
    began = time.perf_counter()
    try:
        agent.begin(task_seed)
        observation = _called(calls, partial(environment.reset, task_seed), f"environment {cell[0]}: reset({task_seed})")
        while True:
            action = agent.act(observation)
            transition = _called(calls, partial(environment.step, action), f"environment {cell[0]}: step({action!r:.80})")
            observation, reward, steps = transition.observation, reward + transition.reward, steps + 1
            if "success" in transition.info:
                success = bool(transition.info["success"])
            if transition.terminated or transition.truncated or steps == most:
                break
    except NotRun:
        raise
    except (EnvironmentFailure, BackboneError) as error:
        fault, ended = str(error) or type(error).__name__, error
    except Exception as error:
        fault, ended = f"method {cell[1]} has raised {type(error).__name__}: {error}", error
    seconds, spent, trained = time.perf_counter() - began, getattr(agent, "spent", Spent()), getattr(agent, "trained_steps", None)
    task, method, seed = cell
    counted = Episode(
        task, method, seed, number, task_seed, reward, success, steps, spent.prompt, spent.made, spent.cached, seconds, spent.cost, trained, fault,
        spent.bandwidth,
    )
    return counted, ended


def _called(calls: TimedCalls, call: Callable[[], Any], what: str) -> Any:
    found = calls.each([call], [what])[0]
    if isinstance(found, Exception):
        raise found
    if isinstance(found, BaseException):  # such as SystemExit, which has ended nothing: the call was made in a thread of its own
        raise EnvironmentFailure(f"{what} has raised {type(found).__name__}: {found}") from found
    return found


def _names(value: Any) -> str | None:
    right = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) and name for name in value)
    return None if right and len(set(value)) == len(value) else "a list of names, each once"


def _options(value: Any) -> str | None:
    right = isinstance(value, dict) and all(isinstance(options, dict) for options in value.values())
    return None if right else 'a dictionary of options for each task, such as {"minigrid": {"grid_size": 6}}'


def _prices(path: str) -> Prices:
    try:
        return Prices.load(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"prices: {path}: {error}") from error
