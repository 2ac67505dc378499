"""An actor for the tests, run as a program: `actor_program.py ADDRESS SECONDS`. Its rollouts tell from which ticket and which weights they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from echo_core import Ragged
from echo_rl.rollouts.actor import run_actor
from echo_rl.rollouts.tickets import Ticket

#: A record of varying length: the weights, as often as the number of the ticket says.
ROLLOUTS = {"task": np.int64(0), "weight": Ragged(np.float32, (3,), "row", 16)}


class Collector:
    at_once = 2

    def collect(self, tickets: Sequence[Ticket], policy: Any, newer: Any) -> list[dict[str, Any]]:
        return [self.record(ticket, policy) for ticket in tickets]

    def record(self, ticket: Ticket, policy: Any) -> dict[str, Any]:
        time.sleep(float(sys.argv[2]) * (1 + ticket.number % 3))
        return {"task": np.int64(ticket.task), "weight": np.tile(policy.params["weight"], (ticket.number % 8, 1))}


if __name__ == "__main__":
    run_actor(sys.argv[1], ROLLOUTS, Collector(), timeout=60)
