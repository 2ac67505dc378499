"""gRPC for Echo. Only the announcement is here: grpcio is imported when the transport is selected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from echo_core.hookspecs import TransportInfo, hookimpl

# grpcio reads it when it is first imported, and by its own default writes a line for every TLS handshake that fails: strangers could fill the disk.
#: Whether that is how it is, because somebody else imported it before.
talkative = "GRPC_VERBOSITY" not in os.environ and "grpc._cython.cygrpc" in sys.modules
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


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
