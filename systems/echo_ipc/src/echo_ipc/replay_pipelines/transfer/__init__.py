"""How a packed batch gets to the learner's device."""

from .base import ReplayTransferBackend
from .factory import build_replay_transfer_backend

__all__ = ["ReplayTransferBackend", "build_replay_transfer_backend"]
