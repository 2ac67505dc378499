"""The strategies of echo-es beside `cmaes` and `cma` (pycma): ``python -m benchmarks.es.strategies``.

    pip install cmaes cma matplotlib         # next to echo-es

| mode | figure |
|---|---|
| `time` | one generation, asked and told, without the function's own time: milliseconds |
| `convergence` | generations until a candidate is below 1e-8. On Rastrigin's function it is the best value after 500 generations |
| `table` | one `tell` of OpenAI-ES with 500 pairs and 100,000 parameters, with a table of noise and with noise drawn again: milliseconds |
| `curves` | OpenAI-ES, PGPE and SepCMAES on the same functions: the value of the centre over candidates, five seeds |

All systems run in one process and in turn, generation for generation or seed for seed, with one thread of BLAS. A figure is the median. Convergence has
20 seeds; start, sigma and population are the same for all. `--out` writes JSON, and `--plot` draws the curves.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from echo_es.strategies import CMAES, PGPE, OpenAIES, SepCMAES, Strategy

MODES = ("time", "convergence", "table", "curves")
DIMS, POPULATION = 20, 12
TARGET = 1e-8


def sphere(x: np.ndarray) -> np.ndarray:
    return (x**2).sum(axis=-1)


def ellipsoid(x: np.ndarray) -> np.ndarray:
    return (10.0 ** np.linspace(0, 6, x.shape[-1]) * x**2).sum(axis=-1)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(axis=-1)


def rastrigin(x: np.ndarray) -> np.ndarray:
    return (x**2 - 10 * np.cos(2 * np.pi * x) + 10).sum(axis=-1)


@dataclass(frozen=True)
class Problem:
    function: Callable[[np.ndarray], np.ndarray]
    start: float
    sigma: float
    limit: int  # generations; a run that needs more counts as this many


PROBLEMS = {
    "sphere": Problem(sphere, 1.0, 0.5, 2000),
    "ellipsoid": Problem(ellipsoid, 1.0, 0.5, 4000),
    "Rosenbrock": Problem(rosenbrock, 0.0, 0.5, 30_000),
    "Rastrigin": Problem(rastrigin, 3.0, 2.0, 500),
}


class Ours:
    """A strategy of echo-es behind `ask()` and `tell(values)`, which all systems of this benchmark have."""

    def __init__(self, strategy: Strategy, start: np.ndarray, seed: int) -> None:
        self.strategy, self.state = strategy, strategy.init(start, seed)

    def ask(self) -> np.ndarray:
        return self.strategy.ask(self.state, range(self.strategy.population))

    def tell(self, values: np.ndarray) -> None:
        self.state = self.strategy.tell(self.state, -values)


class Cmaes:
    def __init__(self, kind: str, start: np.ndarray, sigma: float, population: int, seed: int) -> None:
        import cmaes

        self.strategy: Any = getattr(cmaes, kind)(mean=start.copy(), sigma=sigma, population_size=population, seed=seed)
        self.asked: list[np.ndarray] = []

    def ask(self) -> np.ndarray:
        self.asked = [self.strategy.ask() for _ in range(self.strategy.population_size)]
        return np.array(self.asked)

    def tell(self, values: np.ndarray) -> None:
        self.strategy.tell(list(zip(self.asked, values.tolist())))


class Pycma:
    def __init__(self, start: np.ndarray, sigma: float, population: int, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may miss matplotlib
            import cma
        self.strategy: Any = cma.CMAEvolutionStrategy(start, sigma, {"popsize": population, "seed": seed + 1, "verbose": -9})
        self.asked: list[np.ndarray] = []

    def ask(self) -> np.ndarray:
        self.asked = self.strategy.ask()
        return np.array(self.asked)

    def tell(self, values: np.ndarray) -> None:
        self.strategy.tell(self.asked, values.tolist())


def make(system: str, dims: int, population: int, start: float, sigma: float, seed: int) -> Any:
    begin = np.full(dims, start)
    if system == "SepCMAES":
        return Ours(SepCMAES(dims, population, sigma), begin, seed)
    if system == "CMAES":
        return Ours(CMAES(dims, population, sigma), begin, seed)
    if system == "pycma":
        return Pycma(begin, sigma, population, seed)
    return Cmaes(system.removeprefix("cmaes."), begin, sigma, population, seed)


def measure_time(quick: bool) -> dict[str, Any]:
    cases = {
        "sep, 100 parameters, 100 candidates": (("SepCMAES", "cmaes.SepCMA"), 100, 100, 1000),
        "sep, 10,000 parameters, 128 candidates": (("SepCMAES", "cmaes.SepCMA"), 10_000, 128, 40),
        "full, 20 parameters, 12 candidates": (("CMAES", "cmaes.CMA", "pycma"), 20, 12, 500),
        "full, 100 parameters, 100 candidates": (("CMAES", "cmaes.CMA", "pycma"), 100, 100, 40),
    }
    found: dict[str, Any] = {}
    for name, (systems, dims, population, generations) in cases.items():
        running = {system: make(system, dims, population, 1.0, 0.5, 1) for system in systems}
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(max(3, generations // 10) if quick else generations):
            for system, search in running.items():
                begun = time.perf_counter()
                candidates = search.ask()
                asked = time.perf_counter()
                values = sphere(candidates)
                telling = time.perf_counter()
                search.tell(values)
                seconds[system].append(time.perf_counter() - telling + asked - begun)
        found[name] = {system: statistics.median(each) * 1e3 for system, each in seconds.items()}
    return found


def converge(system: str, problem: Problem, seed: int, to_target: bool) -> float:
    """Generations until the target, or the best value when the generations are used up."""
    search = make(system, DIMS, POPULATION, problem.start, problem.sigma, seed)
    best = np.inf
    for generation in range(1, problem.limit + 1):
        values = problem.function(search.ask())
        best = min(best, float(values.min()))
        if to_target and best < TARGET:
            return generation
        search.tell(values)
    return problem.limit if to_target else best


def measure_convergence(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for systems in (("SepCMAES", "cmaes.SepCMA"), ("CMAES", "cmaes.CMA", "pycma")):
        for name, problem in PROBLEMS.items():
            if quick and name == "Rosenbrock":
                continue
            runs: dict[str, list[float]] = {system: [] for system in systems}
            for seed in range(2 if quick else 20):
                for system in systems:
                    runs[system].append(converge(system, problem, seed, to_target=name != "Rastrigin"))
            found[f"{name}, {systems[0]}"] = runs
            print(f"{name}: " + ", ".join(f"{system} {statistics.median(each):.4g}" for system, each in runs.items()), flush=True)
    return found


def measure_table(quick: bool) -> dict[str, Any]:
    dims, pairs = (10_000, 50) if quick else (100_000, 500)
    told = np.random.default_rng(1).standard_normal(2 * pairs)
    seconds: dict[str, list[float]] = {"table": [], "seeds": []}
    strategies = {noise: OpenAIES(dims, 2 * pairs, noise=noise) for noise in seconds}
    states = {noise: strategy.init(np.zeros(dims, np.float32), 1) for noise, strategy in strategies.items()}
    for strategy in strategies.values():
        strategy.noise_digest()  # so that the table is made before
    for _ in range(5):
        for noise, strategy in strategies.items():
            begun = time.perf_counter()
            strategy.tell(states[noise], told)
            seconds[noise].append(time.perf_counter() - begun)
    return {noise: statistics.median(each) * 1e3 for noise, each in seconds.items()}


def measure_curves(quick: bool) -> dict[str, Any]:
    """Value of the centre after each generation, by function, strategy and seed. Populations differ, so the x axis counts candidates."""
    budget = 4_000 if quick else 60_000
    found: dict[str, Any] = {}
    for name, problem in PROBLEMS.items():
        strategies = {
            "OpenAIES": OpenAIES(DIMS, 40, sigma=problem.sigma / 5, lr=0.02, table_size=1_000_000),
            "PGPE": PGPE(DIMS, 40, sigma=problem.sigma, lr=0.02),
            "SepCMAES": SepCMAES(DIMS, POPULATION, sigma=problem.sigma),
        }
        found[name] = {}
        for label, strategy in strategies.items():
            runs = []
            for seed in range(2 if quick else 5):
                search = Ours(strategy, np.full(DIMS, problem.start), seed)
                values = []
                for generation in range(budget // strategy.population):
                    if generation % max(1, 240 // strategy.population) == 0:
                        values.append(float(problem.function(strategy.theta(search.state))))
                    search.tell(problem.function(search.ask()))
                runs.append(values)
            found[name][label] = {"candidates_apart": 240 // strategy.population * strategy.population, "runs": runs}
    return found


def plot(curves: dict[str, Any], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"OpenAIES": "#0b6bcb", "PGPE": "#e8890c", "SepCMAES": "#5c9e6f"}
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(1, len(curves), figsize=(14, 3.9))
        for axis, (name, strategies) in zip(axes, curves.items()):
            for label, curve in strategies.items():
                runs = np.maximum(np.array(curve["runs"]), 1e-12)
                at = np.arange(runs.shape[1]) * curve["candidates_apart"] / 1000
                axis.fill_between(at, runs.min(axis=0), runs.max(axis=0), color=colours[label], alpha=0.18, linewidth=0)
                axis.plot(at, np.median(runs, axis=0), color=colours[label], linewidth=1.8, label=label)
            axis.set_yscale("log")
            axis.set_title(f"{name}, {DIMS} parameters")
            axis.set_xlabel("thousand candidates")
            axis.grid(color="#d8dee4", linewidth=0.6)
        axes[0].set_ylabel("value at the centre (0 is best)")
        axes[0].legend(frameon=False)
        figure.tight_layout()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=110)
        plt.close(figure)


def show(found: dict[str, Any]) -> None:
    for name, systems in found.get("time", {}).items():
        ours = next(iter(systems.values()))
        print(f"{name}: " + ", ".join(f"{system} {figure:.3g} ms ({figure / ours:.1f}x)" for system, figure in systems.items()))
    for name, runs in found.get("convergence", {}).items():
        middle = {system: statistics.median(each) for system, each in runs.items()}
        ours = next(iter(middle.values()))
        print(f"{name}: " + ", ".join(f"{system} {figure:.4g} ({ours / figure:.2f})" for system, figure in middle.items()))
    if "table" in found:
        table, seeds = found["table"]["table"], found["table"]["seeds"]
        print(f"tell of OpenAIES: table {table:.3g} ms, drawn again {seeds:.3g} ms ({seeds / table:.1f}x)")
    for name, strategies in found.get("curves", {}).items():
        print(f"{name}, value of the centre at the end: " + ", ".join(f"{s} {np.median([run[-1] for run in c['runs']]):.2g}" for s, c in strategies.items()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.es.strategies", description="The strategies of echo-es beside cmaes and pycma.")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it works")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG")
    options = parser.parse_args(arguments)
    measure = {"time": measure_time, "convergence": measure_convergence, "table": measure_table, "curves": measure_curves}
    found = {mode: measure[mode](options.quick) for mode in options.modes}
    show(found)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found))
    if options.plot and "curves" in found:
        plot(found["curves"], options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
