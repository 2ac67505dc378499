"""What Evochi's protocol needs beside echo-es."""

from __future__ import annotations

from importlib.util import find_spec

from echo_core import ConfigError
from echo_core.base.installing import how_to_install

__all__ = ["require"]


_NEEDED = {"grpc": "grpcio", "google.protobuf": "protobuf", "zstandard": "zstandard"}


def require() -> None:
    """Raises ConfigError if grpcio, protobuf or zstandard is not installed."""
    missing = [name for module, name in _NEEDED.items() if not _installed(module)]
    if missing:
        raise ConfigError(f"Evochi's protocol needs {', '.join(missing)}; {how_to_install('echo-es[evochi]')}")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package in which it would be is missing
        return False
