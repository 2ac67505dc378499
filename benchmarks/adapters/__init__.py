"""One module per system, imported only in the processes that run it.

The order here is the order of columns and bars. A system that is not installed is skipped with a
note; the parent process never imports any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata

from benchmarks.adapters.base import System


@dataclass(frozen=True)
class Entry:
    """A system: the class that adapts it, and the distributions it takes, the one that gives the
    version first."""

    adapter: str
    distributions: tuple[str, ...]


SYSTEMS: dict[str, Entry] = {
    "echo": Entry(
        "benchmarks.adapters.echo_core:EchoCore", ("echo-core", "echo-samplers", "echo-tcp")
    ),
    "echo-shm": Entry("benchmarks.adapters.echo_core:EchoShm", ("echo-shm", "echo-core", "echo-samplers")),
    "id-echo": Entry("benchmarks.adapters.id_echo:IdEcho", ("id-echo",)),
    "pyzmq": Entry("benchmarks.adapters.pyzmq:PyZmq", ("pyzmq",)),
    "echo-grpc": Entry(
        "benchmarks.adapters.echo_core:EchoGrpc", ("echo-grpc", "echo-core", "echo-samplers")
    ),
    "echo-tcps": Entry("benchmarks.adapters.echo_core:EchoTcps", ("echo-tcp", "echo-core", "echo-samplers")),
    "grpcio": Entry("benchmarks.adapters.grpcio:Grpcio", ("grpcio",)),
}


def version(name: str) -> str:
    """The installed version of a system; PackageNotFoundError names what is missing of it."""
    first, *others = SYSTEMS[name].distributions
    for distribution in others:
        metadata.version(distribution)
    return metadata.version(first)


def load(name: str) -> System:
    """Import and build the adapter called ``name``; ImportError when its system is missing."""
    module, _, cls = SYSTEMS[name].adapter.partition(":")
    system = getattr(import_module(module), cls)()
    assert isinstance(system, System)
    return system
