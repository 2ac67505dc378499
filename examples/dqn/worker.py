"""A worker process: it acts with the newest action values and inserts steps, for ever."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection as Link

from echo_core import Client, EchoError, EchoTimeoutError, Steps

from ..cartpole.worker import committed, live
from .options import Options
from .steps import Player, example

_STEPS = 4  # steps of every environment between two checks for newer weights


def main(link: Link, address: str, index: int, generation: int, options: Options) -> None:
    """The whole life of worker `index`; `generation` counts its respawns."""
    live(link, _work, address, index, generation, options)


def _work(stop: threading.Event, address: str, index: int, generation: int, options: Options) -> None:
    player = Player(options.envs, seed=options.seed * 10_000 + index * 100 + generation)
    client = Client(address, Steps(example()), name=f"worker-{index}")
    try:
        held = client.weights(timeout=30.0)
        while not stop.is_set():
            for _ in range(_STEPS):
                played = player.step(held.params["layers"], float(held.params["epsilon"]))
                client.send_batch(played.steps, ends=played.ends, streams=played.streams)
            # Wait until the steps are in the table. The table's rate limiter admits a number of transitions for each drawn sample.
            # Without this wait, a worker would play far ahead with an old policy and fill its window of unacknowledged steps.
            committed(client, stop)
            try:
                held = client.weights(timeout=0, newer_than=held.version)
            except EchoTimeoutError:
                pass  # there are no newer weights, so go on with these
    finally:
        player.close()
        try:
            client.close(timeout=0.0 if stop.is_set() else None)
        except EchoError:
            pass  # it was asked to stop; steps that the learner no longer takes are not needed
