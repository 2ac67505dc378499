"""When an acknowledgement becomes due: a worker asks for one with some of its frames, and the learner owes one from then on.

An acknowledgement wakes threads at both ends, which over some channels takes as long as a megabyte of samples. So a worker asks for one
with each part of its window and with the last sample it has; of every other frame it says that more follow (the flag MORE). The learner
owes an acknowledgement once it has stored a frame that asks, and also as soon as its store is full: then the worker has a use for the
room that the samples stored so far have left.
"""

from __future__ import annotations

from echo_core.wire.protocol import MORE, Kind, frame

__all__ = ["AcknowledgementRequests", "AcknowledgementsOwed"]


class AcknowledgementRequests:
    """The worker's end: which frames of samples ask for an acknowledgement. The owner's lock is held for every call.

    Args:
        part: how many samples may be sent before one frame has to ask.
    """

    def __init__(self, part: int) -> None:
        self._part = part
        self._asked = 0  # the last sample of the last frame that asked

    def flags(self, last: int, taken: int) -> int:
        """The flags of a frame whose last sample has the number `last`, when `taken` samples were taken over."""
        if last < taken and last - self._asked < self._part:
            return MORE
        self._asked = last
        return 0

    def resume(self, number: int) -> None:
        """A new connection begins: the learner has just acknowledged sample `number`."""
        self._asked = number


class AcknowledgementsOwed:
    """The learner's end: whether a client has to be told how many of its samples are committed. The gate's lock is held for every call.

    Attributes:
        due: an acknowledgement has to be written.
        told: the newest number that was acknowledged, or is about to be.
    """

    def __init__(self) -> None:
        self.due = False
        self.told = 0

    def frame_is_stored(self, flags: int) -> None:
        """All of a frame that can be stored is stored; `flags` are the frame's."""
        self.due = self.due or not flags & MORE

    def store_is_full(self) -> None:
        """The rest of a frame waits for space."""
        self.due = True

    def frame(self, committed: int) -> bytes:
        """The acknowledgement of the first `committed` samples, to be written now."""
        self.due, self.told = False, committed
        return frame(Kind.ACK, seq=committed)
