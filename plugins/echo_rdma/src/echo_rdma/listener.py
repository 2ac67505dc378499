"""The learner's end: a listener of `echo_net.channel`. The engine takes its clients' samples in, beside the stream."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ProtocolError
from echo_core.wire.protocol import Header
from echo_net.channel.link import Link
from echo_net.channel.listener import ChannelListener
from echo_net.channel.served import ServedClient
from echo_net.handshake import ServerHandshake

from . import _ucx
from .channel import RdmaAcceptor, RdmaChannel
from .lanes import receiver_reads

if TYPE_CHECKING:
    from echo_core.wire.sink import Sink

    from .options import RdmaListenOptions

__all__ = ["RdmaListener"]

PAUSE = 0.005  # seconds between checks whether all samples that have arrived are in the store
FAREWELL_SECONDS = 1.0  # how long these checks go on when the learner closes


class RdmaServed(ServedClient):
    """One client. The intake takes the samples of a worker."""

    listener: RdmaListener
    intake: _ucx.Intake | None = None  # takes its samples
    _settled = {"inserted": 0, "duplicates": 0, "bytes": 0, "messages": 0, "direct": 0, "shown": 0}  # replaced, never changed
    _before = 0  # samples of the session from earlier connections

    def __init__(self, listener: RdmaListener, channel: RdmaChannel) -> None:
        super().__init__(listener, channel)
        channel.refusal = lambda text: ServerHandshake(listener.sink.spec, (), listener.sink.incarnation).refuse("rdma", text)

    def read_frames(self, link: Link) -> None:
        if self.peer.role != "worker":
            super().read_frames(link)
            return
        channel, options = self.channel, self.listener.options
        assert isinstance(channel, RdmaChannel)
        session = self.session
        direct = receiver_reads(channel.lanes)
        self._before = session.inserted
        self.intake = intake = _ucx.Intake(channel.wire, self.sink.labelled or self.sink.native, session.committed, options.credit_bytes, direct)
        try:
            super().read_frames(link)
        finally:
            intake.stop()
            figures = intake.figures()
            with session.lock:  # before the session is released and its next connection asks for the resume point
                session.committed = figures["committed"]
                session.inserted = self._before + figures["inserted"]
            self.settle()

    def on_samples(self, link: Link, header: Header) -> None:
        raise ProtocolError("samples do not travel on the stream of rdma://; install the same echo-rdma at both ends")

    def settle(self) -> None:
        """Count the samples that have come since the last call."""
        if self.intake is None:
            return
        with self.listener.settling:
            figures = self.intake.figures()
            more = {name: figures[name] - last for name, last in self._settled.items()}
            self._settled = {name: figures[name] for name in more}
        for name, some in more.items():
            self.listener.count(COUNTED.get(name, name), some)

    def refresh(self) -> None:
        intake, link = self.intake, self.link
        if intake is not None and link is not None:
            figures = intake.figures()
            waiting = figures["waiting_since"]
            self.waiting_since = waiting / 1e9 if waiting else 0.0
            self.peer.samples = self._before + figures["inserted"]
            self.sampled_at = figures["heard_at"] / 1e9
            link.heard_at = max(link.heard_at, self.sampled_at)  # not the time of this look: a stopped worker would seem alive
        super().refresh()
        if intake is not None:
            self.peer.bytes += figures["bytes"]

    def stop(self, until: float) -> None:
        intake = self.intake
        # Samples that wait for space wait in vain, because a program that closes the learner takes no more batches.
        end = min(until, time.monotonic() + FAREWELL_SECONDS)
        while intake is not None and not intake.idle and not intake.figures()["waiting_since"] and time.monotonic() < end:
            time.sleep(PAUSE)
        if intake is not None:
            intake.stop()  # before the goodbye, because the worker reads nothing after that
        super().stop(until)


COUNTED = {"inserted": "samples", "bytes": "bytes_received"}  # counters that have other names here than in the intake


class RdmaListener(ChannelListener):
    """See `echo_core.wire.transport.Listener`; made by `RdmaTransport.listen`."""

    served = RdmaServed
    counters = (*ChannelListener.counters, "messages", "direct", "shown")
    options: RdmaListenOptions
    acceptor: RdmaAcceptor

    def __init__(self, acceptor: RdmaAcceptor, sink: Sink, options: RdmaListenOptions) -> None:
        self.settling = threading.Lock()
        super().__init__(acceptor, sink, options)

    def stats(self) -> dict[str, float | int]:
        """The counters of every listener, and also: messages (that carried the samples); direct (samples received straight into their slots); shown
        (samples copied there from memory of a worker on this machine); restarts (of UCX, because its queue in shared memory stood still); and
        for each UCX transport the number of clients that it carries: "lane_tcp", "lane_rc_mlx5", ..."""
        served: list[Any] = self.serving()  # RdmaServed, over RdmaChannel
        for client in served:
            client.settle()
        counts = super().stats()
        counts["restarts"] = self.acceptor.restarts
        for client in served:
            for name in {lane.partition("/")[0] for lane in client.channel.lanes}:
                counts[f"lane_{name}"] = counts.get(f"lane_{name}", 0) + 1
        return counts
