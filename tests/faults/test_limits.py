"""At the edge: no descriptors left, no port, hundreds of connections, nothing to do."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.proxy import Plan, Proxy
from rig.strain import assert_rests, crowd, figures, keeping_learner
from rig.workers import flood, idle, learner

from echo_core import Client, EchoTimeoutError, SecurityError, Server
from echo_testing.processes import until
from echo_testing.samples import example

FEW = 40  # file descriptors


def test_out_of_file_descriptors(start: Callable[..., Child]) -> None:
    server = start(keeping_learner, FEW)
    port = server.hear()
    worker = start(flood, f"tcp://127.0.0.1:{port}", 0)
    assert worker.hear() == "ready"
    until(lambda: server.ask("?")[0].get(0, 0) > 100, "the worker is served")
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * FEW)]
    try:
        # Those already connected are still served, and the others are told why.
        said = until(
            lambda: _said(server, "file descriptors|Too many open files"), "the log says so"
        )
        came = said[0][0]
        until(lambda: server.ask("?")[0][0] > came + 1000, "the worker is still served")
        with pytest.raises(EchoTimeoutError, match="file descriptors"):
            Client(f"tcp://127.0.0.1:{port}", example(), timeout=10)  # the strangers are told first, a few at a time
        worker.freeze()  # now there is nothing to do but not to accept
        assert_rests([server.pid], 1.0, 0.5)
        worker.thaw()
        assert len(server.ask("?")[2]) < 20  # lines of its log
    finally:
        for sock in strangers:
            sock.close()
    with Client(f"tcp://127.0.0.1:{port}", example(), timeout=20) as client:
        client.wait()  # as soon as there are descriptors again
    counters = worker.ask("stop")
    worker.end()
    assert counters["reconnects"] == 0
    assert server.ask("end")[0] == counters["samples"]
    server.end()


def _said(server: Child, what: str) -> tuple | None:
    answer = server.ask("?")
    return answer if any(re.search(what, line) for line in answer[2]) else None


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=rf"(?s){port}.*port is in use.*port=0"):
            Server(example(), 1, f"tcp://127.0.0.1:{port}").start()
    with Server(example(), 1, f"tcp://127.0.0.1:{port}") as server:
        with pytest.raises(OSError, match=str(port)):
            Server(example(), 1, str(server.address)).start()
        with Client(server.address, example()) as client:
            client.wait()
    # A server that was closed with workers connected leaves its port to the next at once.
    for _ in range(3):
        with Server(example(), 1, f"tcp://127.0.0.1:{port}") as server:
            client = Client(server.address, example(), timeout=1)
        with pytest.raises((ConnectionError, TimeoutError)):
            while True:
                client.wait()
                time.sleep(0.01)
        client.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_this_machine_without_authentication(host: str) -> None:
    for transport, token in (
        ({"type": "tcp", "port": 0, "host": host, "auth": False}, "ECHO_TOKEN"),
        ({"type": "tcp", "port": 0, "host": host, "protocol": "echo1"}, ""),  # it has no tokens
    ):
        with pytest.raises(SecurityError) as refused:
            Server(example(), 1, transport).start()
        for remedy in ('host="127.0.0.1"', token, "allow_insecure=True"):
            assert remedy in str(refused.value)
    for way_out in ({}, {"auth": False, "allow_insecure": True}):
        with Server(example(), 1, {"type": "tcp", "port": 0, "host": host, **way_out}) as server:
            assert server.port


@pytest.mark.parametrize(
    ("batch_size", "pause", "each"),
    [(256, 0.0, 2000), (64, 0.0005, 200)],
    ids=["limited by the workers", "limited by the learner"],
)
def test_five_hundred_workers_are_served_alike(
    batch_size: int,
    pause: float,
    each: int,
    serve: Callable[..., Server],
    start: Callable[..., Child],
) -> None:
    server = serve(batch_size=batch_size)
    children = [start(crowd, server.port, 250 * i, 250, 48) for i in range(2)]
    with Consumer(server, pause) as consumer:
        for child in children:
            assert child.hear(within=60) == "ready"
        assert len(server.peers()) == 500
        for child in children:
            child.tell("go")
        until(lambda: min(figures(server).values()) > 0, "all have begun", within=60)
        before = figures(server)

        def window() -> dict[str, int]:
            now = figures(server)
            grown = {name: now[name] - before[name] for name in before}
            return grown if sum(grown.values()) > 500 * each else {}

        share = until(window, "a window of samples", within=60)
        for child in children:
            child.tell("stop")
        for child in children:
            assert child.hear(within=60) == "closed"
            child.end()
        consumer.check()
    assert len(share) == 500
    assert max(share.values()) <= 2 * min(share.values())


def test_idle_costs_nothing(start: Callable[..., Child]) -> None:
    server = start(learner, 0, 1, 48, None)
    address = f"tcp://127.0.0.1:{server.hear()}"
    waiting = [start(idle, address) for _ in range(2)]
    for child in waiting:
        assert child.hear() == "ready"
    assert server.ask("idle") == "idle"
    assert_rests([server.pid, *(child.pid for child in waiting)], 2.0, 0.02)
    for child in waiting:
        child.tell("end")
        child.end()
    server.ask("stop")
    server.end()


def test_a_lost_link_that_nobody_needs_costs_little(
    start: Callable[..., Child], serve: Callable[..., Server], proxy: Callable[..., Proxy]
) -> None:
    """A learner that hangs up again and again is not dialled in a busy loop."""
    server = serve()
    links = proxy(server.port, lambda n: Plan() if n == 0 else Plan(down=0))
    child = start(idle, links.address)
    with Consumer(server):
        assert child.hear() == "ready"
        links.cut("reset")
        until(lambda: len(links.links) > 3, "it dials")
        assert_rests([child.pid], 2.0, 0.5)
        begun = len(links.links)
        time.sleep(2.0)  # the time in which dials are counted
        assert len(links.links) - begun < 40
