"""What every replay pipeline does, and what is known of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["ReplayPipeline", "ReplayTickMetadata"]


@dataclass(frozen=True)
class ReplayTickMetadata:
    """How a batch was drawn.

    Attributes:
        tick_id: for which tick of the learner.
        snapshot_ptr, snapshot_size: how many rows had been added, and how many there were, when it was drawn.
        sample_seed, sample_count: the seed of the generator that drew it, and how many rows it has.
        batch_host_slot, batch_gpu_slot: where it was packed, and where it was copied to.
        redrawn: rows that were overwritten while they were packed and drawn again: if it is not 0, the draw is no longer that of the seed alone.
    """

    tick_id: int
    snapshot_ptr: int
    snapshot_size: int
    sample_seed: int
    sample_count: int
    batch_host_slot: int | None = None
    batch_gpu_slot: int | None = None
    redrawn: int = 0


@runtime_checkable
class ReplayPipeline(Protocol):
    """Prepares the batch of the next tick while the learner uses that of this one."""

    def start_prepare(self, tick_id: int, sample_count: int, min_snapshot_ptr: int | None = None) -> bool: ...
    def batch_ready(self, tick_id: int, sample_count: int) -> bool: ...
    def wait_ready(self) -> None: ...
    def wait_until_ready(self, tick_id: int, sample_count: int) -> bool: ...
    def sample_large_batch(self, tick_id: int, sample_count: int) -> dict[str, Any]: ...
    def after_tick(self) -> None: ...
    def close(self) -> None: ...
