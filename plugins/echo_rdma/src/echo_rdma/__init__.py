"""RDMA for Echo, on UCX. This module only announces the transport; UCX is loaded when it is selected."""

from __future__ import annotations

from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> Iterable[TransportInfo]:
    summary = "InfiniBand and RoCE through UCX; shared memory and TCP through the same interface"
    return [
        TransportInfo(name=name, factory=factory, client="echo_rdma.transport:RdmaClient", api=1, summary=summary)
        for name, factory in (("rdma", "echo_rdma.transport:RdmaTransport"), ("ucx", "echo_rdma.transport:UcxTransport"))
    ]
