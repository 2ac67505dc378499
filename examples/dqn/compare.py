"""Compares every sampler with several seeds and the same number of transitions and updates. It saves the results as JSON and as a plot."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace

from echo_core import EchoError

from ..cartpole.fleet import FleetError
from .job import Run, learn
from .options import SAMPLERS, Options


def run(options: Options) -> int:
    """Run all of them one after another, seed by seed, and return the exit code."""
    runs: list[Run] = []
    try:
        for seed in range(options.seed, options.seed + options.seeds):
            for sampler in SAMPLERS:
                done = learn(replace(options, sampler=sampler, seed=seed, target=0.0))
                runs.append(done)
                print(f"seed {seed}  {sampler:<12} {summary(done, options.target)}  ({done.seconds:.0f} s)", flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (EchoError, FleetError, OSError) as error:
        print(f"dqn: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "compare.json"
    file.write_text(json.dumps({"target": options.target, "runs": [asdict(run) for run in runs]}, indent=1) + "\n")
    print(f"figures: {file}")
    try:
        from .plot import save
    except ImportError:
        print("cannot plot: matplotlib is missing; run: pip install matplotlib")
        return 0
    save(runs, options.target, options.out / "compare.png")
    print(f"picture: {options.out / 'compare.png'}")
    return 0


def reached(run: Run, target: float) -> int | None:
    """The number of transitions after which an evaluation first reached `target`."""
    return next((steps for steps, mean in zip(run.steps, run.returns, strict=True) if mean >= target), None)


def summary(run: Run, target: float) -> str:
    """One line about a run."""
    first = reached(run, target)
    when = "never" if first is None else f"after {first:,} transitions"
    late = run.returns[len(run.returns) // 2 :]
    return f"return {target:g} {when}; mean of the second half {sum(late) / max(1, len(late)):.0f}"
