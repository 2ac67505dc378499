"""When a sample counts as acknowledged in shared memory, where no acknowledgement travels.

* A sample that was put into the learner's store counts at once: it is committed when the call returns.
* A sample in a lane counts as soon as the learner has copied it, which the learner says by a number in the lane (lane.hpp).
* A sample that had to wait in the window counts when the pump has put it into the store or the lane (uplink.py); over the socket, when
  the learner says so, as on every channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_core.wire.channel.link import Gate

    from ._direct import Direct

__all__ = ["DirectSamples", "Progress"]

LANE_SECONDS = 0.02  # that a wait for the lane sleeps, between looks whether the connection is over


class DirectSamples:
    """The samples of a session that do not go by its window."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct

    def taken(self) -> int:
        """How many were taken over."""
        return int(self._direct.samples) - int(self._direct.pumped)

    def under_way(self) -> int:
        """How many of them lie in the lane and are not copied."""
        return int(self._direct.under_way())


class Progress:
    """What `wait_until` sleeps on until samples are acknowledged."""

    def __init__(self, direct: Direct, gate: Gate) -> None:
        self._direct = direct
        self._gate = gate

    def wait(self, timeout: float | None) -> None:
        """Sleep until the learner has copied something, or said something by a frame; `gate.lock` is held before and after."""
        if not self._direct.under_way():
            self._gate.changed.wait(timeout)
            return
        self._gate.lock.release()
        try:
            self._direct.wait_copied(LANE_SECONDS if timeout is None else min(timeout, LANE_SECONDS))
        finally:
            self._gate.lock.acquire()
