"""One module per system, imported only in the processes that run it.

The order here is the order of columns and bars. A system that is not installed is skipped with a
note; the parent process never imports any of them.
"""

from __future__ import annotations

from benchmarks.adapters.base import System
from benchmarks.systems import Entry

__all__ = ["SYSTEMS", "Entry", "load", "version"]

SYSTEMS: dict[str, Entry] = {
    "echo": Entry("benchmarks.adapters.echo_core:EchoCore", ("echo-core", "echo-samplers", "echo-tcp")),
    "echo-shm": Entry("benchmarks.adapters.echo_core:EchoShm", ("echo-shm", "echo-core", "echo-samplers")),
    "echo-shm-private": Entry("benchmarks.adapters.echo_core:EchoShmPrivate", ("echo-shm", "echo-core", "echo-samplers")),
    "id-echo": Entry("benchmarks.adapters.id_echo:IdEcho", ("id-echo",)),
    "pyzmq": Entry("benchmarks.adapters.pyzmq:PyZmq", ("pyzmq",)),
    "echo-grpc": Entry("benchmarks.adapters.echo_core:EchoGrpc", ("echo-grpc", "echo-core", "echo-samplers")),
    "echo-grpc-inplace": Entry("benchmarks.adapters.echo_core:EchoGrpcInPlace", ("echo-grpc", "echo-core", "echo-samplers")),
    "echo-tcp-checksum": Entry("benchmarks.adapters.echo_core:EchoTcpChecksum", ("echo-tcp", "echo-core", "echo-samplers", "crc32c")),
    "echo-tcps": Entry("benchmarks.adapters.echo_core:EchoTcps", ("echo-tcp", "echo-core", "echo-samplers")),
    "echo-grpcs": Entry("benchmarks.adapters.echo_core:EchoGrpcs", ("echo-grpc", "echo-core", "echo-samplers")),
    "echo-rdma": Entry("benchmarks.adapters.echo_core:EchoRdma", ("echo-rdma", "echo-core", "echo-samplers")),
    "echo-rdma-each": Entry("benchmarks.adapters.echo_core:EchoRdmaEach", ("echo-rdma", "echo-core", "echo-samplers")),
    "memcpy": Entry("benchmarks.adapters.memcpy:Memcpy", ()),
    "ucx-perftest": Entry("benchmarks.adapters.ucx_perftest:UcxPerftest", (), program="ucx_perftest", hint="apt install ucx-utils"),
    "ucx-perftest-eager": Entry("benchmarks.adapters.ucx_perftest:UcxPerftestEager", (), program="ucx_perftest", hint="apt install ucx-utils"),
    "ucx-copies": Entry("benchmarks.adapters.ucx_copies:UcxCopies", (), program="ucx_perftest", hint="apt install ucx-utils libucx-dev"),
    "ucxx": Entry("benchmarks.adapters.ucxx:Ucxx", ("ucxx-cu12",), "BENCH_UCXX_PYTHON", hint="pip install ucxx-cu12"),
    "relay": Entry("benchmarks.adapters.relay:Relay", ()),
    "relay-readv": Entry("benchmarks.adapters.relay:RelayByKernel", ()),
    "grpcio": Entry("benchmarks.adapters.grpcio:Grpcio", ("grpcio",)),
    "grpcio-bytes": Entry("benchmarks.adapters.grpcio:GrpcioBytes", ("grpcio",)),
    "grpcio-full": Entry("benchmarks.adapters.grpcio:GrpcioFull", ("grpcio",)),
    "grpcio-kept": Entry("benchmarks.adapters.grpcio:GrpcioKept", ("grpcio",)),
    "grpcio-handed": Entry("benchmarks.adapters.grpcio:GrpcioHanded", ("grpcio",)),
    "sockets": Entry("benchmarks.adapters.sockets:Sockets", ()),
    "sockets-kept": Entry("benchmarks.adapters.sockets:SocketsKept", ()),
}


def version(name: str) -> str:
    """The installed version of a system; PackageNotFoundError names what is missing of it."""
    return SYSTEMS[name].version()


def load(name: str) -> System:
    """Import and build the adapter called ``name``; ImportError when its system is missing."""
    system = SYSTEMS[name].load()
    assert isinstance(system, System)
    return system
