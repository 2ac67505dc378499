"""A server with a log, and its workers, as processes of their own: `python resumed.py serve MODE ADDRESS LOG THETA EPOCHS` or `work ADDRESS`.

With AS_WEIGHTS in its environment, the server sends no parameters within tasks.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from echo_es import ESServer, run_worker
from echo_es.experiments import parameters
from echo_es.strategies import OpenAIES

DIMS, POPULATION, SEED, CORES = 12, 20, 7, 3
SECONDS = 0.01  # that an evaluation takes


def strategy() -> OpenAIES:
    return OpenAIES(DIMS, POPULATION, sigma=0.1, lr=0.1)


def sphere(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    return -np.sum((thetas - 1.0) ** 2, axis=1)


def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    time.sleep(SECONDS)
    return sphere(thetas, epoch)


def serve(mode: str, address: str, log: str, result: Path, epochs: int) -> None:
    """Search until the end, and write the result."""
    if "AS_WEIGHTS" in os.environ:
        parameters.SMALL = 0
    if mode == "workers":  # they optimise
        server = ESServer(POPULATION, address, log=log, max_epochs=epochs)
    else:
        server = ESServer(transport=address, strategy=strategy(), seed=SEED, mode=mode, log=log, max_epochs=epochs)
    with server:
        server.wait()
        found = np.array(list(server.state().values())) if mode == "workers" else server.theta
    whole = result.with_suffix(".new.npy")
    np.save(whole, found)
    os.replace(whole, result)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]), int(sys.argv[6]))
    else:
        run_worker(sys.argv[2], evaluate, cores=CORES)
