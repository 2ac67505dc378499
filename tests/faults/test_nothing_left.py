"""What ends leaves nothing: no thread, no process, no descriptor, no file, wherever it ended."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Link
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.proxy import Plan, Proxy
from rig.raw import RawWorker
from rig.workers import flood, learner, numbered

from echo_core import Client, Later, Server
from echo_core.wire.peer import Peer
from echo_testing.processes import descriptors, settled, tasks
from echo_testing.samples import example, stacked

LARGE = 300_000  # bytes


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that only this test and its processes use, so that whatever lies there is theirs."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # what it was is kept there
    return folder


def files() -> set[str]:
    """Files in shared memory and in the test's directory for temporary ones.

    No part of Echo gives files in shared memory a name, so one with Echo's is a mistake whichever process made it.
    """
    shared = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "echo" in name.lower()}
    temporary = Path(tempfile.gettempdir())
    # multiprocessing makes itself a folder once, which it keeps.
    return shared | {str(path) for path in temporary.rglob("*") if not path.relative_to(temporary).parts[0].startswith("pymp-")}


def session(close: bool) -> None:
    """Everything once: samples of both sizes, weights, requests, a lost link, a refused client."""
    for filler in (48, LARGE):
        with Server(example(filler), 4, {"type": "tcp", "port": 0}, num_buffers=4) as server:
            links = Proxy(server.port, lambda n: Plan(up=5000) if n == 0 else Plan())
            client = Client(links.address, example(filler))
            client.send_batch(stacked(0, 0, 8, filler))
            client.wait()
            server.publish({"w": np.zeros(1 << 20)})
            assert client.weights().version == 1
            assert client.server_stats()
            with pytest.raises(ValueError):
                Client(server.address, {"other": np.zeros(3)})
            raw = RawWorker(server, filler)
            raw.samples(1, 0)
            raw.send(b"\1")
            raw.close()
            kept = server.sample(timeout=20).batch
            if close:
                client.close()
            else:
                del client
            links.close()
        assert kept["number"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
@pytest.mark.filterwarnings("ignore:unclosed connection:ResourceWarning")
def test_a_session_leaves_nothing(close: bool) -> None:
    session(True)  # what is made once and kept: the token, the plugins
    threads, open_files, lying_about = tasks(), descriptors(), files()
    for _ in range(3):
        session(close)
    settled(tasks, threads, "threads")
    settled(descriptors, open_files, "descriptors")
    assert files() <= lying_about


@pytest.fixture
def clean() -> Iterator[None]:
    before = files()
    yield
    assert files() <= before


def parent(link: Link, kind: str) -> None:
    """A learner or a worker with all its threads, to be killed."""
    if kind == "learner":
        learner(link, 0, 4, 48)
    with (
        Server(example(), 4, {"type": "tcp", "port": 0}) as server,
        Consumer(server),
        Client(server.address, example()) as client,
    ):
        link.send("ready")
        for sample in numbered(0, 48):
            client.send(sample)


@pytest.mark.parametrize("kind", ["learner", "both"])
def test_kill_9_leaves_no_process_and_no_file(
    kind: str, clean: None, start: Callable[..., Child]
) -> None:
    child = start(parent, kind)
    child.hear()
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    assert len(family) == 1  # Echo starts no processes of its own
    child.kill()
    assert not psutil.pid_exists(child.pid)


def test_workers_that_come_and_go_leave_nothing_at_the_learner(
    serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    server = serve(batch_size=4)
    with Consumer(server) as consumer:
        with Client(server.address, example()) as client:
            client.wait()
        threads, open_files = tasks(), descriptors()
        for maker in range(100):
            if maker % 10 == 9:
                killed = start(flood, str(server.address), 1000 + maker)
                assert killed.hear() == "ready"
                killed.forget()
                continue
            with Client(server.address, example()) as client:
                client.send_batch(stacked(maker, 0, 3))
        settled(lambda: {p.id: p.name for p in server.peers()}, {}, "workers")
        settled(tasks, threads, "threads")
        settled(descriptors, open_files, "descriptors")
        assert server.stats()["store/active_connections"] == 0
        assert server.stats()["transport/tcp/staged_bytes"] == 0
        consumer.check()


def test_a_thousand_clients_with_parked_requests_leave_nothing() -> None:
    parked: list[weakref.ref[Later]] = []
    kept: dict[str, Later] = {}

    def park(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Later:
        kept[peer.id] = later = Later(peer)
        later.on_gone(lambda: kept.pop(peer.id))
        parked.append(weakref.ref(later))
        return later

    with Server(example(), 4, {"type": "tcp", "port": 0, "max_connection_rate": 10_000}) as server:
        server.serve("test/park", park)
        with Client(server.address, example()) as staying:
            staying.send_batch(stacked(0, 0, 4))
            for number in range(1001):
                if number == 1:  # by now there is what is made once and kept
                    threads, open_files = tasks(), descriptors()
                client = Client(server.address, example())
                asked = client._requests.ask("test/park", {}, bytes(100))
                if number % 2:
                    client.request("ping")
                client.close()
                del asked
            settled(lambda: dict.fromkeys(kept, ""), {}, "requests")
            assert server.stats()["clients/parked"] == 0 and server.stats()["clients/held_bytes"] == 0
            more = dict.fromkeys(("second", "third", "fourth"), "carries out requests once several clients ask at a time")
            settled(tasks, threads | more, "threads")
            settled(descriptors, open_files, "descriptors")
            assert len(parked) >= 500 and not any(ref() for ref in parked)
            assert staying.request("ping", blob=b"still here")[1] == b"still here"
