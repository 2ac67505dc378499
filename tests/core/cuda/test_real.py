"""The same with a GPU, where there is one and torch or cupy can use it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.spec.cuda import driver

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")

EXAMPLE = {"obs": np.zeros((64, 1000), np.float32), "action": np.zeros(3, np.int64)}


@pytest.fixture(params=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Any:
    if driver() is None:
        pytest.skip("no CUDA driver with a device")
    try:
        module = importlib.import_module(request.param)
        usable = module.cuda.is_available()
    except ImportError as error:
        pytest.skip(str(error))
    if not usable:
        pytest.skip(f"{request.param} cannot use CUDA here")
    return module


def there(library: Any, number: int) -> dict[str, Any]:
    """Made by work that is still under way on a stream of its own."""
    if library.__name__ == "torch":
        with library.cuda.stream(library.cuda.Stream()):
            obs = library.zeros((64, 1000), device="cuda")
            for _ in range(200):
                obs += 1
            return {"obs": obs + number, "action": library.full((3,), number, dtype=library.int64, device="cuda")}
    with library.cuda.Stream(non_blocking=True):
        obs = library.zeros((64, 1000), "float32")
        for _ in range(200):
            obs += 1
        return {"obs": obs + number, "action": library.full(3, number, "int64")}


def check(batch: Any) -> None:
    assert (batch["obs"] == 200 + np.arange(4, dtype=np.float32)[:, None, None]).all()
    assert (batch["action"] == np.arange(4)[:, None]).all()


def test_into_a_page_locked_store_and_back(library: Any) -> None:
    with Server(EXAMPLE, 4, pinned=True) as server:
        for number in range(4):
            server.submit(there(library, number))
        one = server.sample(timeout=30)
        assert one is not None
        check(one.batch)
        if library.__name__ == "torch":
            tensor = library.from_numpy(one.batch["obs"])
            assert tensor.is_pinned()
            assert (tensor.to("cuda", non_blocking=True).cpu().numpy() == one.batch["obs"]).all()


def test_over_tcp(library: Any) -> None:
    token = "the-token-of-these-tests-long-enough"
    with Server(EXAMPLE, 4, "tcp://127.0.0.1:0", token=token) as server, Client(server.address, EXAMPLE, token=token) as client:
        for number in range(4):
            client.send(there(library, number))
        one = server.sample(timeout=30)
        assert one is not None
        check(one.batch)
