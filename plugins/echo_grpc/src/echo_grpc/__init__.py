"""gRPC for Echo. This module only announces the transports; grpcio is imported when one is selected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from echo_core.plugins.hookspecs import TransportInfo, hookimpl

# Settings that grpcio reads from the environment when it is first imported. By default
# - it writes a line for every TLS handshake that fails: unauthenticated clients could fill the disk,
# - it starts its threads again in forked children, where they read from the parent's connections, and may crash. (No child can use gRPC even so: see `stream`.)
_imported_before = "grpc._cython.cygrpc" in sys.modules
#: Whether it writes those lines, because other code imported it first.
talkative = _imported_before and "GRPC_VERBOSITY" not in os.environ
#: Whether it starts its threads in forked children, for that reason or because the environment asks for it.
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
