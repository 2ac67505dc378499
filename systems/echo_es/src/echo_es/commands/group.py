"""The group `echoctl es`."""

from __future__ import annotations

import click

from .bench import bench
from .log import log
from .serve import serve
from .status import status
from .worker import worker

__all__ = ["command"]


@click.group(name="es", short_help="run, watch and read searches of echo-es")
def command() -> None:
    """Run servers and workers of evolution strategies, watch them, and read their logs."""


for each in (serve, worker, status, bench, log):
    command.add_command(each)
