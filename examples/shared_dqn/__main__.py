"""`python -m examples.shared_dqn`: exit code 0 if the target was reached, 1 if it was not."""

from __future__ import annotations

import argparse
import os
import sys
import time

# Several processes compute small matrices; more threads of each would only be in the way. numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from .runner import Runner


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.shared_dqn", description="DQN learns CartPole-v1 from a replay buffer in shared memory.")
    parser.add_argument("--collectors", type=int, default=2, help="how many processes play (default: %(default)s)")
    parser.add_argument("--envs", type=int, default=8, help="environments of each (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=600, help="of 100 updates, at most (default: %(default)s)")
    parser.add_argument("--target", type=float, default=450.0, help="mean return of 20 greedy episodes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", default="out/shared_dqn", help="default: %(default)s")
    options = parser.parse_args()
    started = time.monotonic()
    config = {"target": options.target, "seed": options.seed}
    with Runner("CartPole-v1", {}, config, num_envs=options.envs, num_collectors=options.collectors, sim_backend="gymnasium") as runner:
        runner.learn(options.iterations, save_interval=100, log_dir=options.log_dir)
    print(f"best mean return of 20 greedy episodes: {runner.best:.1f} after {time.monotonic() - started:.1f} s")
    return 0 if runner.best >= options.target else 1


if __name__ == "__main__":
    sys.exit(main())
