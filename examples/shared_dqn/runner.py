"""Weights go to collectors through `SharedWeightSync`, and transitions come back through `ReplayBuffer`."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from echo_ipc import AsyncRunner, ReplayBuffer, SharedWeightSync

from ..cartpole.network import forward
from ..cartpole.rollout import make_envs
from ..dqn.agent import Agent, QNetwork, Settings
from ..dqn.steps import ACTIONS, OBSERVATIONS, evaluate

DISCOUNT = 0.99
BATCH = 128
FIRST = 1000  # transitions before learning begins
EXPLORED = 8000  # transitions over which exploration falls from all steps to few
LEAST_EXPLORATION = 0.05


def collect(stop_event: Any, weights: SharedWeightSync, replay: ReplayBuffer, count: int, seed: int, lead: int, collector_index: int = 0) -> None:
    """Play `count` environments, epsilon-greedily with the newest weights, but not more than `lead` transitions ahead of the learner."""
    envs, rng = make_envs(count), np.random.default_rng([seed, collector_index])
    network = QNetwork(OBSERVATIONS, ACTIONS)
    updates = np.zeros((), np.int64)
    obs, _ = envs.reset(seed=seed * 1000 + collector_index)
    resetting = np.zeros(count, np.bool_)
    while not stop_event.is_set():
        weights.read_weights_into({"flat": network.flat, "updates": updates})
        added = replay.rows.committed
        if added > FIRST + updates + lead:  # one update per transition is enough
            weights.wait_for_version(weights.version + 1, timeout=0.05)
            continue
        explore = max(LEAST_EXPLORATION, 1 - added / EXPLORED)
        action = forward(network.layers, obs)[0].argmax(axis=1)
        action = np.where(rng.random(count) < explore, rng.integers(0, ACTIONS, count), action)
        following, reward, terminated, truncated, _ = envs.step(action)
        # An environment resets itself in the step after an end; that step is no experience.
        kept = ~resetting
        if kept.any():
            done = terminated | truncated
            replay.add(obs[kept], action[kept, None], reward[kept], following[kept], done[kept], truncated[kept])
        obs, resetting = following, terminated | truncated
    envs.close()


class Runner(AsyncRunner):
    """Learns until a greedy evaluation is above `target`. An iteration is 100 updates. `rl_cfg` has "target" and "seed"."""

    best = 0.0

    def _get_default_device(self) -> str:
        return "numpy"

    def _build_learner(self) -> Agent:
        return Agent(OBSERVATIONS, ACTIONS, Settings(), seed=self.rl_cfg["seed"])

    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        agent, seed, updates = self._build_learner(), self.rl_cfg["seed"], 0
        weights = SharedWeightSync.from_state_dict({"flat": agent.online.flat, "updates": np.zeros((), np.int64)})
        replay = ReplayBuffer(50_000, OBSERVATIONS, 1, self.device, seed=seed)
        self._shared_resources += [weights, replay]
        arguments = {"stop_event": self._stop_event, "weights": weights, "replay": replay, "count": self.num_envs, "seed": seed, "lead": 500}
        self._start_collector(collect, arguments)
        replay.rows.wait(FIRST)

        def step(iteration: int) -> dict[str, float]:
            nonlocal updates
            if self.best >= self.rl_cfg["target"]:
                raise StopIteration
            errors = []
            for _ in range(100):
                errors.append(np.abs(agent.learn(_sample(replay.sample(BATCH)), iteration / max_iterations)).mean())
                updates += 1
                if updates % 10 == 0:
                    weights.write_weights({"flat": agent.online.flat, "updates": np.int64(updates)})
            while replay.rows.committed < FIRST + updates - 500 and self._check_collector_alive():
                time.sleep(0.001)  # do not learn the same transitions again and again
            if iteration % 10 == 9:
                self.best = max(self.best, evaluate(agent.online.layers, 20, seed=1_000_000 + iteration))
            return {"best": self.best, "error": float(np.mean(errors)), "transitions": replay.rows.committed}

        def save(folder: Path, iteration: int) -> None:
            np.save(folder / f"network-{iteration}.npy", agent.online.flat)

        self._iterate(max_iterations, save_interval, log_dir, step, save)


def _sample(batch: dict[str, Any]) -> Any:
    """A batch as `Agent.learn` takes it. An episode that was cut off is bootstrapped from its last observation."""
    return SimpleNamespace(
        batch={"obs": batch["obs"], "action": batch["actions"][:, 0].astype(np.intp)},
        next={"obs": batch["next_obs"]},
        returns=batch["rewards"],
        discounts=np.full(len(batch["rewards"]), DISCOUNT, np.float32),
        terminated=(batch["dones"] > 0) & (batch["truncated"] == 0),
        weights=np.ones(len(batch["rewards"]), np.float32),
    )
