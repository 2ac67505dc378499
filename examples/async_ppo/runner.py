"""Weights go to collectors through `SharedWeightSync`, and rollouts come back through `RolloutRingBuffer`."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from echo_ipc import AsyncRunner, RolloutRingBuffer, SharedWeightSync

from ..cartpole.algorithm import Learner, Settings
from ..cartpole.network import ActorCritic
from ..cartpole.rollout import ACTIONS, OBSERVATIONS, Rollouts


def collect(stop_event: Any, weights: SharedWeightSync, rollouts: RolloutRingBuffer, seed: int, collector_index: int = 0) -> None:
    """Play with the newest weights until the stop event is set. A rollout has all environments of this process."""
    envs = Rollouts(rollouts.num_envs, rollouts.num_steps, seed * 1000 + collector_index)
    network = ActorCritic(OBSERVATIONS, ACTIONS)
    while not stop_event.is_set():
        version = weights.read_weights_into({"flat": network.flat})
        played = envs.collect(network.actor, version)
        slot = rollouts.write_buffer  # nobody else reads or writes there until signal_write_done()
        slot["obs"][:], slot["last_obs"][:] = played["obs"][:, :-1], played["obs"][:, -1]
        slot["actions"][:] = played["action"][:, :, None]
        slot["log_probs"][:], slot["rewards"][:], slot["dones"][:] = played["log_prob"], played["reward"], played["terminated"]
        slot["valid"][:], slot["episode_return"][:], slot["version"][...] = played["valid"], played["episode_return"], version
        rollouts.signal_write_done()
    envs.close()


class Runner(AsyncRunner):
    """Learns until the mean return of the last 100 episodes is above `target`.

    `rl_cfg` has "steps" (of a rollout), "rollouts" (in a batch), "target" and "seed".
    """

    mean_return = 0.0

    def _get_default_device(self) -> str:
        return "cpu"

    def _build_learner(self) -> Learner:
        return Learner(ActorCritic(OBSERVATIONS, ACTIONS, seed=self.rl_cfg["seed"]), Settings(), seed=self.rl_cfg["seed"])

    def learn(self, max_iterations: int, save_interval: int = 50, log_dir: str = "logs") -> None:
        learner, steps = self._build_learner(), self.rl_cfg["steps"]
        network = learner.network
        weights = SharedWeightSync.from_state_dict({"flat": network.flat})
        shape = (self.num_envs, steps)
        more = {"valid": (shape, "bool"), "episode_return": (shape, "float32"), "version": ((), "int64")}
        rollouts = RolloutRingBuffer(self.num_envs, steps, OBSERVATIONS, 1, num_slots=2, policy="block", producers=self.num_collectors, fields=more)
        self._shared_resources += [weights, rollouts]
        self._start_collector(collect, {"stop_event": self._stop_event, "weights": weights, "rollouts": rollouts, "seed": self.rl_cfg["seed"]})
        returns: deque[float] = deque(maxlen=100)

        def step(iteration: int) -> dict[str, float]:
            if len(returns) == returns.maxlen and self.mean_return >= self.rl_cfg["target"]:
                raise StopIteration
            parts = []
            for _ in range(self.rl_cfg["rollouts"]):
                if not rollouts.wait_for_data(timeout=60):
                    raise TimeoutError("no collector has sent a rollout for 60 s")
                parts.append({name: array.copy() for name, array in rollouts.read_numpy_views().items()})
                rollouts.advance_read()
            losses = learner.learn(_batch(parts))
            weights.write_weights({"flat": network.flat})
            ended = np.concatenate([part["episode_return"].ravel() for part in parts])
            returns.extend(ended[~np.isnan(ended)].tolist())
            self.mean_return = float(np.mean(returns)) if returns else 0.0
            lag = weights.version - 1 - float(np.mean([part["version"] for part in parts]))
            return {"return": self.mean_return, "lag": lag, "entropy": losses.entropy}

        def save(folder: Path, iteration: int) -> None:
            np.save(folder / f"network-{iteration}.npy", network.flat)

        self._iterate(max_iterations, save_interval, log_dir, step, save)


def _batch(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Rollouts as `Learner.learn` takes them."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "version"}
    return {
        "obs": np.concatenate([joined["obs"], joined["last_obs"][:, None]], axis=1),
        "action": joined["actions"][:, :, 0],
        "log_prob": joined["log_probs"],
        "reward": joined["rewards"],
        "terminated": joined["dones"],
        "valid": joined["valid"],
    }
