"""Workers of a search are started where `[cluster]` of a configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from echo_core import EchoError
from echo_core.base.errors import PluginNotFound
from echo_es import PGPE, ESServer, start_workers
from echo_es.commands.group import command

CONFIG: dict[str, Any] = {"cluster": {"via": "local", "workers": {"min": 2, "restarts": 0}}}


def nearness(thetas: Any, epoch: int) -> Any:
    return -np.square(thetas - 1.0).sum(axis=1)


def fail(thetas: Any, epoch: int) -> Any:
    raise ZeroDivisionError("as this test wants")


def search(epochs: int) -> ESServer:
    return ESServer(transport="tcp://127.0.0.1:0", strategy=PGPE(3, 8, sigma=0.1), max_epochs=epochs)


def test_a_function_and_a_command_work_until_the_search_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_search.py").write_text("def evaluate(thetas, epoch):\n    return -(thetas ** 2).sum(axis=1)\n")
    (tmp_path / "echo.toml").write_text('[cluster]\nvia = "local"\nworkers = { min = 2 }\n')
    monkeypatch.chdir(tmp_path)
    with search(5) as server, start_workers(CONFIG, nearness, server.address) as workers:
        assert server.wait(60) and workers.wait(60)
    with search(5) as server:
        done = CliRunner().invoke(command, ["worker", "my_search:evaluate", str(server.address), "-c", "echo.toml"], standalone_mode=False)
        assert done.return_value == 0 and server.wait(0)


def test_a_worker_leaves_the_search_at_once() -> None:
    with search(0) as server, start_workers(CONFIG, nearness, server.address) as workers:
        for wanted in (2, 1):
            workers.scale(wanted)
            for _ in range(3000):
                if len(server.coordinator.members()) == wanted:
                    break
                assert not server.wait(0.02)
            assert len(server.coordinator.members()) == wanted


def test_workers_that_fail_and_a_launcher_that_is_missing_are_named() -> None:
    with search(5) as server, start_workers(CONFIG, fail, server.address) as workers, pytest.raises(EchoError, match="workers have died"):
        workers.wait(60)
    with pytest.raises(PluginNotFound, match="no launcher named 'lokal'.*did you mean 'local'"):
        start_workers({"cluster": {"via": "lokal"}}, nearness, "tcp://127.0.0.1:1")
