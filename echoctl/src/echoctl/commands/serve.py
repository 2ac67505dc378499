"""`echoctl serve`: runs a server from a configuration until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import click

from echo_core.base.errors import EchoError
from echo_core.base.plural import counted
from echo_core.base.writing import write_whole
from echo_core.config import config as configuration
from echo_core.security.tokens import default_token_path
from echo_core.server.server import Server

from .. import prometheus
from ..ending import LOOK_SECONDS, end_signals
from ..output import json_option, print_json
from ..served import example_option, server_from
from ..sources import files_option, words_argument

__all__ = ["command"]


@click.command(name="serve", short_help="run a server from a configuration")
@files_option
@example_option
@click.option("--transport", help="Where to listen, such as tcp://127.0.0.1:0 (port 0: any free port).")
@click.option("--sampler", help="Name of a sampler.")
@click.option("--batch-size", type=int, help="Samples per batch.")
@click.option(
    "--address-file", type=click.Path(path_type=Path), help="Write the address to this file once workers can connect; the file is removed at the end."
)
@click.option("--consume", is_flag=True, help="Take batches and drop them, in place of a learner.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics at http://127.0.0.1:PORT/metrics (0: any free port)."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Host of the metrics.")
@click.option(
    "--drain", type=float, default=10.0, show_default=True, help="Seconds at the end in which workers can deliver samples that are under way."
)
@words_argument
@json_option
def command(files: tuple[str, ...], example_source: str | None, transport: str | None, sampler: str | None, batch_size: int | None,
            address_file: Path | None, consume: bool, metrics_port: int | None, metrics_host: str, drain: float,
            words: tuple[str, ...], as_json: bool) -> int:  # fmt: skip
    """Run a server, print its address, and close it in good order on SIGTERM or Ctrl-C, or after `echoctl drain`.

    Ctrl-C ends the job, so the workers end. After SIGTERM or a drain, they try to connect again.

    The configuration describes a sample:

    \b
      [example]
      obs = { shape = [84, 84, 4], dtype = "uint8" }
      reward = { dtype = "float32" }

    \b
    Example: echoctl serve -c echo.toml --address-file build/address server.batch_size=64
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    server, config = server_from(files, words, example_source, transport=transport, sampler=sampler, batch_size=batch_size)
    served = False
    exporter = None
    drainer = threading.Thread(target=_drop_batches, args=(server,), name="echo-consume", daemon=True) if consume else None
    with end_signals() as over:
        try:
            server.start()
            served = True
            if metrics_port is not None:
                exporter = prometheus.Exporter(server, metrics_host, metrics_port)
            if drainer is not None:
                drainer.start()
            _announce(server, config, exporter, as_json)
            if address_file is not None:
                write_whole(address_file, f"{server.address}\n".encode())
            while not over.wait(LOOK_SECONDS) and not server.draining:
                pass
            return 0
        finally:
            if exporter is not None:
                exporter.close()
            server.close(drain, restarting=not over.interrupted)
            if drainer is not None and drainer.ident is not None:
                drainer.join(drain)
            if address_file is not None:
                address_file.unlink(missing_ok=True)
            if served:
                stats: dict[str, Any] = server.stats()
                click.echo(
                    f"ended: {counted(stats['store/samples_inserted_total'], 'sample')} received, "
                    f"{counted(stats['store/batches_taken_total'], 'batch', 'batches')} taken, {counted(stats['store/samples'], 'sample')} left in the store",
                    err=True,
                )


def _announce(server: Server, config: configuration.Config, exporter: prometheus.Exporter | None, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "addresses": [str(address) for address in server.addresses],
        "sampler": None if config.server.tables else config.server.sampler.type,
        "tables": [f"{table.name} ({table.sampler.type})" for table in config.server.tables] or None,
        "batch_size": server.batch_size,
        "sample_bytes": server.spec.sample_bytes,
        "token": _token_place(config),
        "metrics": exporter.url if exporter is not None else None,
        "pid": os.getpid(),
    }
    if as_json:
        print_json(facts)
    else:
        for key, value in facts.items():
            if value is not None:
                click.echo(f"{key + ':':14}{', '.join(value) if isinstance(value, list) else value}")


def _token_place(config: configuration.Config) -> str:
    if not config.security.auth:
        return "none: every client that can reach the address may connect"
    if config.security.token is not None:
        return "from the configuration"
    if config.security.token_file is not None:
        return str(config.security.token_file)
    if "ECHO_TOKEN" in os.environ:
        return "ECHO_TOKEN"
    return os.environ.get("ECHO_TOKEN_FILE") or str(default_token_path())


def _drop_batches(server: Server) -> None:
    try:
        while server.sample() is not None:
            pass
    except EchoError:
        logging.getLogger("echo").exception("stopped taking batches because of an error")
