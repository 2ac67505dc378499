"""The worker of learner.py: takes epsilon-greedy steps of CartPole-v1 with the newest Q-network, and sends each transition to the learner.

    python examples/cleanrl/worker.py tcp://127.0.0.1:50051 --seed 1

It ends when the learner ends. If the network is interrupted for a few seconds, or the learner is slow, it only waits.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # matrices this small are slower on several threads

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from echo_core import Client, JobEnded  # noqa: E402

EXAMPLE: dict[str, NDArray[Any]] = {
    "obs": np.zeros(4, np.float32),
    "next_obs": np.zeros(4, np.float32),
    "action": np.zeros((), np.int64),
    "reward": np.zeros((), np.float32),
    "terminated": np.zeros((), np.bool_),
}


def q_values(params: dict[str, NDArray[Any]], obs: NDArray[Any]) -> NDArray[Any]:
    hidden = np.maximum(obs @ params["w0"] + params["b0"], 0)
    hidden = np.maximum(hidden @ params["w1"] + params["b1"], 0)
    return np.asarray(hidden @ params["w2"] + params["b2"])


def main() -> None:
    parser = argparse.ArgumentParser(description="acts for learner.py")
    parser.add_argument("address")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exploration-steps", type=int, default=5_000, help="steps of this worker until epsilon has its final value")
    parser.add_argument("--end-e", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=30, help="seconds to try to reach the learner, also after it is lost")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    env = gym.make("CartPole-v1")
    with Client(args.address, EXAMPLE, name=f"worker-{args.seed}", timeout=args.timeout) as client:
        weights = client.weights()
        obs, _ = env.reset(seed=args.seed)
        step, episode_return = 0, 0.0
        while True:
            epsilon = max(args.end_e, 1 - (1 - args.end_e) * step / args.exploration_steps)
            greedy = rng.random() >= epsilon
            action = int(q_values(weights.params, obs).argmax()) if greedy else int(rng.integers(2))
            next_obs, reward, terminated, truncated, _ = env.step(action)
            made = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "terminated": terminated}
            client.send({key: np.asarray(value, EXAMPLE[key].dtype) for key, value in made.items()})
            obs, step, episode_return = next_obs, step + 1, episode_return + float(reward)
            if terminated or truncated:
                obs, _ = env.reset()
                if step % 1000 < episode_return:
                    print(f"step {step}: return {episode_return:.0f}, epsilon {epsilon:.2f}, policy {weights.version}", flush=True)
                episode_return = 0.0
            if step % 10 == 0:
                weights = client.weights()  # the newest version; it does not wait
                client.wait()  # wait until the learner has the transition, so that no worker plays far ahead


if __name__ == "__main__":
    try:
        main()
    except (JobEnded, KeyboardInterrupt) as error:
        print(f"done: {error}")
