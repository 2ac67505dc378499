"""Ctrl-C in each blocking call: it ends at once, and what it was called on can still be used."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Link
from typing import Any

import pytest
from rig.processes import Child
from rig.workers import numbered

from echo_core import Client, EchoTimeoutError, Server
from echo_testing.samples import example, stacked

LARGE = 200_000  # bytes; few of them fill every buffer on the way


def waits(link: Link) -> None:
    """Make every blocking call in turn; say its name before, and what became of it after."""
    with Server(example(LARGE), 2, {"type": "tcp", "port": 0}) as full:
        sample = next(numbered(0, LARGE))
        try:
            while True:
                full.submit(sample, timeout=0)
        except EchoTimeoutError:
            pass
        empty = Server(example(), 2, {"type": "tcp", "port": 0}).start()
        # Full: the store, the sockets, the window.
        stuck = Client(full.address, example(LARGE), window_bytes=64 << 20)
        try:
            while True:
                stuck.send(sample, timeout=0.2)
        except EchoTimeoutError:
            pass
        idle = Client(empty.address, example())
        deaf = Server(example(), 2, {"type": "tcp", "port": 0}).start()
        deaf.serve("test/slow", lambda *_: time.sleep(3) or ({}, b""))
        asking = Client(deaf.address, example())
        calls: dict[str, Callable[[], Any]] = {
            "send": lambda: stuck.send(sample),
            "send_batch": lambda: stuck.send_batch(stacked(0, 0, 4, LARGE)),
            "flush": stuck.flush,
            "wait": stuck.wait,
            "weights": idle.weights,
            "request": lambda: asking.request("test/slow"),
            "sample": empty.sample,
            "sample with a timeout": lambda: empty.sample(timeout=60),
            "dataset_iter": lambda: next(empty.dataset_iter()),
            "submit": lambda: full.submit(sample),
            "submit_batch": lambda: full.submit_batch(stacked(0, 0, 4, LARGE)),
            "connect": lambda: Client("tcp://127.0.0.1:1", example()),
            "close": stuck.close,
        }
        for name, call in calls.items():
            taken = stuck.stats()["samples"]
            link.send(name)
            try:
                call()
            except KeyboardInterrupt:
                link.send("interrupted")
            else:
                link.send("returned")
            assert stuck.stats()["samples"] == taken  # who was interrupted may send it again
        # All but what was closed goes on: nothing of it was left locked or half done.
        with idle:
            idle.send_batch(stacked(0, 0, 2))
            idle.wait()
            assert empty.sample(timeout=20).batch["number"].tolist() == [0, 1]
        asking.close()
        empty.close()
        deaf.close()
    link.send("done")


def test_ctrl_c_ends_every_blocking_call(start: Callable[..., Child]) -> None:
    child = start(waits)
    calls = []
    while (name := child.hear(within=60)) != "done":
        calls.append(name)
        time.sleep(0.1)  # until it waits; nothing outside it can tell when
        os.kill(child.pid, signal.SIGINT)
        assert child.hear() == "interrupted", name
    assert len(calls) == 13
    child.end()


def iterate(link: Link) -> None:
    """As a learner's script does: nothing but the loop, inside the server's block."""
    with Server(example(), 2, {"type": "tcp", "port": 0}) as server:
        link.send(str(server.address))
        try:
            for _ in server.dataset_iter():
                pass
        except KeyboardInterrupt:
            pass
    link.send("closed")


def test_ctrl_c_in_a_flood_ends_learner_and_workers(start: Callable[..., Child]) -> None:
    learner = start(iterate)
    address = learner.hear()
    workers = [start(send_until_interrupted, address, maker) for maker in range(2)]
    for worker in workers:
        assert worker.hear() == "ready"
    time.sleep(0.2)
    for child in (learner, *workers):  # as a terminal does: to all at once
        os.kill(child.pid, signal.SIGINT)
    assert learner.hear() == "closed"
    for worker in workers:
        assert worker.hear() == "interrupted"
    for child in (learner, *workers):
        child.end()


def send_until_interrupted(link: Link, address: str, maker: int) -> None:
    try:
        with Client(address, example()) as client:
            link.send("ready")
            for sample in numbered(maker, 48):
                client.send(sample)
    except KeyboardInterrupt:
        link.send("interrupted")


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGCHLD", "SIGALRM"])
def test_other_signals_interrupt_nothing(name: str, serve: Callable[..., Server]) -> None:
    """A handler runs, and the call goes on waiting."""
    number = getattr(signal, name)
    server = serve(batch_size=1)
    hits = []
    before = signal.signal(number, lambda *_: hits.append(1))
    try:
        for _ in range(3):
            thread = threading.Timer(0.1, lambda: os.kill(os.getpid(), number))
            thread.start()
            with pytest.raises(EchoTimeoutError):
                server.sample(timeout=0.3)
            thread.join()
        assert len(hits) == 3
    finally:
        signal.signal(number, before)
