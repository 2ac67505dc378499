"""`echoctl relay`: runs a server that passes on the weights of another one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click
import numpy as np

from echo_core.base.writing import write_whole
from echo_core.config import config as configuration
from echo_core.server.server import Server

from .. import prometheus
from ..ending import LOOK_SECONDS, end_signals
from ..output import json_option, print_json
from ..sources import files_option, load, words_argument

__all__ = ["command"]

EXAMPLE = {"nothing: a relay has weights and takes no samples": np.zeros((), np.uint8)}  # a worker that sends samples here is told this
KEPT = ("transport", "token", "weights_from", "plugins", "client_memory", "max_parked", "max_parked_per_client")


@click.command(name="relay", short_help="pass the weights of a learner on to many workers")
@click.argument("source")
@click.argument("listen")
@files_option
@click.option(
    "--address-file", type=click.Path(path_type=Path), help="Write the address to this file once workers can connect; the file is removed at the end."
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics at http://127.0.0.1:PORT/metrics (0: any free port)."
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Host of the metrics.")
@words_argument
@json_option
def command(source: str, listen: str, files: tuple[str, ...], address_file: Path | None, metrics_port: int | None, metrics_host: str,
            words: tuple[str, ...], as_json: bool) -> int:  # fmt: skip
    """Take the weights of the server at SOURCE, and pass them on at LISTEN until SIGTERM or Ctrl-C.

    Workers take their weights from here, and send their samples to the learner: Client(learner, example, weights=RELAY). The learner then sends
    each version once to this relay, however many workers there are behind it. The relay waits for a source that is not there yet, and comes again
    after it was restarted. It ends when the source ends the job. It proves itself with the first token of [security] or ECHO_TOKEN, which needs the role read.

    \b
    Example: echoctl relay tcp://learner:7000 shm://relay
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = load(files, words, f"server.transport={listen}", f"server.weights_from={source}", "server.batch_size=1")
    arguments = configuration.server_arguments(config)
    server = Server(EXAMPLE, 1, **{key: arguments[key] for key in KEPT if key in arguments})
    passes_on = server.weights_source
    assert passes_on is not None
    exporter = None
    with end_signals() as over:
        try:
            server.start()
            if metrics_port is not None:
                exporter = prometheus.Exporter(server, metrics_host, metrics_port)
            facts = {"source": str(passes_on.address), "addresses": [str(address) for address in server.addresses], "pid": os.getpid()}
            facts |= {} if exporter is None else {"metrics": exporter.url}
            if as_json:
                print_json(facts)
            else:
                for key, value in facts.items():
                    click.echo(f"{key + ':':14}{', '.join(value) if isinstance(value, list) else value}")
            if address_file is not None:
                write_whole(address_file, f"{server.address}\n".encode())
            connected = False
            while not over.wait(LOOK_SECONDS) and not server.draining and not server.closed:
                connected |= passes_on.connected
                if not connected and passes_on.refused and passes_on.error is not None:
                    raise passes_on.error  # such as a wrong token: nobody would notice it in a log
            return 0
        finally:
            if exporter is not None:
                exporter.close()
            server.close(1.0)
            if address_file is not None:
                address_file.unlink(missing_ok=True)
