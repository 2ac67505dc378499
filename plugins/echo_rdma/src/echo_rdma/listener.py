"""The learner's end: a listener of `echo_core.wire.channel` whose clients' samples are taken in by the engine, beside the stream."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from echo_core.base.errors import ProtocolError
from echo_core.wire.channel.link import Link
from echo_core.wire.channel.listener import ChannelListener
from echo_core.wire.channel.served import ServedClient
from echo_core.wire.handshake import ServerHandshake
from echo_core.wire.protocol import Header

from . import _ucx
from .channel import RdmaAcceptor, RdmaChannel
from .lanes import receiver_reads

if TYPE_CHECKING:
    from echo_core.wire.sink import Sink

    from .options import RdmaListenOptions

__all__ = ["RdmaListener"]

PAUSE = 0.005  # seconds between looks whether what has arrived is in the store
FAREWELL_SECONDS = 1.0  # for that, when the learner closes


class RdmaServed(ServedClient):
    """One client; a worker's samples are the intake's."""

    listener: RdmaListener
    intake: _ucx.Intake | None = None  # of samples
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
        self.intake = intake = _ucx.Intake(channel.wire, self.sink.native, session.committed, options.credit_bytes, direct)
        try:
            super().read_frames(link)
        finally:
            intake.stop()
            figures = intake.figures()
            with session.lock:  # before the session is let go, and its next connection asks where to go on
                session.committed = figures["committed"]
                session.inserted = self._before + figures["inserted"]
            self.settle()

    def on_samples(self, link: Link, header: Header) -> None:
        raise ProtocolError("samples do not travel on the stream of rdma://; install the same echo-rdma at both ends")

    def settle(self) -> None:
        """Count what has come since the last time."""
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
            if figures["inserted"] != self.peer.samples - self._before:
                self.peer.samples = self._before + figures["inserted"]
                link.heard_at = time.monotonic()
        super().refresh()
        if intake is not None:
            self.peer.bytes += figures["bytes"]

    def stop(self, until: float) -> None:
        intake = self.intake
        # What waits for space waits in vain: whoever closes the learner takes no more batches.
        end = min(until, time.monotonic() + FAREWELL_SECONDS)
        while intake is not None and not intake.idle and not intake.figures()["waiting_since"] and time.monotonic() < end:
            time.sleep(PAUSE)
        if intake is not None:
            intake.stop()  # before the goodbye, behind which the worker hears nothing
        super().stop(until)


COUNTED = {"inserted": "samples", "bytes": "bytes_received"}  # under other names than the intake's


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
        """Beside what every listener counts: messages (that carried the samples), direct (samples received straight into their slots), shown (samples
        copied there from memory of a worker on this machine), restarts (of UCX, because its queue in shared memory stood still), and
        for each transport how many clients it carries: "lane_tcp", "lane_rc_mlx5", ..."""
        served: list[Any] = self.serving()  # RdmaServed, over RdmaChannel
        for client in served:
            client.settle()
        counts = super().stats()
        counts["restarts"] = self.acceptor.restarts
        for client in served:
            for name in {lane.partition("/")[0] for lane in client.channel.lanes}:
                counts[f"lane_{name}"] = counts.get(f"lane_{name}", 0) + 1
        return counts
