"""`echoctl es`: a search run by its commands, watched, and read from its log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

click = pytest.importorskip("click", reason="click is not installed")

from click.testing import CliRunner  # noqa: E402

from echo_core import CheckpointError, ConfigError  # noqa: E402
from echo_es.commands.group import command  # noqa: E402
from echo_es.log import EpochLog, read_log  # noqa: E402
from echo_testing.ports import free_port  # noqa: E402
from echo_testing.processes import until  # noqa: E402

pytestmark = pytest.mark.needs("echo-tcp")
WAIT = 60
PROGRAM = "import sys; from echo_es.commands.group import command; sys.exit(command(sys.argv[1:], standalone_mode=False))"
SEARCH = """
import time
import numpy as np
from echo_es import Eval, Experiment, Worker
from echo_es.strategies import SepCMAES

def evaluate(thetas, epoch):
    time.sleep(0.02)
    return -np.sum((thetas - 1.0) ** 2, axis=1)

class Counting(Worker):
    def initialize(self):
        return {"epochs": 0}

    def evaluate(self, epoch, slices):
        return Eval.from_flat(slices, [1.0 for part in slices for _ in range(part.start, part.stop)])

    def optimize(self, epoch, rewards):
        return {"epochs": self.state["epochs"] + 1}

def experiments():
    return {"server": Experiment(strategy=SepCMAES(4, 8), max_epochs=5), "workers": Experiment(6, max_epochs=4)}
"""


def call(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return str(result.output)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command as a process of its own, in this folder."""
    (folder / "my_search.py").write_text(SEARCH)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def address(folder: Path, server: subprocess.Popen[str]) -> str:
    file, deadline = folder / "address", time.monotonic() + WAIT
    while not file.exists():
        assert server.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return file.read_text().strip()


def test_a_search_is_run_watched_ended_and_resumed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = ("--transport", f"tcp://127.0.0.1:{free_port()}", "--address-file", "address")
    search = ("--strategy", "SepCMAES", "--dims", "4", "--population", "8", "--set", "sigma=0.5", "--max-epochs", "40")
    serve = ("serve", *place, *search, "--log", "search.log", "--result", "theta.npy")
    with running(tmp_path, *serve) as server:
        where = address(tmp_path, server)
        with running(tmp_path, "worker", "my_search:evaluate", where, "--cores", "3", "--name", "able") as worker:
            deadline = time.monotonic() + WAIT
            while not (status := json.loads(call("status", where, "--json"))["experiments"][0])["last_epoch"]:
                assert time.monotonic() < deadline
            assert [one["name"] for one in status["workers"]] == ["able"] and status["strategy"] == "SepCMAES"
            shown = call("status", where, "--count", "2", "--interval", "0.05")
            assert shown.count("default (SepCMAES): epoch") == 2 and re.search(r"able +3 +evaluate", shown)
            server.send_signal(signal.SIGTERM)
            assert server.wait(WAIT) == 0
            assert re.search(r"default: \d+ epochs, best reward -", server.communicate()[0])
            done = len(read_log(tmp_path / "search.log").epochs)
            assert 0 < done < 40 and not (tmp_path / "address").exists()
            with running(tmp_path, *serve) as second:  # the worker comes back to it; there is no other
                assert second.wait(WAIT) == 0 and worker.wait(WAIT) == 0
    found = read_log(tmp_path / "search.log")
    assert [epoch for epoch, _ in found.epochs] == list(range(1, 41))
    np.testing.assert_allclose(np.load(tmp_path / "theta.npy"), 1.0, atol=0.2)
    with running(tmp_path, *serve) as third:
        assert third.wait(WAIT) == 0
    assert "the search of search.log is over already; a larger --max-epochs goes on" in capfd.readouterr().err


def test_ctrl_c_ends_the_job(tmp_path: Path) -> None:
    serve = ("serve", "--strategy", "SepCMAES", "--dims", "4", "--population", "8", "--log", "search.log", "--address-file", "address")
    with running(tmp_path, *serve) as server:
        where = address(tmp_path, server)
        with running(tmp_path, "worker", "my_search:evaluate", where, "--reconnect", str(10 * WAIT)) as worker:
            until(lambda: json.loads(call("status", where, "--json"))["experiments"][0]["last_epoch"], "an epoch is complete", WAIT)
            server.send_signal(signal.SIGINT)
            assert server.wait(WAIT) == 0 and worker.wait(WAIT) == 0


