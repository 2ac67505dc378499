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
        held: the version that the client holds whole, or will hold once it has read what was sent; 0 before there is one.
        digest: of that version; None if it is not known, because the client got it by an earlier connection.
        sent: the version that is being sent, or was sent and is not confirmed; 0 if no version is on its way.
    """

    def __init__(self) -> None:
        self.held = 0
        self.digest: int | None = None
        self.sent = 0
        self._begun = False
        self._passed: tuple[int, int] | None = None  # the lowest and the highest version that was passed
        self._receipts = 0  # that may still come for passed versions
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

    @property
    def written(self) -> int:
        """The version that was sent whole and is not confirmed; 0 if every version is confirmed or passed."""
        return self.sent if self._next is None else 0

    def passed(self, digest: int) -> None:
        """Do not wait for the receipt of the `written` version, which may come late or, if the client skips the version, never."""
        low, high = self._passed or (self.sent, self.sent)
        self._passed = min(low, self.sent), max(high, self.sent)
        self._receipts += 1
        self.held, self.digest, self.sent = self.sent, digest, 0

    def confirmed(self, version: int, digest: int, fits: Callable[[int, int], bool]) -> bool:
        """The client says that it holds `version`. ProtocolError unless that was sent whole, as `fits(sent, version)` decides.

        Returns:
            False if it is a version that was passed.
        """
        if self.written and fits(self.sent, version):
            self.held, self.digest, self.sent = version, digest, 0
            return True
        if not self._passed or not self._receipts or not self._passed[0] <= version <= self._passed[1]:
            raise ProtocolError(f"receipt for weights {version}, which were not sent")
        self._receipts -= 1
        return False

    def send_again(self) -> None:
        """What is on its way will not be confirmed: offer the newest version anew."""
        self.sent = 0
