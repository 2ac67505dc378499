"""An actor for the tests, run as a program: `actor_program.py ADDRESS SECONDS`. Its rollouts tell from which ticket and which weights they come."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from echo_rl.rollouts.actor import run_actor
from echo_rl.rollouts.tickets import Ticket

ROLLOUTS = {"task": np.int64(0), "weight": np.zeros(3, np.float32)}


class Collector:
    def collect(self, ticket: Ticket, weights: Any) -> dict[str, Any]:
        time.sleep(float(sys.argv[2]) * (1 + ticket.number % 3))
        return {"task": np.int64(ticket.task), "weight": weights.params["weight"]}


if __name__ == "__main__":
    run_actor(sys.argv[1], ROLLOUTS, Collector(), timeout=60)
