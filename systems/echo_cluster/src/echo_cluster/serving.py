"""Runs a server as one shard of a cluster: it announces its addresses, writes checkpoints, drains on SIGTERM, and ends with the job."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_core import ConfigError, EchoError

from .members import announce

if TYPE_CHECKING:
    from echo_core import Server

__all__ = ["serve_shard"]

_log = logging.getLogger("echo")

LOOK_SECONDS = 0.1


def serve_shard(
    server: Server,
    *,
    folder: str | os.PathLike[str] | None = None,
    number: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 30.0,
    drain: float = 10.0,
) -> None:
    """Run a server until SIGTERM, Ctrl-C, `echoctl drain`, or the end of the job (`ClusterLearner.close()`).

    On SIGTERM and after a drain, its workers move to other shards, a checkpoint is written, and the job goes on. Ctrl-C does the same.

    Args:
        server: is not started yet, and has a transport.
        folder: where its addresses are written for `file://` members.
        number: of this shard; None takes SLURM_PROCID, which srun sets.
        checkpoint: the folder of its checkpoints. If there is one, the tables are restored from it. What was acknowledged since the last
            checkpoint is lost if the shard is killed.
        checkpoint_every: seconds between two checkpoints.
        drain: seconds in which workers are told at the end.

    Raises:
        ConfigError: a folder is given, and no number. CheckpointError: the checkpoint does not fit, or is damaged.
    """
    if folder is not None and number is None:
        if not os.environ.get("SLURM_PROCID", "").isdigit():
            raise ConfigError("a shard that announces its addresses needs a number: give number=0, 1, ..., or start it by srun, which sets SLURM_PROCID")
        number = int(os.environ["SLURM_PROCID"])
    if not checkpoint_every > 0:
        raise ConfigError(f"checkpoint_every must be a number of seconds above 0, not {checkpoint_every!r}")
    if checkpoint is not None and Path(checkpoint).is_dir() and any(Path(checkpoint).iterdir()):
        server.restore(checkpoint)
    job_over = threading.Event()

    def end(server: Server, peer: Any, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        job_over.set()
        return {}, b""

    server.serve("cluster/end", end, roles=("admin",))
    place: Path | None = None
    with _signals() as stop:
        try:
            server.start()
            if folder is not None and number is not None:
                place = announce(folder, number, server.addresses)
            saved = time.monotonic()
            while not stop.wait(LOOK_SECONDS) and not job_over.is_set() and not server.draining and not server.closed:
                if checkpoint is not None and time.monotonic() - saved >= checkpoint_every:
                    _save(server, checkpoint)
                    saved = time.monotonic()
        finally:
            try:
                if not job_over.is_set() and not server.closed:
                    server.drain(drain)
                    if checkpoint is not None:
                        _save(server, checkpoint)
            finally:
                if place is not None:
                    place.unlink(missing_ok=True)
                server.close(drain, restarting=not job_over.is_set())


def _save(server: Server, checkpoint: str | os.PathLike[str]) -> None:
    try:
        server.checkpoint(checkpoint)
    except (EchoError, OSError) as error:  # a full disk must not end a shard: the earlier checkpoint stays
        _log.error("this shard could not write a checkpoint, and goes on: %s", error)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. In another thread than the main one, signals stay as they are."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
