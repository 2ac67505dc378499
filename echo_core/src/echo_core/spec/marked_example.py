"""The contract of an example whose samples travel with a mark, such as `Steps`: each step says to which episode it belongs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spec import Spec

__all__ = ["MarkedExample", "MarkedSender"]


class MarkedSender(ABC):
    """Marks the samples of one client, and sends them. Thread-safe.

    Attributes:
        step: the `Spec` of a sample without its mark.
    """

    step: Spec

    @abstractmethod
    def send(self, step: Any, timeout: float | None = None, *, end: str | None = None, stream: int = 0) -> None:
        """Send one sample; see `StepStreams.send`."""

    @abstractmethod
    def send_batch(self, steps: Any, timeout: float | None = None, *, ends: Any = None, stream: int | None = None, streams: Any = None) -> None:
        """Send N samples; see `StepStreams.send_batch`."""

    @abstractmethod
    def end_episode(self, end: str = "truncated", timeout: float | None = None, *, stream: int = 0) -> None:
        """Say that an episode has ended; see `StepStreams.end_episode`."""


class MarkedExample(ABC):
    """What a client gets instead of an example, if its samples travel with a mark.

    Attributes:
        step: the `Spec` of a sample as users give it.
        wire: the `Spec` of what travels, which is the mark and the sample.
    """

    step: Spec
    wire: Spec

    @abstractmethod
    def sender(self, send: Callable[..., Any], send_batch: Callable[..., Any], client_id: str) -> MarkedSender:
        """Return what sends the samples of one client; `send` and `send_batch` are those of its connection."""
