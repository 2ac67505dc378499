"""A worker process: act with the newest values there are, insert transitions, for ever."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection as Link

from echo_core import Client, EchoError, EchoTimeoutError

from ..cartpole.worker import committed, live
from .options import Options
from .transitions import Player, example

_STEPS = 4  # of every environment between two looks for newer weights


def main(link: Link, address: str, index: int, generation: int, options: Options) -> None:
    """The whole life of worker `index`; `generation` counts its respawns."""
    live(link, _work, address, index, generation, options)


def _work(stop: threading.Event, address: str, index: int, generation: int, options: Options) -> None:
    player = Player(options.envs, options.span, options.discount, seed=options.seed * 10_000 + index * 100 + generation)
    client = Client(address, example(), name=f"worker-{index}")
    try:
        held = client.weights(timeout=30.0)
        while not stop.is_set():
            client.send_batch(player.play(held.params["layers"], float(held.params["epsilon"]), _STEPS))
            # Until it lies in the table. The table's rate limiter lets in so many for each sample that is drawn: without this wait a
            # worker would play far ahead, with an old policy, into its window of unacknowledged transitions.
            committed(client, stop)
            try:
                held = client.weights(timeout=0, newer_than=held.version)
            except EchoTimeoutError:
                pass  # none newer: go on with these
    finally:
        player.close()
        try:
            client.close(timeout=0.0 if stop.is_set() else None)
        except EchoError:
            pass  # told to stop: what the learner did not take any more is not missed
