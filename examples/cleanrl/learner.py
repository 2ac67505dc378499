"""CleanRL's one-file DQN on CartPole-v1 (Huang et al. 2022; Mnih et al. 2015), split into a learner and a worker.

    python examples/cleanrl/learner.py --port 50051                      # this file: the replay table and the gradient steps
    python examples/cleanrl/worker.py tcp://127.0.0.1:50051 --seed 1     # the other file: any number of workers, which act

A rate limiter replaces the single loop "act once, learn every fourth step". Each transition is drawn `samples_per_insert` times on
average, for any number and speed of workers; the side that is ahead waits. It needs only numpy, with gradients written by hand.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, fields
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # matrices this small are slower on several threads

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from echo_core import SampleToInsertRatio, Server  # noqa: E402

Arrays = dict[str, NDArray[Any]]


@dataclass
class Args:
    port: int = 0
    seed: int = 1
    updates: int = 6_000
    batch_size: int = 128
    buffer_size: int = 10_000
    learning_starts: int = 500
    samples_per_insert: float = 32.0
    learning_rate: float = 1e-3
    gamma: float = 0.99
    target_network_frequency: int = 200  # updates
    publish_frequency: int = 10  # updates


def transition() -> Arrays:
    """The example of a transition that worker.py sends."""
    obs = np.zeros(4, np.float32)
    zero = {"action": np.int64(0), "reward": np.float32(0), "terminated": np.bool_(False)}
    return {"obs": obs, "next_obs": obs, **{key: np.asarray(value) for key, value in zero.items()}}


# ---- ALGO LOGIC: the network, 4 -> 120 -> 84 -> 2, and its gradient -------------------------------------------------------------------


def make_network(rng: np.random.Generator) -> Arrays:
    params: Arrays = {}
    for i, (inputs, outputs) in enumerate(((4, 120), (120, 84), (84, 2))):
        bound = 1 / np.sqrt(inputs)
        params[f"w{i}"] = rng.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        params[f"b{i}"] = np.zeros(outputs, np.float32)
    return params


def forward(params: Arrays, obs: NDArray[Any]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """The values of shape (n, 2), and the input of each layer."""
    hidden = [obs]
    for i in range(2):
        hidden.append(np.maximum(hidden[-1] @ params[f"w{i}"] + params[f"b{i}"], 0))
    return hidden[-1] @ params["w2"] + params["b2"], hidden


def loss_and_gradient(params: Arrays, obs: NDArray[Any], actions: NDArray[Any], targets: NDArray[Any]) -> tuple[float, Arrays]:
    """The mean squared error of the values of the taken actions, and its gradient."""
    values, hidden = forward(params, obs)
    rows = np.arange(len(obs))
    error = values[rows, actions] - targets
    upstream = np.zeros_like(values)
    upstream[rows, actions] = 2 * error / len(obs)
    gradient: Arrays = {}
    for i in (2, 1, 0):
        gradient[f"w{i}"], gradient[f"b{i}"] = hidden[i].T @ upstream, upstream.sum(axis=0)
        upstream = (upstream @ params[f"w{i}"].T) * (hidden[i] > 0)
    return float(np.square(error).mean()), gradient


class Adam:
    def __init__(self, params: Arrays, rate: float) -> None:
        self.rate, self.step_count = rate, 0
        self.mean = {key: np.zeros_like(value) for key, value in params.items()}
        self.square = {key: np.zeros_like(value) for key, value in params.items()}

    def step(self, params: Arrays, gradient: Arrays) -> None:
        self.step_count += 1
        rate = self.rate * np.sqrt(1 - 0.999**self.step_count) / (1 - 0.9**self.step_count)
        for key, g in gradient.items():
            self.mean[key] += 0.1 * (g - self.mean[key])
            self.square[key] += 0.001 * (g * g - self.square[key])
            params[key] -= (rate * self.mean[key] / (np.sqrt(self.square[key]) + 1e-8)).astype(np.float32)


def evaluate(params: Arrays, seed: int, episodes: int = 10) -> float:
    """The mean return of the greedy policy."""
    env, total = gym.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(forward(params, obs[None])[0].argmax()))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


# ---- the learner's half of the loop ---------------------------------------------------------------------------------------------------


def main() -> None:
    args = parse()
    rng = np.random.default_rng(args.seed)
    q_network = make_network(rng)
    target_network = {key: value.copy() for key, value in q_network.items()}
    optimizer = Adam(q_network, args.learning_rate)
    limiter = SampleToInsertRatio(args.samples_per_insert, args.learning_starts, error_buffer=4 * args.samples_per_insert * args.batch_size)
    with Server(
        transition(),
        args.batch_size,
        f"tcp://127.0.0.1:{args.port}",
        sampler="uniform",
        capacity=args.buffer_size,
        rate_limiter=limiter,
        seed=args.seed,
    ) as server:
        server.publish(q_network)
        print(f"workers: python examples/cleanrl/worker.py {server.address}", flush=True)
        started, drawn = time.time(), 0.0
        for update in range(1, args.updates + 1):
            sample = server.sample(timeout=600)  # waits for the first `learning_starts` transitions
            assert sample is not None
            data: Arrays = sample.batch
            drawn = sample.info.sampled / sample.info.inserted
            target_max = forward(target_network, data["next_obs"])[0].max(axis=1)
            td_target = data["reward"] + args.gamma * target_max * ~data["terminated"]
            loss, gradient = loss_and_gradient(q_network, data["obs"], data["action"], td_target)
            optimizer.step(q_network, gradient)
            if update % args.target_network_frequency == 0:
                target_network = {key: value.copy() for key, value in q_network.items()}
            if update % args.publish_frequency == 0:
                server.publish(q_network)
            if update % 1000 == 0:
                inserted, rate = sample.info.samples_inserted_total, update / (time.time() - started)
                print(f"update {update}: {inserted} transitions, loss {loss:.3f}, {rate:.0f} updates/s", flush=True)
        print(f"each transition was drawn {drawn:.1f} times", flush=True)
    print(f"greedy return {evaluate(q_network, args.seed):.0f}")


def parse() -> Args:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
