"""gRPC for Echo. Only the announcement is here: grpcio is imported when the transport is selected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl

# What grpcio is told by the environment it reads when it is first imported, and by its own defaults
# - it writes a line for every TLS handshake that fails: strangers could fill the disk,
# - it starts its threads again in forked children, where they read from the parent's connections, and may crash. (No child can use gRPC even so: see `stream`.)
_imported_before = "grpc._cython.cygrpc" in sys.modules
#: Whether it writes those lines, because somebody else imported it before.
talkative = _imported_before and "GRPC_VERBOSITY" not in os.environ
#: Whether its threads follow into forked children, for that reason or because the environment wants it.
follows_forks = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "1" if _imported_before else "0").lower() not in ("0", "f", "false", "n", "no")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


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
