"""Shared memory between the processes of one learner: the newest weights, rollouts and replay rows, with nothing torn.

    from echo_ipc import Cell, Ring, Rows

    weights = Cell({"w": ((256, 64), "float32")})     # in the learner; hand it to a process as an argument
    version = weights.write({"w": w})
    version = weights.read_into({"w": mine})          # in a collector

Importing this package imports neither torch nor compiled code; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives.
_HOME = {
    "AsyncRunner": "async_runner",
    "Bytes": "segments.cell",
    "Cell": "segments.cell",
    "CollectorDiedError": "async_runner",
    "ReplayBuffer": "replay_buffer",
    "Ring": "segments.ring",
    "RingFullError": "segments.ring",
    "RolloutRingBuffer": "rollout_ring_buffer",
    "Rows": "segments.rows",
    "SegmentGoneError": "segments.memory",
    "SharedObsNormStats": "shared_obs_stats",
    "SharedWeightSync": "weight_sync",
}

__all__ = sorted([*_HOME, "__version__"])

if TYPE_CHECKING:
    from .async_runner import AsyncRunner as AsyncRunner
    from .async_runner import CollectorDiedError as CollectorDiedError
    from .replay_buffer import ReplayBuffer as ReplayBuffer
    from .rollout_ring_buffer import RolloutRingBuffer as RolloutRingBuffer
    from .segments.cell import Bytes as Bytes
    from .segments.cell import Cell as Cell
    from .segments.memory import SegmentGoneError as SegmentGoneError
    from .segments.ring import Ring as Ring
    from .segments.ring import RingFullError as RingFullError
    from .segments.rows import Rows as Rows
    from .shared_obs_stats import SharedObsNormStats as SharedObsNormStats
    from .weight_sync import SharedWeightSync as SharedWeightSync


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
