"""What Evochi's protocol needs beside echo-es."""

from __future__ import annotations

from importlib.util import find_spec

from echo_core import ConfigError
from echo_core.base.installing import how_to_install

__all__ = ["require"]


def require() -> None:
    """Raises ConfigError if grpcio or zstandard is not installed."""
    missing = [name for module, name in (("grpc", "grpcio"), ("zstandard", "zstandard")) if find_spec(module) is None]
    if missing:
        raise ConfigError(f"Evochi's protocol needs {' and '.join(missing)}; {how_to_install('echo-es[evochi]')}")
