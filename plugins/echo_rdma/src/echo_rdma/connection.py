"""The worker's end: a session of `echo_net.channel` whose samples are sent by the engine, beside the stream.

Acknowledgements come to the engine too. While a caller waits for one, the engine passes it to the uplink's reader as an ACK frame that it puts
into the stream. This wakes callers that sleep there.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import SpecError
from echo_core.base.waiting import shown
from echo_core.wire.protocol import LABEL_BYTES
from echo_net.channel.connection import ChannelConnection
from echo_net.channel.link import Link
from echo_net.channel.uplink import Uplink

from . import _ucx, library
from .channel import RdmaChannel
from .lanes import is_rdma

if TYPE_CHECKING:
    from echo_core.base.address import Address
    from echo_core.spec.spec import Spec
    from echo_net.channel import Channel

    from .options import RdmaConnectOptions

__all__ = ["RdmaConnection"]

SEGMENT_BYTES = 32000  # of the 32 KiB, headers included, that library.py asks for
TCP_BYTES = 64000  # UCX splits messages of more than 64 KiB
RENDEZVOUS_BYTES = 16 << 20
SHARED = {"posix", "sysv"}
SLICE_SECONDS = 0.05  # slice of a native wait, between checks for Ctrl-C and for the end of the connection


def message_bytes(lanes: tuple[str, ...], sample_bytes: int) -> int:
    """The most bytes of one message: as many as these lanes take in one piece. Network cards take any sample, by rendezvous."""
    names = {lane.partition("/")[0] for lane in lanes}
    if any(map(is_rdma, lanes)):
        return max(RENDEZVOUS_BYTES, sample_bytes)
    return SEGMENT_BYTES if names & SHARED else TCP_BYTES


def is_near(lanes: tuple[str, ...]) -> bool:
    """Whether the learner is on this machine, which is so if the lanes use shared memory."""
    return bool({lane.partition("/")[0] for lane in lanes} & SHARED)


class RdmaUplink(Uplink):
    """See `echo_net.channel.uplink.Uplink`."""

    window: _ucx.Window

    lanes: tuple[str, ...] = ()

    def make_window(self) -> _ucx.Window:
        options = self.options
        most = min(options.max_inflight_msgs, options.window_bytes // max(1, self.spec.sample_bytes))
        return _ucx.Window(self.spec, max(1, most), options.max_coalesced_bytes)

    def dial(self, seconds: float) -> RdmaChannel:
        channel = super().dial(seconds)
        assert isinstance(channel, RdmaChannel)
        if self.options.role == "worker":
            self.window.attach(channel.wire)  # before the learner's first credit can come
        return channel

    def on_connected(self, link: Link) -> None:
        assert isinstance(link.channel, RdmaChannel)
        self.lanes = link.channel.lanes
        # Samples lie one after another, as they travel, so either all of a connection have room for labels or none has.
        if self.takes_labels and not self.window.expect_labels():
            raise SpecError("this learner's table takes priorities and policy versions, and the learner before took none; start this worker again")
        self.window.message_bytes = message_bytes(self.lanes, self.spec.sample_bytes + (LABEL_BYTES if self.takes_labels else 0))
        self.window.near = is_near(self.lanes)

    def on_lost(self, link: Link) -> None:
        self.window.detach()

    def connecting(self) -> str:
        settings = library.settings_shown()
        return super().connecting() + (f"; UCX is told {settings}" if settings else "")

    def wait_progress(self, ready: Callable[[], bool], seconds: float, waiting: Callable[[], str]) -> None:
        self.window.watch(1)
        try:
            super().wait_progress(ready, seconds, waiting)
        finally:
            self.window.watch(-1)


class RdmaConnection(ChannelConnection):
    """See `echo_core.wire.transport.Connection`. Connects when it is made; raises as `ChannelConnection`."""

    uplink_type = RdmaUplink
    uplink: RdmaUplink
    threads = 4  # one more, which drives UCX

    def __init__(self, dial: Callable[[Address, Any, float], Channel], address: Address, spec: Spec, options: RdmaConnectOptions) -> None:
        super().__init__(dial, address, spec, options)
        window = self.uplink.window
        window.connect(*map(weakref.WeakMethod, (self.send_waiting, self._send_batch_waiting)))
        # Bound once, because a method in between would cost a third of a small send.
        self.send = window.send  # type: ignore[method-assign]
        self.send_batch = window.send_batch  # type: ignore[method-assign]

    def _send_batch_waiting(self, samples: Any, timeout: float | None, labels: bytes | None) -> None:
        super().send_batch(samples, timeout, labels)

    def reserve(self, timeout: float | None = None, label: bytes | None = None) -> None:
        """Always None, because the native window has no memory to lend: it keeps samples as they are given to it."""

    def flush(self, timeout: float | None = None) -> None:
        self.check()
        up, seconds, start = self.uplink, self.seconds(timeout), time.monotonic()
        target = up.window.taken
        while not up.window.wait_sent(target, min(SLICE_SECONDS, seconds)):
            self.check()
            if time.monotonic() - start >= seconds:
                with up.gate.lock:
                    raise up.gave_up(f"flush() waits for {up.learner()} to read; gave up after {shown(seconds)} s; {up.advice()}")

    def stats(self) -> dict[str, Any]:
        """The counters of every connection, and also: messages (that carried the samples), lanes."""
        stats = super().stats()
        figures = self.uplink.window.figures()
        stats["bytes_sent"] += figures["bytes"]
        stats["send_blocked"] += figures["blocked"]
        stats["messages"] = figures["messages"]
        stats["lanes"] = ", ".join(self.uplink.lanes)
        return stats
