"""ZeroMQ for Echo. Only the announcement is here: pyzmq is imported when the transport is selected."""

from __future__ import annotations

from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> Iterable[TransportInfo]:
    return [TransportInfo("zmq", "echo_zmq.transport:ZmqTransport", api=1, summary="ZeroMQ: a ROUTER socket for many DEALERs")]
