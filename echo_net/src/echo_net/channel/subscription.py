"""The learner's end of weights: which version one client holds, and which is on its way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from echo_core.base.errors import ProtocolError
from echo_core.wire.protocol import Buffer

__all__ = ["Subscription", "WeightsOffer"]


class WeightsOffer(NamedTuple):
    """A version for a client, and the frames that carry it, at least one: each as the buffers to write one after another."""

    version: int
    frames: Iterator[list[Buffer]]


class Subscription:
    """The weights as one client has them. The gate's lock is held for every call.

    Attributes:
        held: the version that the client holds whole; 0 before it has one.
        digest: of that version; None if it is not known, because the client got it by an earlier connection.
        sent: the version that is being sent, or was sent and is not confirmed; 0 if no version is on its way.
    """

    def __init__(self) -> None:
        self.held = 0
        self.digest: int | None = None
        self.sent = 0
        self._begun = False
        self._frames: Iterator[list[Buffer]] = iter(())
        self._next: list[Buffer] | None = None  # kept one ahead, so that the last frame is known to be the last when it is handed out

    def begin(self, held: int) -> None:
        """The client wants weights from now on, and says which version it holds. Once it has begun, its receipts say that."""
        if not self._begun:
            self._begun, self.held, self.digest = True, held, None

    def holds(self, version: int, digest: int) -> bool:
        """Whether the client has just these weights."""
        return version == self.held and self.digest in (None, digest)

    def next_frame(self, offer: Callable[[int], WeightsOffer | None]) -> list[Buffer] | None:
        """The next frame to write, if there is one; `offer` is asked when no version is on its way."""
        if self._begun and not self.sent and (found := offer(self.held)) is not None:
            self.sent, self._frames = found
            self._next = next(self._frames)
        if self._next is None:
            return None
        frame, self._next = self._next, next(self._frames, None)
        return frame

    def confirmed(self, version: int, digest: int, fits: Callable[[int, int], bool]) -> None:
        """The client says that it holds `version`. ProtocolError unless that was sent whole, as `fits(sent, version)` decides."""
        if not self.sent or self._next is not None or not fits(self.sent, version):
            raise ProtocolError(f"receipt for weights {version}, which were not sent")
        self.held, self.digest, self.sent = version, digest, 0

    def send_again(self) -> None:
        """What is on its way will not be confirmed: offer the newest version anew."""
        self.sent = 0
