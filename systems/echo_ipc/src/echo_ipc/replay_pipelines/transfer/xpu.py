"""The backend for Intel's devices."""

from .cuda import StreamReplayTransferBackend

__all__ = ["XpuReplayTransferBackend"]


class XpuReplayTransferBackend(StreamReplayTransferBackend):
    """Copies on a side stream, from memory that is not pinned."""
