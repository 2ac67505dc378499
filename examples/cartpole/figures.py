"""The figures of a server for Prometheus, with `--metrics-port`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from echo_core import Server


@contextmanager
def exported(server: Server, port: int | None) -> Iterator[None]:
    """Serve the figures of `server` at `http://127.0.0.1:PORT/metrics` while the block runs. None: do not.

    Raises:
        ImportError: echoctl is not installed; the message has the command.
        OSError: the port is taken.
    """
    if port is None:
        yield
        return
    from echo_core.server.statistics.prometheus import Exporter

    exporter = Exporter(server, port=port)
    try:
        yield
    finally:
        exporter.close()
