"""The numeric functions that plans, scheduling and replay rest on.

They exist twice: compiled, and in numpy where nothing was compiled. The results are the same within rounding. The environment variable
`ECHO_RL_KERNELS=numpy` takes those in numpy in any case.
"""

from __future__ import annotations

import os

from echo_rl.kernels.bandwidth import (
    attention_bandwidth_cost,
    attention_bandwidth_cost_batch,
    bandwidth_aware_priorities,
    bandwidth_efficiency,
    effective_bandwidth_cost,
    schedule_priorities,
)
from echo_rl.kernels.plans import EMAPlanTracker, plan_surprise, plan_surprise_batch, temporal_kl, temporal_kl_batch
from echo_rl.kernels.sequences import prefix_match, priority_sample, state_hash

_compiled = False
if os.environ.get("ECHO_RL_KERNELS") != "numpy":
    try:
        from echo_rl.kernels._native import (  # type: ignore[assignment]
            EMAPlanTracker,
            attention_bandwidth_cost,
            attention_bandwidth_cost_batch,
            bandwidth_aware_priorities,
            bandwidth_efficiency,
            effective_bandwidth_cost,
            plan_surprise,
            plan_surprise_batch,
            prefix_match,
            priority_sample,
            schedule_priorities,
            state_hash,
            temporal_kl,
            temporal_kl_batch,
        )

        _compiled = True
    except ModuleNotFoundError:
        pass  # A checkout in which nothing was compiled.

__all__ = [
    "EMAPlanTracker",
    "attention_bandwidth_cost",
    "attention_bandwidth_cost_batch",
    "bandwidth_aware_priorities",
    "bandwidth_efficiency",
    "effective_bandwidth_cost",
    "kernels_available",
    "plan_surprise",
    "plan_surprise_batch",
    "prefix_match",
    "priority_sample",
    "schedule_priorities",
    "state_hash",
    "temporal_kl",
    "temporal_kl_batch",
]


def kernels_available() -> bool:
    """Whether the compiled kernels are in use."""
    return _compiled
