"""Small parameters travel within tasks. A worker evaluates the candidates of exactly the version that its task names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from resumed import DIMS, POPULATION, SEED, strategy

from echo_core import Client, Weights
from echo_core.base.errors import ProtocolError
from echo_es import ESServer, run_worker
from echo_es.experiments.parameters import SMALL, Parameters, received
from echo_es.log import read_log
from echo_es.server import EXAMPLE
from echo_es.strategies import PGPE
from echo_es.workers.link import EchoLink
from echo_testing.ports import free_port

WAIT = 60.0
PARAMS: dict[str, Any] = {"theta": np.arange(5, dtype=np.float32), "empty": np.empty((0, 3)), "swapped": np.arange(3, dtype=">i4"), "seed": np.array(7)}


def test_parameters_arrive_as_they_were_sent() -> None:
    sent = Parameters.of(PARAMS, version=3, weights=4)
    version, params, rest = received(json.loads(json.dumps(sent.description)), sent.data + b"rest")
    assert (version, rest, list(params)) == (3, b"rest", list(PARAMS))
    for name, array in PARAMS.items():
        assert params[name].dtype == array.dtype.newbyteorder("=") and params[name].flags.writeable and params[name].flags.aligned
        np.testing.assert_array_equal(params[name], array, strict=False)
        assert params[name].shape == array.shape


def test_large_parameters_and_other_objects_travel_as_weights() -> None:
    def small(params: Any) -> bool:
        return Parameters.of(params, 1, 2).description is not None

    assert small({"theta": np.zeros(SMALL // 8)}) and not small({"theta": np.zeros(SMALL // 8), "seed": np.array(1)})
    assert not small({"theta": [1.0, 2.0]}) and not small({"names": np.array(["a"], object)})


DAMAGED: list[Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = [
    lambda body, data: (body, data[:-1]),
    lambda body, data: (body, bytes([data[0] ^ 1]) + data[1:]),
    lambda body, data: (body | {"version": 4}, data),
    lambda body, data: (body | {"leaves": [["theta", "<f8", [1]], *body["leaves"][1:]]}, data),
    lambda body, data: (body | {"leaves": 5}, data),
    lambda body, data: (body | {"bytes": "5"}, data),
    lambda body, data: ({}, data),
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_parameters_are_refused(damage: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]) -> None:
    sent = Parameters.of(PARAMS, version=3, weights=4)
    body = json.loads(json.dumps(sent.description))
    with pytest.raises(ProtocolError, match="arrived damaged|malformed"):
        received(*damage(body, sent.data))


@pytest.mark.needs("echo-tcp")
def test_a_task_has_the_parameters_only_if_the_worker_has_another_version() -> None:
    with ESServer(transport="tcp://127.0.0.1:0", strategy=PGPE(2, 8), max_epochs=2) as server, Client(server.address, EXAMPLE) as client:
        client.request("es/join", {"api": 1, "cores": 8})
        version = None

        def ask(**body: Any) -> tuple[dict[str, Any], bytes]:
            answer: tuple[dict[str, Any], bytes] = client.request("es/next", body, timeout=WAIT)
            return answer

        for version in (None, -1, 7):
            answer, blob = ask(version=version)
            assert received(answer["params"], blob)[0] == answer["version"] == 0
        for body in ({"version": 0}, {}):  # `{}` is what a worker sends that knows weights only
            answer, blob = ask(**body)
            assert "params" not in answer and blob == b"" and answer["weights"] == 1
        answer, blob = client.request("es/next", {"done": answer["task"], "version": 0}, bytes(64), timeout=WAIT)
        version, params, _ = received(answer["params"], blob)
        assert version == answer["version"] == 1 and params["generation"] == 1
        assert server.stats()["transport/tcp/weights_sent"] == 0


def test_weights_of_a_server_that_has_ended_are_not_kept() -> None:
    """Its successor goes on from an older copy of the log, and the client may still have the weights that came before."""
    found = [Weights({"default": {"run": "run", "version": version, "params": {"theta": version}}}, version + 1, 0) for version in (8, 3)]

    class Left:
        def weights(self, timeout: float, newer_than: int) -> Weights:
            assert found[0].version > newer_than
            return found.pop(0)

    owner: Any = SimpleNamespace(changed=lambda state: None)
    link = EchoLink(owner, "tcp://127.0.0.1:1", token=None, name=None, reconnect=0.0)
    link._client, link._run, link._joined = Left(), "run", {"experiment": "default", "steady": False}  # type: ignore[assignment]
    assert not link._draw_from(3, 4)
    assert link._draw_from(3, 4) and link._state == {"theta": 3}


@pytest.mark.needs("echo-tcp")
@pytest.mark.timeout(4 * WAIT)
@pytest.mark.parametrize("way", ["within tasks", "as weights"])
def test_a_worker_takes_the_parameters_of_a_server_that_goes_on_from_an_older_copy_of_its_log(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The versions that the worker had before are numbered like those that come, and belong to other rewards."""
    address, log, result = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log", tmp_path / "theta.npy"
    program = [sys.executable, str(Path(__file__).parent / "resumed.py"), "serve", "epochs", address, str(log), str(result)]
    sign = 1.0
    if way == "as weights":
        monkeypatch.setenv("AS_WEIGHTS", "1")

    def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        time.sleep(0.02)
        rewards: np.ndarray[Any, Any] = sign * np.sum(thetas, axis=1)
        return rewards

    def epochs() -> int:
        return len(read_log(log).epochs) if log.exists() else 0

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < deadline, f"the log has {epochs()} epochs"
            time.sleep(0.002)

    worker = threading.Thread(target=run_worker, args=(address, evaluate), kwargs={"cores": POPULATION}, daemon=True)
    server = subprocess.Popen([*program, "1000"])
    try:
        worker.start()
        wait_for(lambda: epochs() >= 3)
        shutil.copy(log, tmp_path / "older")
        wait_for(lambda: epochs() >= 8)
        server.kill()
        server.wait()
        older = read_log(tmp_path / "older")
        shutil.copy(tmp_path / "older", log)
        sign = -1.0
        server = subprocess.Popen([*program, "12"])
        assert server.wait(WAIT) == 0
    finally:
        server.kill()
        server.wait()
    worker.join(WAIT)
    one = strategy()
    state = one.init(np.zeros(DIMS), SEED)
    for epoch, rewards in read_log(log).epochs:
        expected = np.sum(one.ask(state, range(POPULATION)), axis=1) * (1.0 if epoch <= len(older.epochs) else -1.0)
        np.testing.assert_array_equal(rewards, expected)
        state = one.tell(state, rewards)
    assert np.load(result).tobytes() == one.theta(state).tobytes()
