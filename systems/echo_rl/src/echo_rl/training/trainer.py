"""The whole loop: actors make rollouts with the newest policy, the learner trains on them, and neither waits longer than the bound on staleness asks for."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from echo_core import Address, ConfigError, EchoError, Server
from echo_core.base.plural import counted
from echo_rl.device import resolve
from echo_rl.environments import make_environment
from echo_rl.rollouts.actor_process import ActorJob, make_collector
from echo_rl.rollouts.ticket_table import TicketTable
from echo_rl.rollouts.tickets import Tickets
from echo_rl.training.checkpoint import read_checkpoint, write_checkpoint
from echo_rl.training.config import TrainingConfig
from echo_rl.training.contextual import contextual
from echo_rl.training.evaluation import EVALUATION_TASKS
from echo_rl.training.fleet import Fleet
from echo_rl.training.live_figures import LiveFigures
from echo_rl.training.metrics import TrainingMetrics
from echo_rl.training.players import Player
from echo_rl.training.rollout_loop import RolloutLoop
from echo_rl.training.segment_training import SegmentTraining
from echo_rl.training.token_training import TokenTraining

__all__ = ["EchoRLTrainer", "TrainingConfig", "TrainingMetrics"]

_log = logging.getLogger("echo.rl")
_LOOK = 0.1  # seconds between two looks whether a run that was asked to write a checkpoint has ended
_LOST = 3  # batches one after the other without a rollout that did not fail, after which training ends
# The fields that a checkpoint and the run that goes on from it must have in common.
_SAME = ("env_name", "env_options", "algorithm", "backbone", "model", "batch_size", "group_size", "eta", "num_actors", "train_frequency", "max_steps")


class EchoRLTrainer:
    """Trains a policy.

    ::

        trainer = EchoRLTrainer(TrainingConfig("digits", 20_000, algorithm="grpo"))
        metrics = await trainer.train()

    Args:
        config: what to train, and how.
        on_update: called in the training thread with the figures of each update.
        on_evaluation: called there with the results of each evaluation; it may call ``stop``.

    Attributes:
        metrics: the figures so far.
        address: where actors connect, while ``train`` runs; None before.

    Raises:
        ConfigError: there is no such environment, or the algorithm cannot train in it; the device is not there and ``strict_device`` is set.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        on_update: Callable[[dict[str, Any]], None] = lambda figures: None,
        on_evaluation: Callable[[dict[str, float]], None] = lambda results: None,
    ) -> None:
        config = contextual(config)
        self.config, self._on_update, self._on_evaluation = config, on_update, on_evaluation
        self.seed = random.SystemRandom().randrange(2**31) if config.seed is None else config.seed
        if config.strict_device and config.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={config.device!r}: CUDA is not available, and strict_device is set")
        device = resolve(("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device)
        for module in config.imports:
            __import__(module)
        environment = make_environment(config.env_name, **config.env_options)
        space = getattr(environment.environment, "observation_space", None)
        kind = TokenTraining if space is None or type(space).__name__ == "Text" else SegmentTraining
        self._training: SegmentTraining | TokenTraining = kind(config, self.seed, device, environment)
        self._tickets = Tickets(self._training.batch, config.eta, ordered=config.deterministic)
        self.metrics = TrainingMetrics()
        self.address: Address | None = None
        self._failed = False
        self._stop, self._running = threading.Event(), threading.Lock()
        self._saves: queue.SimpleQueue[tuple[str | os.PathLike[str], Future[None]]] = queue.SimpleQueue()
        self._loop_state: dict[str, Any] | None = None
        self._loop: RolloutLoop | None = None
        self._fleet: Fleet | None = None
        self._asked = self._hit = 0
        self._next = {"evaluation": config.evaluation_frequency, "save": config.save_frequency}

    @property
    def pids(self) -> list[int]:
        """The actor processes that run now."""
        return [] if self._fleet is None else self._fleet.pids

    def player(self) -> Player:
        """Plays episodes with the likeliest actions of the present policy; later training does not change it. Call it while no ``train`` is under way."""
        return self._training.player()

    async def train(self) -> TrainingMetrics:
        """Train until ``total_timesteps``, or until ``stop``. Cancelling this ends the training, and its actors, first.

        Raises:
            EchoTimeoutError: there was no batch, or not all of an update, within ``patience`` seconds; the message says who is waited for.
            EchoError: too many actors have died, another learner has died, or every rollout of three batches has failed; the message has the last fault.
        """
        work = asyncio.get_running_loop().run_in_executor(None, self.run)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([work])
            raise

    def stop(self) -> None:
        """Let ``train`` end after the present update. Thread-safe."""
        self._stop.set()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of one moment: weights, optimiser, tickets, rollouts that wait, random states, counters. While ``train`` runs, this waits for
        the end of an update."""
        done: Future[None] = Future()
        self._saves.put((path, done))
        while not done.done():
            # No run is under way, or the one that was asked has ended without a further look.
            if self._running.acquire(blocking=False):
                try:
                    self._write_asked()
                finally:
                    self._running.release()
            else:
                wait([done], timeout=_LOOK)
        done.result()

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint with the next ``train``.

        Raises ConfigError if the file is not a checkpoint, or if it was made with another value of a field that decides what the weights and tickets mean.
        """
        state = read_checkpoint(path)
        mine = json.loads(json.dumps(self.config.to_json()))
        for name in _SAME:
            if state["config"].get(name) != mine[name]:
                raise ConfigError(f"{os.fspath(path)}: the checkpoint was made with {name}={state['config'].get(name)!r}, and this run has {mine[name]!r}")
        if state["seed"] != self.seed and self.config.seed is not None:
            raise ConfigError(f"{os.fspath(path)}: the checkpoint was made with seed={state['seed']}, and this run has {self.seed}")
        try:
            self._training.restore(state["training"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise ConfigError(f"{os.fspath(path)}: does not fit: {error}") from error
        self.seed, self._loop_state = state["seed"], state["loop"]
        self.metrics = TrainingMetrics(**state["metrics"], history=[])
        self.metrics.lags.update({int(age): count for age, count in (state["loop"] or {"ages": {}})["ages"].items()})
        self._asked, self._hit, self._next = state["asked"], state["hit"], state["next"]

    def run(self) -> TrainingMetrics:
        """As ``train``, in this thread."""
        if not self._running.acquire(blocking=False):
            raise EchoError("this trainer is training already")
        self._stop.clear()
        try:
            if self._failed:
                raise EchoError("the last run of this trainer has failed in the middle of an update; make another one, and restore a checkpoint")
            with self._threads(), ExitStack() as stack:
                self._train(stack)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._loop_state = self._loop.state() if self._loop is not None else self._loop_state
            self._loop = self._fleet = self.address = None
            self._running.release()
        return self.metrics

    # ---- the loop -----------------------------------------------------------------------------------------------------

    def _train(self, stack: ExitStack) -> None:
        config, training, tickets = self.config, self._training, self._tickets
        most = tickets.batch * (1 + config.eta)
        here = config.processes == 0
        tables = [RolloutLoop.results(training.leaves, most + 64), TicketTable(most, config.lease, at_once=training.at_once).table()]
        server = Server(tables=tables, batch_size=1, transport=None if here else config.transport)
        stack.callback(server.close)
        server.start()
        collector = make_collector(training.kind, asdict(training.rules), config.imports) if here else None
        if collector is not None:
            stack.callback(collector.close)
        stack.callback(training.close)
        training.learners.start()
        self._loop = loop = RolloutLoop(server, training.leaves, tickets, self._task, at_once=training.at_once, collector=collector)
        live = LiveFigures(config.output_dir, self.metrics)
        stack.callback(live.close)
        server.add_stats("rl", lambda: {**live.stats(), **training.learners.stats()})
        if self._loop_state is not None:
            loop.restore(self._loop_state)
        loop.publish(training.weights())
        if not here:
            self.address = server.address
            self._fleet = fleet = self._actors(str(server.address))
            # The server ends first, so that the actors end by themselves.
            stack.callback(fleet.close)
            stack.callback(server.close)
        began, lost = time.monotonic() - self.metrics.seconds, 0
        while self.metrics.steps < config.total_timesteps and not self._stop.is_set():
            groups = self._batch(loop, live)
            if groups is None:
                break
            packed = loop.packed(groups)
            figures = training.update(packed, tickets.version, self.metrics.steps >= config.learning_starts)
            loop.publish(training.weights())
            self._count(figures, loop, time.monotonic() - began)
            live.update(figures)
            self._on_update(figures)
            lost = 0 if figures["episodes"] or figures["steps"] else lost + 1
            if lost >= _LOST:
                raise EchoError(f"every rollout of {lost} batches has failed; the last fault: {figures.get('fault') or 'the log of the actors has it'}")
            self._between(live, began)
        self._evaluate(live, began)
        if config.output_dir is not None:
            self._write(Path(config.output_dir) / "checkpoint.npz")

    def _batch(self, loop: RolloutLoop, live: LiveFigures) -> list[Any] | None:
        """The groups of the next update; None if the run is to stop."""

        def look() -> None:
            live.waiting = loop.missing()
            self._training.learners.check()
            if self._fleet is not None:
                self._fleet.check()
            self._write_asked()
            if self._stop.is_set():
                raise _Stopped

        try:
            return loop.batch(self.config.patience, look)
        except _Stopped:
            return None
        finally:
            live.waiting = ""

    def _between(self, live: LiveFigures, began: float) -> None:
        """What is due after an update."""
        self._write_asked()
        if self.metrics.steps < self.config.total_timesteps and self._due("evaluation", self.config.evaluation_frequency):
            self._evaluate(live, began)
        if self._due("save", self.config.save_frequency) and self.config.output_dir is not None:
            self._write(Path(self.config.output_dir) / "checkpoint.npz")

    def _due(self, what: str, frequency: int) -> bool:
        if self.metrics.steps < self._next[what]:
            return False
        self._next[what] = (self.metrics.steps // frequency + 1) * frequency
        return True

    def _evaluate(self, live: LiveFigures, began: float) -> None:
        if self.metrics.evaluations and self.metrics.evaluations[-1]["steps"] == self.metrics.steps:
            return  # the last one was of this policy
        results = self._training.evaluate(self.config.evaluation_episodes)
        self.metrics.evaluation_results = results
        entry = {"steps": float(self.metrics.steps), "seconds": time.monotonic() - began, **results}
        self.metrics.evaluations.append(entry)
        live.evaluated(entry)
        self._on_evaluation(entry)

    def _count(self, figures: dict[str, Any], loop: RolloutLoop, seconds: float) -> None:
        metrics = self.metrics
        metrics.updates += 1
        for name in ("steps", "episodes", "tokens", "failed"):
            setattr(metrics, name, getattr(metrics, name) + figures[name])
        metrics.skipped_groups += figures.get("skipped_groups", 0)
        metrics.anew += figures.get("anew", 0)
        self._asked, self._hit = self._asked + figures.get("asked", 0), self._hit + figures.get("hit", 0)
        metrics.hit_rate = self._hit / self._asked if self._asked else 0.0
        metrics.seconds, metrics.waited = seconds, loop.waited / seconds
        metrics.throughput, metrics.tokens_per_second = metrics.steps / seconds, metrics.tokens / seconds
        metrics.lags, metrics.duplicates, metrics.handed_back = loop.ages, loop.tickets.duplicates, loop.tickets.handed_back
        metrics.restarted = 0 if self._fleet is None else self._fleet.restarted
        metrics.eta_bw = self._training.bandwidth.snapshot().eta_bw or 0.0
        figures |= {"update": metrics.updates, "total_steps": metrics.steps, "seconds": seconds, "version": loop.tickets.version}
        metrics.history.append(figures)

    def _task(self, number: int) -> int:
        return (self.seed * 1_000_003 + number) % EVALUATION_TASKS

    def _actors(self, address: str) -> Fleet:
        training = self._training
        job = ActorJob(address, training.kind, asdict(training.rules), self.config.imports, log_level=logging.getLevelName(_log.getEffectiveLevel()))
        command = [sys.executable, "-m", "echo_rl.rollouts.actor_process", job.to_json(), "{index}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return Fleet(command, self.config.processes, restarts=self.config.restarts, env=environment)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """The threads of torch: the actors and the other learners have the other cores. In a deterministic run sums have one order, and the sums of a
        small policy are too short for threads, which would wait for each other for longer than they compute."""
        before = torch.get_num_threads()
        free = (before - self.config.processes) // self.config.num_learners
        torch.set_num_threads(1 if self.config.deterministic or isinstance(self._training, SegmentTraining) else max(1, free))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        if self._loop is not None:
            self._loop.draw()
        skipped = ("history", "lags")
        return {
            "config": json.loads(json.dumps(self.config.to_json())),
            "seed": self.seed,
            "training": self._training.state(),
            "loop": self._loop_state if self._loop is None else self._loop.state(),
            "metrics": {name: value for name, value in vars(self.metrics).items() if name not in skipped},
            "asked": self._asked,
            "hit": self._hit,
            "next": self._next,
        }

    def _write(self, path: Path) -> None:
        write_checkpoint(path, self._state())
        _log.info("checkpoint %s: version %d, %s", path, self._tickets.version, counted(self.metrics.steps, "step"))

    def _write_asked(self) -> None:
        """Write the checkpoints that ``save`` has asked for. The caller holds ``_running``."""
        while not self._saves.empty():
            path, done = self._saves.get()
            try:
                write_checkpoint(path, self._state())
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)


class _Stopped(Exception):
    """The run is to stop."""
