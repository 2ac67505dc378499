"""Decides when a sample counts as acknowledged in shared memory, where no acknowledgement is sent.

* A sample that was put into the learner's store counts at once: it is committed when the call returns.
* A sample in a lane counts as soon as the learner has copied it. The learner reports this by a number in the lane (lane.hpp).
* A sample that had to wait in the window counts when the pump has put it into the store or the lane (uplink.py). Over the socket, it counts when
  the learner says so, as on every channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_net.channel.link import Gate

    from ._direct import Direct

__all__ = ["LANE_SECONDS", "DirectSamples", "Progress"]

LANE_SECONDS = 0.02  # slice of a wait for the lane, between checks whether the connection has ended


class DirectSamples:
    """The samples of a session that do not go through its window."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct

    def taken(self) -> int:
        """How many of these samples were taken over."""
        return int(self._direct.taken + self._direct.made)  # no difference of two numbers, which could be read between their changes

    def under_way(self) -> int:
        """How many of them lie in the lane and are not copied yet."""
        return int(self._direct.under_way())


class Progress:
    """The object on which `wait_until` sleeps until samples are acknowledged. For a lane, the learner reports by a number and not by a frame."""

    def __init__(self, direct: Direct, gate: Gate) -> None:
        self._direct = direct
        self._gate = gate

    def wait(self, timeout: float | None) -> None:
        """Sleep until the learner has copied samples or sent a frame. `gate.lock` is held before and after."""
        if not self._direct.under_way():
            self._gate.changed.wait(timeout)
            return
        self._gate.lock.release()
        try:
            self._direct.wait_copied(LANE_SECONDS if timeout is None else min(timeout, LANE_SECONDS))
        finally:
            self._gate.lock.acquire()
