"""The worker's end of shared memory: the part of its calls that `Direct` cannot do at once."""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from echo_core.base.waiting import Wait, shown
from echo_net.channel.connection import ChannelConnection

from ._reserve import Reserved, idle, reserve
from .acknowledgement import LANE_SECONDS
from .uplink import PUMP_SECONDS, ShmUplink

if TYPE_CHECKING:
    from collections.abc import Callable

    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec
    from echo_net.channel import Channel

    from .options import ShmConnectOptions

__all__ = ["ShmConnection"]


class ShmConnection(ChannelConnection):
    """See `echo_core.wire.transport.Connection`. Connects when it is made.

    A sample is acknowledged as soon as `send` has put it into the learner's store, or the learner has copied it out of the lane.
    While the store is full or the learner is gone, this process keeps as many samples as the window holds.

    Raises:
        EchoTimeoutError: the learner could not be reached in time, with the last reason.
        SpecError, SecurityError, HandshakeRefused, ProtocolError: the learner refused; a SpecError names the leaf.
        EchoError: the learner's memory cannot be mapped; the message says why.
    """

    uplink_type = ShmUplink
    uplink: ShmUplink

    def __init__(self, dial: Callable[[Address, Any, float], Channel], address: Address, spec: Spec, options: ShmConnectOptions) -> None:
        wait = Wait(options.connect_seconds)
        super().__init__(dial, address, spec, options)
        up = self.uplink
        self._direct = up.direct
        called: tuple[Any, ...] = (self._send_kept, self._send_batch, self._rest, up.give_up)
        up.direct.connect(*(weakref.WeakMethod(method) for method in called))
        try:
            with up.gate.lock:
                up.wait(lambda: up.settled, wait.left(), lambda: f"worker {os.getpid()} waits for the store of {address}")
        except BaseException:
            self.close(0)
            raise
        # Bound once, because a method in between would cost a third of a small send.
        self.send = up.direct.send  # type: ignore[method-assign]
        self.send_batch = up.direct.send_batch  # type: ignore[method-assign]

    def send(self, sample: Any, timeout: float | None = None, label: bytes | None = None) -> None:
        self._direct.send(sample, timeout, label)

    def send_batch(self, samples: Any, timeout: float | None = None, labels: bytes | None = None) -> None:
        self._direct.send_batch(samples, timeout, labels)

    def _send_kept(self, sample: Any, timeout: float | None, label: bytes | None) -> None:
        self.check()
        self.check_role()
        if not self._direct.ready and self.uplink.catch_up():
            self._direct.send(sample, timeout, label)
        else:
            self.take(1, self.spec.flattener.tobytes(sample), timeout, label)

    def _send_batch(self, samples: Any, timeout: float | None, labels: bytes | None) -> None:
        self.check()  # comes first: in a forked child, every lock might wait for a thread that does not exist there
        if not self._direct.ready and self.uplink.catch_up():
            self._direct.send_batch(samples, timeout, labels)
        else:
            super().send_batch(samples, timeout, labels)

    def _rest(self, count: int, data: bytes, labels: bytes | None) -> None:
        """Take the rest of a batch that was begun, regardless of the window's bounds."""
        self.check()
        with self.uplink.gate.lock:
            self.uplink.add(count, data, labels)

    def wait(self, timeout: float | None = None) -> None:
        self.check()
        window = self.uplink.window
        if window.taken == window.acknowledged:  # every sample went into the store or the lane: nearly always
            self._direct.wait_copied(min(self.seconds(timeout), LANE_SECONDS))
            if not self._direct.under_way():
                return
        super().wait(timeout)

    def reserve(self, timeout: float | None = None, label: bytes | None = None) -> Reserved | None:
        """A slot in the learner's store, to be filled in place; see `Reserved`. None if the learner does not share its store with this worker.

        Raises:
            EchoTimeoutError: the store stayed full. ConnectionClosedError, ClosedError: the learner or this connection is gone.
            EchoError: all reservations are in use.
        """
        self.check()
        up, seconds, start = self.uplink, self.seconds(timeout), time.monotonic()
        up.watch_dropped()
        while (slot := reserve(self._direct)) is None:
            self.check()
            left = start + seconds - time.monotonic()
            with up.gate.lock:
                if up.settled and up.mode != "direct" and up.link is not None:
                    return None
                given_up = self._direct.ready and not idle(self._direct)
                if left <= 0:
                    what = "take back a slot that was given up" if given_up else "have room for a sample"
                    raise up.gave_up(f"reserve() waits for {up.learner()} to {what}; gave up after {shown(seconds)} s; {up.advice()}")
                if not self._direct.ready or given_up:  # earlier samples come first
                    up.gate.changed.wait(min(left, PUMP_SECONDS))
                    continue
            self._direct.wait_space(min(left, PUMP_SECONDS))
        return slot

    def stats(self) -> dict[str, Any]:
        """The counters of every connection, and also: direct_samples (put by send() itself), revoked, mode."""
        stats = super().stats()
        direct, up = self._direct, self.uplink
        samples = direct.samples + direct.made
        put = samples - direct.pumped
        stats["bytes_sent"] += samples * self.spec.sample_bytes
        stats["send_blocked"] += direct.blocked
        stats["direct_samples"], stats["revoked"] = max(0, put), direct.revoked
        stats["mode"] = up.mode if up.attached else "socket"
        return stats
