"""Batches for a learner on a device: a collector packs them into shared memory, and they are copied to the device while the learner computes."""

from .base import ReplayPipeline, ReplayTickMetadata
from .collector import SharedSlots
from .cpu_pinned_double_buffer import CPUPinnedDoubleBufferReplayPipeline

__all__ = ["CPUPinnedDoubleBufferReplayPipeline", "ReplayPipeline", "ReplayTickMetadata", "SharedSlots"]
