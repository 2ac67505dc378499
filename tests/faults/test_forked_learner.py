"""A learner that forks (data loaders, subprocesses of libraries): the child's copies of descriptors keep nothing alive."""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig.processes import Child
from rig.workers import forking_learner, forking_worker

from echo_core import Client, EchoTimeoutError, Server
from echo_testing.ports import free_port
from echo_testing.processes import forked, until
from echo_testing.samples import example, stacked


@pytest.fixture
def fork() -> Iterator[Callable[[], None]]:
    """Fork a child that does nothing, with copies of all descriptors, until the test is over."""
    children = []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
            read, write = os.pipe()
            child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        children.append((child, write))

    yield fork
    for child, write in children:
        os.close(write)
        os.waitpid(child, 0)


def watched() -> int:
    """How many descriptors the epoll instances of this process watch."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                count += Path(f"/proc/self/fdinfo/{name}").read_text().count("tfd:")
        except OSError:
            pass  # the descriptor of the listing
    return count


def test_a_connection_that_ends_is_watched_no_more(serve: Callable[..., Server], fork: Callable[[], None]) -> None:
    """epoll would go on naming it for as long as the child lives, to a loop that has forgotten it."""
    server = serve(batch_size=2)
    before = watched()
    leaves, stays = Client(server.address, example(), name="leaves"), Client(server.address, example(), name="stays")
    fork()
    leaves.close()
    until(lambda: [peer.name for peer in server.peers()] == ["stays"], "the learner knows that it left")
    until(lambda: watched() == before + 1, "only the other one is watched")
    with stays:
        stays.send_batch(stacked(0, 0, 2))
        assert server.sample(timeout=20).batch["number"].tolist() == [0, 1]


@pytest.mark.parametrize("scheme", ["tcp", "tcps"])
def test_the_address_is_free_again_at_once(scheme: str, fork: Callable[[], None]) -> None:
    port = free_port()
    with Server(example(), 2, {"type": scheme, "port": port}) as first:
        fork()
        address = str(first.address)
    with pytest.raises(EchoTimeoutError, match="refused"):  # and not taken into a queue that nobody empties
        Client(address, example(), timeout=1)
    with Server(example(), 2, {"type": scheme, "port": port}) as second, Client(address, example(), timeout=20) as client:
        client.send_batch(stacked(0, 0, 2))
        assert second.sample(timeout=20).batch["number"].tolist() == [0, 1]


@pytest.mark.parametrize("scheme", ["tcp", "tcps"])
def test_a_learner_that_was_killed_is_gone_although_its_child_lives(scheme: str, start: Callable[..., Child]) -> None:
    """It has ended nothing itself: whatever its child had a copy of would go on for the others, and the port stay taken."""
    learner = start(forking_learner, scheme)
    port = learner.hear()
    with (
        Client(f"{scheme}://127.0.0.1:{port}", example(), timeout=20) as client,
        socket.create_connection(("127.0.0.1", port), timeout=20) as in_its_handshake,
    ):
        time.sleep(0.2)  # it is accepted
        child = learner.ask("fork")
        try:
            learner.kill()
            while in_its_handshake.recv(4096):
                pass
            with Server(example(), 2, {"type": scheme, "port": port}) as second:
                client.send_batch(stacked(0, 0, 2))
                assert second.sample(timeout=20).batch["number"].tolist() == [0, 1]
                client.wait()
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("scheme", ["tcp", "tcps"])
def test_a_worker_that_was_killed_is_gone_although_its_child_lives(scheme: str, start: Callable[..., Child]) -> None:
    with Server(example(), 2, {"type": scheme, "port": 0}) as server:
        worker = start(forking_worker, str(server.address))
        worker.hear()
        until(lambda: len(server.peers()) == 1, "it is connected")
        child = worker.ask("fork")
        try:
            worker.kill()
            until(lambda: not server.peers(), "the learner knows that it is gone")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_batch_dropped_in_the_child_makes_no_room_in_the_parent(serve: Callable[..., Server]) -> None:
    """Its copy of the memory is the child's, but the descriptor that wakes a transport which waits for room is shared."""
    server = serve(batch_size=2, num_buffers=2)
    with Client(server.address, example()) as client:
        client.send_batch(stacked(0, 0, 8))
        held = [server.sample(timeout=20).batch, server.sample(timeout=20).batch]
        stats = server.stats
        until(lambda: stats()["transport/tcp/waiting_for_space"] == 1, "the worker waits for room")

        def rounds() -> float:
            """Of the transport, once it has come to rest."""
            count = -1.0
            while count != stats()["transport/tcp/rounds"]:
                count = stats()["transport/tcp/rounds"]
                time.sleep(0.1)
            return count

        before = rounds()
        forked(held.clear)
        assert rounds() == before
        held.clear()
        rest = [server.sample(timeout=20).batch["number"].tolist() for _ in range(2)]
        assert rest == [[4, 5], [6, 7]]
