"""gRPC for Echo. Only the announcement is here: grpcio is imported when the transport is selected."""

from __future__ import annotations

from collections.abc import Iterable

from echo_core.hookspecs import TransportInfo, hookimpl


@hookimpl
def echo_transports() -> Iterable[TransportInfo]:
    return [
        TransportInfo(
            name="grpc",
            factory="echo_grpc.transport:GrpcTransport",
            client="echo_grpc.transport:GrpcClient",
            api=1,
            summary="gRPC: HTTP/2 through load balancers and service meshes, token authentication",
        ),
        TransportInfo(
            name="grpcs",
            factory="echo_grpc.transport:GrpcsTransport",
            client="echo_grpc.transport:GrpcClient",
            api=1,
            summary="gRPC with TLS",
        ),
    ]
