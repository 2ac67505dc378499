"""`python -m examples.es_cartpole`: exit code 0 if the target was reached, 1 if it was not."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Several processes compute small matrices; more threads of each would only be in the way. numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np

from echo_es import ESServer, run_worker
from echo_es.log import read_log
from echo_es.plot import plot_learning
from echo_es.strategies import OpenAIES

from .policy import DIMS, evaluate, play, start

CORES = 5  # candidates in one task
EPISODES, EVERY = 20, 5  # the centre plays so many episodes, after every so many epochs
STALL = 120.0  # seconds without an epoch after which something is wrong


class Fleet:
    """Worker processes at one address."""

    def __init__(self, address: str, number: int) -> None:
        self._address = address
        self.processes: list[subprocess.Popen[bytes]] = []
        for _ in range(number):
            self.add()

    def add(self) -> None:
        self.processes.append(subprocess.Popen([sys.executable, "-m", "examples.es_cartpole", "--work", self._address]))

    def kill_one(self) -> None:
        process = self.processes.pop(0)
        process.kill()  # as if its machine had lost power
        process.wait()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def learn(options: argparse.Namespace) -> bool:
    """Search until the centre reaches the target, or the epochs are over. Prints figures, and draws what happened."""
    strategy = OpenAIES(DIMS, options.population, sigma=0.5, lr=0.3)
    events: dict[int, str] = {}
    centre: dict[int, float] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "search"  # it has the rewards of every epoch for the picture
        given: dict[str, Any] = {"theta": start(options.seed), "seed": options.seed, "max_epochs": options.epochs, "grace": 0.5, "log": log}
        with ESServer(transport=options.transport, strategy=strategy, **given) as server:
            fleet = Fleet(str(server.address), options.workers)
            try:
                follow(server, fleet, options, events, centre)
            finally:
                fleet.close()
            figures = server.stats()
        history = [rewards for _, rewards in read_log(log).epochs]
    seconds = time.monotonic() - begun
    best = max(centre.values(), default=0.0)
    print(f"{len(history)} epochs and {figures['es/evaluations_total']:.0f} episodes in {seconds:.1f} s; best mean return of the centre: {best:.1f}")
    complete = sum(len(rewards) == options.population and bool(np.isfinite(rewards).all()) for rewards in history)
    print(f"{figures['es/reassigned_total']:.0f} episodes of the killed worker were given to others; {complete} of {len(history)} epochs are complete")
    if options.plot:
        plot_learning(history, options.plot, centre=centre, events=events, title=f"OpenAI-ES on CartPole-v1 with {options.workers} workers")
        print(f"picture: {options.plot}")
    return bool(best >= options.target)


def follow(server: ESServer, fleet: Fleet, options: argparse.Namespace, events: dict[int, str], centre: dict[int, float]) -> None:
    """Kill a worker, let another one join, and try the centre, until it has learned enough or the search is over."""
    seen, since = 0, time.monotonic()
    while not server.wait(0.01):
        epoch, rewards = server.rewards or (0, np.empty(0))
        if epoch == seen:
            if time.monotonic() - since > STALL:
                raise SystemExit(f"no epoch for {STALL:.0f} s: {server.stats()}")
            continue
        if epoch >= options.kill_at and not events:
            fleet.kill_one()
            events[epoch] = "a worker is killed"
        elif epoch >= options.join_at and len(fleet.processes) < options.workers:
            fleet.add()
            events[epoch] = "a worker joins"
        if epoch // EVERY > seen // EVERY:
            centre[epoch] = greedy(server.theta, options.seed)
            print(
                f"epoch {epoch:3}: {rewards.mean():5.1f} mean, {rewards.max():5.1f} best, {centre[epoch]:5.1f} at the centre; "
                f"{server.stats()['es/workers']} workers",
                flush=True,
            )
            if centre[epoch] >= options.target and len(events) == 2:
                return
        seen, since = epoch, time.monotonic()


def greedy(theta: np.ndarray[Any, Any], seed: int) -> float:
    """The mean return of the centre, in episodes that no candidate has played."""
    env = gymnasium.make("CartPole-v1")
    try:
        return float(np.mean([play(env, theta, seed=1_000_000 + 1000 * seed + episode) for episode in range(EPISODES)]))
    finally:
        env.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.es_cartpole", description="OpenAI's evolution strategy learns CartPole-v1.")
    parser.add_argument("--workers", type=int, default=4, help="how many processes play (default: %(default)s)")
    parser.add_argument("--population", type=int, default=40, help="candidates of an epoch (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=200, help="at most (default: %(default)s)")
    parser.add_argument("--target", type=float, default=475.0, help=f"mean return of {EPISODES} episodes of the centre (default: %(default)s)")
    parser.add_argument("--kill-at", type=int, default=12, help="the epoch after which one worker is killed (default: %(default)s)")
    parser.add_argument("--join-at", type=int, default=16, help="the epoch after which another one joins (default: %(default)s)")
    parser.add_argument("--transport", default="tcp://127.0.0.1:0", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path("out/es_cartpole.png"), help="default: %(default)s")
    parser.add_argument("--work", metavar="ADDRESS", help="be a worker of the search at this address")
    options = parser.parse_args()
    if options.work:
        run_worker(options.work, evaluate, cores=CORES)
        return 0
    return 0 if learn(options) else 1


if __name__ == "__main__":
    sys.exit(main())