def test_several_experiments_of_a_module(tmp_path: Path) -> None:
    with running(tmp_path, "serve", "my_search:experiments", "--address-file", "address", "--metrics-port", "0", "--json") as server:
        where = address(tmp_path, server)
        assert server.stdout is not None
        begun = json.loads(server.stdout.readline())
        assert begun["address"] == where and begun["experiments"] == ["server", "workers"]
        with urllib.request.urlopen(begun["metrics"], timeout=WAIT) as page:
            figures = page.read().decode()
        assert "echo_es_server_epoch 1" in figures and "echo_es_workers_evaluations_total 0" in figures
        first = ("worker", "my_search:evaluate", where, "--experiment", "server", "--cores", "8")
        second = ("worker", "my_search:Counting", where, "--experiment", "workers", "--cores", "3")
        with running(tmp_path, *first) as one, running(tmp_path, *second) as other:
            assert server.wait(WAIT) == 0 and one.wait(WAIT) == 0 and other.wait(WAIT) == 0
        reports = [json.loads(line) for line in server.communicate()[0].splitlines()]
    assert [(report["experiment"], report["last_epoch"]["epoch"]) for report in reports] == [("server", 5), ("workers", 4)]


def test_a_log_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EpochLog(path, {"experiment": "default", "population": 2, "mode": "epochs"})
    for epoch in range(1, 13):
        log.epoch(epoch, np.array([epoch, 3.0 * epoch]))
    log.test(12, np.array([5.0, 7.0]))
    log.part(13, (slice(1, 2),), np.array([1.0]))
    log.close()
    shown = call("log", str(path), "--last", "2")
    assert "epochs: 12 complete, and 1 rewards of the next one" in shown
    assert "best: 36 in epoch 12, individual 1" in shown and "tests: 1; the last one after epoch 12, mean 6 of 2 episodes" in shown
    assert shown.splitlines()[-2:] == ["11     22    33    2", "12     24    36    2"]
    told: dict[str, Any] = json.loads(call("log", str(path), "--json", "--last", "0"))
    assert [epoch["mean"] for epoch in told["epochs"]] == [2.0 * epoch for epoch in range(1, 13)]
    path.write_bytes(path.read_bytes()[:-5])
    assert "bytes are no whole record" in call("log", str(path))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        call("log", str(path))


def test_a_log_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    log = EpochLog(tmp_path / "log", {"experiment": "default", "population": 2, "mode": "steady"})
    log.part(1, (slice(0, 5),), np.arange(5.0))
    log.close()
    shown = call("log", str(tmp_path / "log"), "--plot", str(tmp_path / "learning.png"))
    assert "epochs: 2 complete" in shown and (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_benchmark_has_figures() -> None:
    figures = json.loads(call("bench", "--workers", "2", "--seconds", "0.2", "--json"))
    assert figures["workers"] == 2 and figures["tasks_per_s"] > 0 and figures["cpus"] == os.cpu_count()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serve", "--strategy", "SepCMAES"), "needs --dims and --population"),
        (("serve", "--population", "4", "--dims", "3"), "belong to a strategy"),
        (("serve", "--strategy", "PGPE", "--dims", "3", "--population", "4", "--set", "sigma"), "give NAME=VALUE"),
        (("serve", "--strategy", "None", "--dims", "3", "--population", "4"), "there is no 'None'; choose one of"),
        (("serve", "os:getcwd"), "must return an Experiment, or a dict of them by name, not str"),
        (("serve", "os:getcwd", "--population", "4"), "SEARCH describes everything"),
        (("serve", "--population", "4", "--result", "x.npy"), "only a server with one experiment that has a strategy"),
        (("serve",), "population must be a whole number from 1"),
        (("worker", "os", "tcp://127.0.0.1:1"), "give package.module:name"),
        (("worker", "tcp://127.0.0.1:1", "os:sep"), "give package.module:name"),
        (("worker", "os:nothing", "tcp://127.0.0.1:1"), "has no attribute 'nothing'"),
        (("worker", "os:sep", "tcp://127.0.0.1:1"), "must be a function or a class"),
    ],
)
def test_arguments_without_meaning_are_refused(arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        call(*arguments)
