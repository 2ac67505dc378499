"""`echoctl cluster serve`: one shard of a cluster from a configuration, for SLURM, Kubernetes, systemd or a terminal."""

from __future__ import annotations

import logging
from contextlib import closing, nullcontext
from pathlib import Path

import click

from echoctl import prometheus
from echoctl.served import example_option, server_from
from echoctl.sources import files_option, words_argument

from .serving import serve_shard

__all__ = ["serve"]


@click.command(name="serve", short_help="run one shard from a configuration")
@files_option
@example_option
@click.option("--transport", help="Where to listen, such as tcp://0.0.0.0:5000.")
@click.option("--folder", type=click.Path(path_type=Path), help="Write the shard's addresses into this folder, for members by file:// or slurm://.")
@click.option("--number", type=click.IntRange(0), help="Of this shard in the folder. Default: SLURM_PROCID.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Folder of checkpoints. The shard begins with the items of the last one.")
@click.option("--checkpoint-every", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, help="Seconds between two checkpoints.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve metrics, and /readyz for probes, at this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Host of the metrics.")
@click.option("--drain", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds at the end in which workers go elsewhere.")
@words_argument
def serve(files: tuple[str, ...], example_source: str | None, transport: str | None, folder: Path | None, number: int | None,
          checkpoint: Path | None, checkpoint_every: float, metrics_port: int | None, metrics_host: str, drain: float,
          words: tuple[str, ...]) -> int:  # fmt: skip
    """Run one shard until SIGTERM, `echoctl drain`, or the end of the job (`ClusterLearner.close()`).

    On SIGTERM its workers move to other shards, and it writes a checkpoint. The configuration is that of `echoctl serve`.

    \b
    Example: srun echoctl cluster serve echo.toml --folder "$ECHO_CLUSTER_DIR/$SLURM_JOB_ID" --checkpoint "checkpoints/$SLURM_PROCID"
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    server, _ = server_from(files, words, example_source, transport=transport)
    metrics = nullcontext() if metrics_port is None else closing(prometheus.Exporter(server, metrics_host, metrics_port))
    with metrics:
        serve_shard(server, folder=folder, number=number, checkpoint=checkpoint, checkpoint_every=checkpoint_every, drain=drain)
    return 0
