"""The main job, run for real: gradients, learning, a killed worker, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")
psutil = pytest.importorskip("psutil")

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from echo_core import Client, EchoError, Server  # noqa: E402
from echo_core.wire.peer import Peer  # noqa: E402
from echo_testing.ports import free_port  # noqa: E402
from examples.cartpole import algorithm, monitor, network, rollout, worker  # noqa: E402
from examples.cartpole.job import open_server  # noqa: E402
from examples.cartpole.options import Options  # noqa: E402

# ---- the algorithm ----------------------------------------------------------------------------


def test_gradient_is_that_of_the_loss(assert_gradient: Callable[..., None]) -> None:
    """Every hand-written derivative against central differences, in float64."""
    rng = np.random.default_rng(3)
    net = network.ActorCritic(4, 2, hidden=(5, 3), seed=1, dtype=np.float64)
    net.flat += 0.3 * rng.standard_normal(net.flat.size)
    observations = rng.standard_normal((12, 4))
    actions = rng.integers(0, 2, 12)
    # Behaviour from well below to well above the policy, so that clipping is on both ways.
    behaviour = net.log_probs(observations)[np.arange(12), actions] + rng.uniform(-0.6, 0.6, 12)
    advantages, targets = rng.standard_normal(12), rng.standard_normal(12)
    settings = replace(algorithm.Settings(), entropy_cost=0.1)

    def loss() -> float:
        return algorithm.loss_and_gradient(
            net, observations, actions, behaviour, advantages, targets, settings
        )[0]

    loss()
    gradient = net.gradient.copy()
    assert_gradient(net.flat, gradient, loss)


def test_vtrace_on_policy_is_the_discounted_return() -> None:
    """With trace 1 and ratios 1 the target is the return itself, bootstrapped at a cut."""
    rewards = np.ones((1, 4))
    valid = np.ones((1, 4), bool)
    values = np.array([[0.3, -0.2, 0.7, 0.1, 5.0]])
    none = np.zeros((1, 4), bool)
    targets, advantages = algorithm.vtrace(
        values, rewards, none, valid, np.ones((1, 4)), discount=0.9, trace=1.0
    )
    expected = 1 + 0.9 * (1 + 0.9 * (1 + 0.9 * (1 + 0.9 * 5.0)))
    assert targets[0, 0] == pytest.approx(expected)
    assert advantages[0, 0] == pytest.approx(expected - 0.3)

    ended = none.copy()
    ended[0, 1] = True  # nothing after the end counts, and the reset step teaches nothing
    valid[0, 2] = False
    targets, advantages = algorithm.vtrace(
        values, rewards, ended, valid, np.ones((1, 4)), discount=0.9, trace=1.0
    )
    assert targets[0, 0] == pytest.approx(1.9)
    assert targets[0, 1] == pytest.approx(1.0)
    assert advantages[0, 2] == 0.0


def test_rollouts_follow_the_environment() -> None:
    """Reset steps are marked, returns count whole episodes, samples match the contract."""
    rollouts = rollout.Rollouts(count=8, steps=200, seed=5)
    net = network.ActorCritic(4, 2)
    try:
        batch = rollouts.collect(net.actor, version=7)
    finally:
        rollouts.close()
    for key, leaf in rollout.example(200).items():
        assert batch[key].dtype == leaf.dtype and batch[key].shape == (8, *leaf.shape)
    ended = ~np.isnan(batch["episode_return"])
    assert ended.any()
    assert (batch["valid"][:, 1:] == ~ended[:, :-1]).all()
    assert (batch["reward"] == batch["valid"]).all()  # one per real step, none for a reset
    for env in range(8):
        first = int(np.flatnonzero(ended[env])[0])
        assert batch["episode_return"][env, first] == batch["reward"][env, : first + 1].sum()
    assert (batch["version"] == 7).all()


# ---- the whole job ----------------------------------------------------------------------------


class Job:
    """`python -m examples.cartpole` in a session of its own, as a shell would start it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.plot = folder / "plots" / "cartpole.png"
        self.output = folder / "output.txt"
        environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(folder / "config"),  # its own token, not the user's
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop("ECHO_TOKEN", None)
        environment.pop("ECHO_TOKEN_FILE", None)
        command = [sys.executable, "-m", "examples.cartpole", "--plot", str(self.plot), *arguments]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in what a shell starts with "&"
            )
        self.seen: set[int] = set()

    @property
    def text(self) -> str:
        return self.output.read_text()

    def workers(self) -> list[psutil.Process]:
        """The job's worker processes: its children, less Python's resource tracker."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        workers = []
        for child in children:
            self.seen.add(child.pid)
            try:
                if "spawn_main" in " ".join(child.cmdline()):
                    workers.append(child)
            except psutil.Error:
                pass  # ended while we looked
        return workers

    def until(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Wait until the output matches; the deadline only bounds a broken run."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.text, re.MULTILINE):
                return match
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        pytest.fail(f"never saw {pattern!r} in:\n{self.text}")

    def end(self, seconds: float = 60.0) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def left_behind(self) -> list[int]:
        """Processes of the job that are still there once it has ended."""
        deadline = time.monotonic() + 10.0
        while alive := [pid for pid in self.seen if _running(pid)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return alive

    def stop(self) -> None:
        """Whatever happened, nothing of it stays."""
        if self.process.poll() is None:
            self.workers()
            self.process.kill()
            self.process.wait()
        for pid in self.left_behind():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    jobs: list[Job] = []

    def starter(*arguments: str) -> Job:
        jobs.append(Job(tmp_path, *arguments))
        return jobs[-1]

    yield starter
    for job in jobs:
        job.stop()


def test_it_learns_over_the_network(start) -> None:  # type: ignore[no-untyped-def]
    """Two workers, the real transport: far above the 22 of a random policy within seconds."""
    job = start("--workers", "2", "--seconds", "45", "--target", "150", "--hold", "0")
    job.until(r"return +\d")
    assert len(job.workers()) == 2
    assert job.end() == 0, job.text
    reached = float(re.search(r"mean return ([\d.]+) over the last 100", job.text)[1])  # type: ignore[index]
    assert reached > 60
    versions = int(re.search(r"down: ([\d,]+) policy versions", job.text)[1].replace(",", ""))  # type: ignore[index]
    assert versions > 10
    assert job.plot.read_bytes().startswith(b"\x89PNG")
    assert job.left_behind() == []


def test_a_killed_worker_is_noticed_and_respawned(start) -> None:  # type: ignore[no-untyped-def]
    job = start("--workers", "2", "--seconds", "60", "--target", "0", "--no-plot")
    job.until(r"return +[1-9]")
    victim = job.workers()[0]
    victim.send_signal(signal.SIGKILL)
    job.until(r"worker-\d died: killed by SIGKILL")
    fresh = int(job.until(r"respawned as pid (\d+)")[1])
    assert fresh != victim.pid
    assert {worker.pid for worker in job.workers()} >= {fresh}
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.text
    assert job.left_behind() == []


def test_ctrl_c_ends_it_cleanly(start) -> None:  # type: ignore[no-untyped-def]
    """To the whole process group, as a terminal sends it: summary, plot, no stray process."""
    job = start("--workers", "2", "--seconds", "60", "--target", "0")
    job.until(r"return +[1-9]")
    assert len(job.workers()) == 2
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.end() == 130, job.text
    assert "interrupted after" in job.text
    assert "Traceback" not in job.text
    assert job.plot.exists()
    assert job.left_behind() == []


def test_workers_end_when_the_learner_is_killed(start) -> None:  # type: ignore[no-untyped-def]
    job = start("--workers", "2", "--seconds", "60", "--target", "0", "--no-plot")
    job.until(r"return +[1-9]")
    assert len(job.workers()) == 2
    job.process.kill()
    job.end()
    assert job.left_behind() == []


@pytest.mark.needs("echoctl")
def test_prometheus_finds_figures_at_the_port(start) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    job = start("--workers", "1", "--seconds", "60", "--target", "0", "--no-plot", "--metrics-port", str(port))
    job.until(r"return +[1-9]")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert re.search(r"^echo_store_samples_inserted_total [1-9]", answer.read().decode(), re.M)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.text


def test_it_says_what_is_wrong(start) -> None:  # type: ignore[no-untyped-def]
    job = start("--transport", "tpc")
    assert job.end() == 2
    assert "did you mean 'tcp'" in job.text
    assert "Traceback" not in job.text


@pytest.mark.parametrize("name", ["tcp", "grpc"])
def test_several_demos_of_one_transport_find_ports_of_their_own(name: str) -> None:
    pytest.importorskip(f"echo_{name}")
    with open_server(Options(transport=name)) as one, open_server(Options(transport=name)) as other:
        assert one.address.scheme == other.address.scheme == name and one.port != other.port


def test_workers_wait_also_while_they_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over shared memory, `send_batch` itself waits for space (for `patience` seconds). This wait counts as the others do."""
    pytest.importorskip("echo_shm")
    monkeypatch.setattr(worker.Client, "from_config", lambda *_, address, name: Client(address, rollout.example(4), name=name, patience=10.0))
    options, stop, waits = Options(envs=4, steps=4), threading.Event(), []
    with Server(rollout.example(4), 4, f"shm://{tmp_path}/echo.sock", num_buffers=2) as server:
        server.publish({"actor": network.ActorCritic(4, 2, seed=0).actor})

        def work() -> None:
            with suppress(EchoError):  # the learner closes while it sends
                worker._work(stop, str(server.address), 0, 0, options)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(8):  # the first of them find space
            waits.append(server.sample(60).batch["waited"].mean())
            time.sleep(0.3)  # much longer than rollouts of four steps take
        stop.set()
        server.close()
        thread.join()
    assert waits[-1] > 0.7, waits


def test_a_worker_that_waits_again_and_again_is_shown_since_the_first_time(tmp_path: Path) -> None:
    view = monitor.Monitor(Options(), 1)
    peer = Peer(id="", name="worker-0", address="", state="waiting for space", state_since=5.0)
    assert view._since("worker-0", peer) == 5.0
    peer.state_since = 9.0  # it got some space, and waits again
    assert view._since("worker-0", peer) == 5.0
    peer.state, peer.state_since = "streaming", 11.0
    assert view._since("worker-0", peer) == 11.0
