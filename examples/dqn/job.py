"""The learner's side of the job: this is how a program uses a replay table of Echo.

    with Server(tables=[Table("replay", step, items=NStep(5), capacity=..., sampler="prioritized", rate_limiter=...)], ...) as server:
        while True:
            sample = server.sample()
            errors = agent.learn(sample)
            server.update_priorities(sample.keys, abs(errors))
            server.publish(agent.weights)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo_core import EchoError, EchoTimeoutError, NStep, SamplesPerInsert, Server, Table

from ..cartpole.figures import exported
from ..cartpole.fleet import Fleet, FleetError
from . import worker
from .agent import Agent, Settings
from .options import SAMPLERS, Options
from .steps import ACTIONS, OBSERVATIONS, evaluate, example

PUBLISH = 8  # updates between two versions of the weights
EVALUATE = 1000  # transitions between two evaluations
EPISODES = 20  # episodes of one evaluation
EXPLORE = (1.0, 0.02, 0.25)  # epsilon at first, at last, and the share of all steps in which it falls
BETA = (0.4, 1.0)  # exponent of the importance weights at first and at the end

Told = Callable[["Run"], None]


@dataclass
class Run:
    """The results of a run; each list has one entry per evaluation."""

    sampler: str
    seed: int
    steps: list[int] = field(default_factory=list)  # transitions inserted so far
    returns: list[float] = field(default_factory=list)  # mean return of the evaluation
    effective: list[float] = field(default_factory=list)  # mean effective sample size of the batches since the previous evaluation
    updates: int = 0
    seconds: float = 0.0


def run(options: Options) -> int:
    """Do one run, print its results, and return the exit code."""
    print(f"DQN on CartPole-v1: {options.workers} workers, {options.sampler} replay of {options.capacity:,} transitions", flush=True)
    try:
        done = learn(options, _tell)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (EchoError, FleetError, ImportError, OSError) as error:
        print(f"dqn: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    best = max(done.returns, default=0.0)
    print(f"{done.updates:,} updates in {done.seconds:.1f} s; best evaluation: mean return {best:.1f} of {EPISODES} episodes")
    return 0 if options.target <= 0 or best >= options.target else 1


def _tell(run: Run) -> None:
    at, mean, worth = run.steps[-1], run.returns[-1], run.effective[-1]
    print(f"{at:>7,} transitions  return {mean:6.1f}  effective batch {worth:5.1f}  {run.seconds:5.1f} s", flush=True)


def table(options: Options) -> Table:
    """The replay table. Workers insert steps, of which it makes transitions over `span` steps.

    Its rate limiter gives every sampler the same number of samples per transition, even on a busy machine.
    """
    limiter = SamplesPerInsert(options.samples_per_insert, options.min_size, error_buffer=64 * options.samples_per_insert * options.workers)
    return Table(
        "replay",
        example(),
        items=NStep(options.span, gamma=options.discount),
        capacity=options.capacity,
        sampler=SAMPLERS[options.sampler],
        rate_limiter=limiter,
        seed=options.seed,
    )


def learn(options: Options, told: Told = lambda run: None) -> Run:
    """Do one run with its own server and workers; `told` is called after each evaluation.

    Raises:
        EchoError, FleetError, ImportError, OSError: it cannot run.
    """
    with Server(tables=[table(options)], batch_size=options.batch, transport=options.transport) as server:
        agent = Agent(OBSERVATIONS, ACTIONS, Settings(), seed=options.seed)
        server.publish(_weights(agent, EXPLORE[0]))
        with exported(server, options.metrics_port), Fleet(str(server.address), options, worker.main) as fleet:
            try:
                return _learn(server, fleet, agent, options, told)
            finally:
                server.close(timeout=0.5)  # ends the job, so workers end; the fleet waits for them


def _learn(server: Server, fleet: Fleet, agent: Agent, options: Options, told: Told) -> Run:
    done, began = Run(options.sampler, options.seed), time.monotonic()
    replay = server.table("replay")
    effective: list[float] = []
    inserted = evaluated = 0
    while inserted < options.steps:
        try:
            sample = server.sample(timeout=1.0)
        except EchoTimeoutError:
            for event in fleet.check():
                print(event, file=sys.stderr)
            continue
        assert sample is not None  # the server is open
        inserted = sample.info.inserted
        progress = min(1.0, inserted / options.steps)
        replay.beta = BETA[0] + (BETA[1] - BETA[0]) * progress
        errors = agent.learn(sample, progress)
        server.update_priorities(sample.keys, np.abs(errors))
        effective.append(sample.info.effective_sample_size)
        done.updates += 1
        if done.updates % PUBLISH == 0:
            first, last, share = EXPLORE
            server.publish(_weights(agent, max(last, first + (last - first) * progress / share)))
        if inserted >= evaluated + EVALUATE:
            evaluated = inserted - inserted % EVALUATE
            done.steps.append(inserted)
            done.returns.append(evaluate(agent.online.layers, EPISODES, seed=1_000_000 + evaluated))
            done.effective.append(float(np.mean(effective)))
            done.seconds = time.monotonic() - began
            effective.clear()
            told(done)
            if 0 < options.target <= done.returns[-1]:
                break
    done.seconds = time.monotonic() - began
    return done


def _weights(agent: Agent, epsilon: float) -> dict[str, Any]:
    """The data that workers need to act."""
    return {"layers": agent.online.layers, "epsilon": np.float32(epsilon)}
