"""docs/troubles.md: every mistake of it is made, and the error that comes is the text of the page, but for addresses and what is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, Queue, Server, Table
from echo_testing.ports import free_port
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubles.md"
EXAMPLE = {"obs": np.zeros(4, np.float32)}
TCP = "tcp://127.0.0.1:0"
WORKER: dict[str, Any] = {"name": "w0", "timeout": 0.5}


class Tensor:
    """As a library's array in the memory of a GPU shows itself."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def server_at(action: Callable[[Server], object]) -> None:
    with Server(EXAMPLE, 2, TCP) as server:
        action(server)


def worker_of(action: Callable[[Client], object]) -> None:
    with Server(EXAMPLE, 2, TCP) as server:
        client = Client(server.address, EXAMPLE, **WORKER)
        try:
            action(client)
        finally:
            client.close()


def gone(action: Callable[[Client], object], restarting: bool = True) -> None:
    """The server closes while a worker has three samples that it could not take."""
    with Server(EXAMPLE, 1, TCP, num_buffers=2) as server:
        client = Client(server.address, EXAMPLE, **WORKER)
        for _ in range(2):
            client.send(EXAMPLE)
        client.wait(10)
        for _ in range(3):
            client.send(EXAMPLE)
        server.close(restarting=restarting)
    try:
        action(client)
    finally:
        try:
            client.close(5)
        except ConnectionError:
            pass


def until_lost(client: Client) -> None:
    while True:
        client.send(EXAMPLE, timeout=5)


def hoarding(server: Server) -> None:
    server.submit_batch({"obs": np.zeros((6, 4), np.float32)})
    held = [server.sample(1) for _ in range(3)]
    server.sample(timeout=0.1)
    del held


def too_much(server: Server) -> None:
    server.submit_batch({"obs": np.zeros((6, 4), np.float32)})
    server.submit(EXAMPLE, timeout=0.1)


def unpublished() -> None:
    """Learner and worker wait for each other, because nobody has published weights."""
    with Server(EXAMPLE, 2, TCP) as server, Client(server.address, EXAMPLE, name="w0") as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.weights, 60)
        until(lambda: server.peers()[0].state == "waiting for weights", "it waits")
        try:
            server.sample(timeout=0.1)
        finally:
            server.publish(EXAMPLE)
            waiting.result()


def tokenless() -> None:
    """Nobody has copied the learner's token to this machine. (No machine has this address.)"""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ECHO_TOKEN", "ECHO_TOKEN_FILE"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_CONFIG_HOME", "/home/you/.config")
        Client("tcp://192.0.2.7:5555", EXAMPLE, **WORKER)


def held() -> None:
    """A rate limiter holds a worker, which waits again if the learner was too busy to say why within 1 s."""
    table = Table("replay", EXAMPLE, capacity=1000, sampler="uniform", rate_limiter=Queue(4))
    with Server(tables=[table], batch_size=2, transport=TCP) as server:
        client = Client(server.address, EXAMPLE, **WORKER)
        try:
            client.send_batch({"obs": np.zeros((6, 4), np.float32)})
            while True:
                try:
                    client.wait(1)
                except EchoTimeoutError as error:
                    if "the learner says" in str(error):
                        raise
        finally:
            with suppress(EchoTimeoutError):
                client.close(0)


MISTAKES: dict[str, Callable[[], object]] = {
    "nobody listens": lambda: Client(f"tcp://127.0.0.1:{free_port()}", EXAMPLE, **WORKER),
    "the wildcard": lambda: Client(f"tcp://0.0.0.0:{free_port()}", EXAMPLE, **WORKER),
    "no such machine": lambda: Client("tcp://learner.invalid:5555", EXAMPLE, token="any-token-that-is-long-enough", **WORKER),
    "no scheme": lambda: Client("127.0.0.1:5555", EXAMPLE),
    "no port": lambda: Client("tcp://127.0.0.1", EXAMPLE),
    "misspelt transport": lambda: Client("tpc://127.0.0.1:5555", EXAMPLE),
    "misspelt sampler": lambda: Server(EXAMPLE, 2, sampler="priorized", capacity=10),
    "another dtype": lambda: server_at(lambda server: Client(server.address, {"obs": np.zeros(4)}, **WORKER)),
    "another leaf": lambda: server_at(lambda server: Client(server.address, {"observation": EXAMPLE["obs"]}, **WORKER)),
    "a sample's dtype": lambda: worker_of(lambda client: client.send({"obs": np.zeros(4)})),
    "a sample's shape": lambda: worker_of(lambda client: client.send({"obs": np.zeros(5, np.float32)})),
    "a sample on a GPU": lambda: worker_of(lambda client: client.send({"obs": Tensor()})),
    "port in use": lambda: server_at(lambda server: Server(EXAMPLE, 2, str(server.address)).start()),
    "wrong token": lambda: server_at(lambda server: Client(server.address, EXAMPLE, token="somebody-elses-long-enough", **WORKER)),
    "no token": lambda: server_at(lambda server: Client(server.address, EXAMPLE, auth=False, **WORKER)),
    "no token for another machine": tokenless,
    "exposed": lambda: Server(EXAMPLE, 2, "tcp://0.0.0.0:0?auth=false").start(),
    "job ended": lambda: gone(until_lost, restarting=False),
    "server gone": lambda: gone(until_lost),
    "server gone, closing": lambda: gone(lambda client: client.close(5)),
    "no workers": lambda: server_at(lambda server: server.sample(timeout=0.1)),
    "no weights": unpublished,
    "no learner": lambda: server_at(too_much),
    "a limiter": held,
    "hoarding": lambda: server_at(hoarding),
}


def said(error: BaseException) -> str:
    """As Python shows it, with the page's port and as if only these plugins were installed."""
    text = re.sub(r"(127\.0\.0\.1|0\.0\.0\.0):\d+", r"\1:5555", f"{type(error).__name__}: {error}")
    text = text.replace("192.0.2.7", "10.0.0.2")
    text = re.sub(r"sport = :\d+", "sport = :5555", text)
    text = re.sub(r"\(installed: [^)]*\btcp\b[^)]*\)", "(installed: shm, tcp, tcps)", text)
    return re.sub(r"\(installed: [^)]*\buniform\b[^)]*\)", "(installed: fifo, hot_cold, lifo, max_heap, min_heap, prioritized, uniform)", text)


def shown() -> list[str]:
    return [block.rstrip("\n") for block in re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.M | re.S)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_page_says_what_is_said(mistake: str) -> None:
    with pytest.raises(Exception) as caught:
        MISTAKES[mistake]()
    assert said(caught.value) in shown(), said(caught.value)


def test_a_transport_that_is_not_installed_is_named_with_its_command(tmp_path: Path) -> None:
    """In a Python without plugins every known one is missing."""
    program = """
        from echo_core.plugins import discovery
        everything = discovery.provided
        discovery.provided = lambda group: [] if group == "echo.transports" else everything(group)
        try:
            discovery.transport_class("rdma")
        except ImportError as error:
            print(f"{type(error).__name__}: {error}")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.rstrip("\n") in shown(), done.stdout


def test_the_page_shows_nothing_else() -> None:
    assert len(shown()) == len(MISTAKES) + 1 == len(set(shown()))
