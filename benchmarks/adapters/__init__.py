"""One module per system, imported only in the processes that run it.

The order here is the order of columns and bars. A system that is not installed is skipped with a
note; the parent process never imports any of them.
"""

from __future__ import annotations

from importlib import import_module, metadata

from benchmarks.adapters.base import System

MODULES: dict[str, tuple[str, str]] = {
    # name: (distribution that must be installed, class that adapts it)
    "echo": ("echo-core", "benchmarks.adapters.echo_core:EchoCore"),
    "id-echo": ("id-echo", "benchmarks.adapters.id_echo:IdEcho"),
    "pyzmq": ("pyzmq", "benchmarks.adapters.pyzmq:PyZmq"),
    "grpcio": ("grpcio", "benchmarks.adapters.grpcio:Grpcio"),
}


def version(name: str) -> str | None:
    """The installed version of a system, None where it is not installed."""
    try:
        return metadata.version(MODULES[name][0])
    except metadata.PackageNotFoundError:
        return None


def load(name: str) -> System:
    """Import and build the adapter called ``name``; ImportError when its system is missing."""
    module, _, cls = MODULES[name][1].partition(":")
    system = getattr(import_module(module), cls)()
    assert isinstance(system, System)
    return system
