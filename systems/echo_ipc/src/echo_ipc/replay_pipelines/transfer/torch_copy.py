"""The backend for the CPU and every device that has no backend of its own."""

from .base import ReplayTransferBackend

__all__ = ["TorchCopyReplayTransferBackend"]


class TorchCopyReplayTransferBackend(ReplayTransferBackend):
    """Copies with `Tensor.copy_`."""
