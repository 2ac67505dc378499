"""What the policies do to a load of requests in twelve families, in a simulated clock."""

import os

import pytest

from echo_rl.engine.simulation import families, simulate

SEEDS = 10 if os.environ.get("ECHO_SOAK_SECONDS") else 1
CAP = 3000
"""Tokens of keys and values: about five of the twelve shared prefixes."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_small_cache(seed: int) -> None:
    """The default wastes little of what lpm saves, and lets nobody wait as fcfs does."""
    load = families(300, 2.0, seed=seed)
    fcfs, lpm, value = (simulate(load, policy, slots=4, kv_tokens=CAP) for policy in ("fcfs", "lpm", "value"))
    assert value.makespan <= 1.6 * lpm.makespan
    assert value.p99 <= 0.6 * fcfs.p99
    assert max(value.latencies) <= max(fcfs.latencies)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_large_cache(seed: int) -> None:
    """The default shortens the mean and keeps the longest latencies within bounds."""
    load = families(300, 2.0, seed=seed)
    fcfs, value = (simulate(load, policy, slots=4) for policy in ("fcfs", "value"))
    assert value.mean <= 0.6 * fcfs.mean
    assert value.p99 <= 3 * fcfs.p99
