"""AsyncRunner: collectors are watched, told apart, started again and ended, and none outlives its learner."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import runners

from echo_core.base.errors import ClosedError, ConfigError
from echo_ipc import AsyncRunner, Cell, CollectorDiedError, Ring, RolloutRingBuffer, Rows, SharedWeightSync, _native
from echo_ipc.async_runner import _SPAWN_CTX


def until_dead(runner: AsyncRunner) -> None:
    for process in runner._processes():
        process.join(60)


def test_what_it_was_made_with() -> None:
    with runners.runner(num_envs=7, sim_backend="x", collector_device="y") as runner:
        assert (runner.env_name, runner.device, runner.collector_device, runner.sim_backend, runner.num_envs) == ("Env", "cpu", "y", "x", 7)
        runner.trace_recorder, runner.trace_thread_time = object(), True
        assert runner._check_collector_alive() and runner._collector_process is None
    with pytest.raises(TypeError, match="abstract"):
        AsyncRunner("Env", {}, {})  # type: ignore[abstract]
    with pytest.raises(ConfigError, match="restart must be one of never, on_crash"):
        runners.runner(restart="always")
    with pytest.raises(ConfigError, match="num_collectors"):
        runners.runner(num_collectors=0)


@pytest.mark.parametrize("count", [1, 2])
def test_collectors_get_their_arguments_and_obey(count: int) -> None:
    runner, answers = runners.runner(num_collectors=count), _SPAWN_CTX.Queue()
    runner._start_collector(runners.obey, {"stop_event": runner._stop_event, "answers": answers, "token": "ok"})
    found = [answers.get(timeout=60) for _ in range(count)]
    wanted: list[dict[str, Any]] = [{"token": "ok"}] if count == 1 else [{"token": "ok", "collector_index": index} for index in range(2)]
    assert sorted(found, key=str) == wanted and runner._check_collector_alive()
    runner.close()
    runner.close()
    assert [process.exitcode for process in runner._processes()] == [0] * count
    with pytest.raises(ClosedError):
        runner._start_collector(runners.obey, {})
    answers.close()
    answers.join_thread()


def test_a_traceback_of_any_size_arrives_and_everybody_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner, metrics = runners.runner(), _SPAWN_CTX.Queue()
    runner._start_collector(runners.fail, {"stop_event": runner._stop_event, "size": 300_000, "metrics_queue": metrics})
    until_dead(runner)
    assert not runner._check_collector_alive() and not runner._check_collector_alive() and runner._stop_event.is_set()
    text = runner._read_collector_error()
    assert "Traceback" in text and "ValueError: " + "x" * 300_000 in text
    assert capsys.readouterr().err.count("ValueError: ") == 1, "it is said once"
    with pytest.raises(CollectorDiedError, match="ValueError"):
        runner.learn(5, log_dir=str(tmp_path))
    runner.close()
    metrics.close()
    metrics.join_thread()


def test_an_error_in_an_import_is_told_too() -> None:
    runner = runners.runner()
    runner._start_collector(runners.obey, {"stop_event": runner._stop_event, "env": runners.CannotBeImported()})
    until_dead(runner)
    assert "ImportError: no module named simulator" in runner._read_collector_error()
    runner.close()


def test_one_that_fails_is_started_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = runners.runner(restart="on_crash")
    runner._start_collector(runners.fail_once, {"stop_event": runner._stop_event, "marker": str(tmp_path / "marker")})
    until_dead(runner)
    assert runner._check_collector_alive() and runner.restarts == 1 and not runner._stop_event.is_set()
    assert "the first one fails" in capsys.readouterr().err
    assert runner._collector_process.is_alive() and runner._check_collector_alive() and runner.restarts == 1
    runner.close()
    assert runner._collector_process.exitcode == 0


def test_one_that_always_fails_is_given_up() -> None:
    runner = runners.runner(restart="on_crash")
    runner._start_collector(runners.fail, {"stop_event": runner._stop_event})
    runner._restarted[runner._collectors[0]] = [time.monotonic()] * 10
    until_dead(runner)
    assert not runner._check_collector_alive() and runner.restarts == 0
    runner.close()


def refuse(process: Any) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_start_that_the_system_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("echo_ipc.async_runner.AGAIN_SECONDS", 3600)
    runner = runners.runner(restart="on_crash")
    runner._start_collector(runners.fail_once, {"stop_event": runner._stop_event, "marker": str(tmp_path / "marker")})
    until_dead(runner)
    with monkeypatch.context() as patch:
        patch.setattr(_SPAWN_CTX.Process, "start", refuse)
        assert runner._check_collector_alive() and runner._check_collector_alive() and runner.restarts == 0
    text = capsys.readouterr().err
    assert text.count("could not be started again ([Errno 24] Too many open files); try 1 of 10") == text.count("could not be started") == 1
    assert "the first one fails" in runner._read_collector_error(), "the error of the one that failed is kept"
    monkeypatch.setattr("echo_ipc.async_runner.AGAIN_SECONDS", 0)
    assert runner._check_collector_alive() and runner.restarts == 1 and runner._collector_process.is_alive()
    runner.close()
    assert runner._collector_process.exitcode == 0


def test_close_ends_everything_after_a_start_that_was_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("echo_ipc.async_runner.AGAIN_SECONDS", 0)
    runner, resource = runners.runner(restart="on_crash", num_collectors=2), Resource()
    runner._shared_resources.append(resource)
    runner._start_collector(runners.first_fails, {"stop_event": runner._stop_event})
    runner._collector_process.join(60)
    with monkeypatch.context() as patch:
        patch.setattr(_SPAWN_CTX.Process, "start", refuse)
        assert [runner._check_collector_alive() for _ in range(11)] == [True] * 10 + [False]
    assert "has failed 10 times in 10 minutes and is not started again" in capsys.readouterr().err
    runner.close()
    assert [process.exitcode for process in runner._processes()] == [1, 0] and resource.count == 1


def test_close_gives_everything_back_although_a_process_of_a_subclass_was_never_started() -> None:
    runner, resource = runners.runner(), Resource()
    runner._shared_resources.append(resource)
    runner._start_collector(runners.obey, {"stop_event": runner._stop_event})
    runner._collector_process = _SPAWN_CTX.Process(target=runners.obey, args=(runner._stop_event,), daemon=True)
    runner.close()
    assert resource.count == 1 and runner._collectors[0].process.exitcode == 0


def test_ctrl_c_while_a_collector_is_started_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, started, start = runners.runner(), list[Any](), _SPAWN_CTX.Process.start

    def interrupted(process: Any) -> None:
        start(process)
        started.append(process)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_SPAWN_CTX.Process, "start", interrupted)
        runner._start_collector(runners.obey, {"stop_event": runner._stop_event})
    assert started[0].exitcode == -signal.SIGKILL
    runner.close()


def test_one_that_is_deaf_is_killed() -> None:
    runner, ready = runners.runner(stop_timeout=0.1, term_timeout=0.1), _SPAWN_CTX.Event()
    runner._start_collector(runners.be_deaf, {"stop_event": runner._stop_event, "ready": ready})
    assert ready.wait(60)
    runner.close()
    assert runner._collector_process.exitcode == -signal.SIGKILL


def test_one_that_waits_for_room_is_let_go() -> None:
    ring, full = RolloutRingBuffer(1, 1, 1, 1, policy="block"), _SPAWN_CTX.Event()
    runner = runners.runner(stop_timeout=60)
    runner._shared_resources.append(ring)
    runner._start_collector(runners.fill_the_ring, {"stop_event": runner._stop_event, "ring": ring, "full": full})
    assert full.wait(60)
    runner.close()
    assert runner._collector_process.exitcode == 0


def test_a_process_of_a_subclass() -> None:
    runner = runners.runner()
    runner._collector_process = _SPAWN_CTX.Process(target=runners.obey, args=(runner._stop_event,), daemon=True)
    runner._collector_process.start()
    assert runner._check_collector_alive()
    runner.close()
    assert runner._collector_process.exitcode == 0 and not runner._check_collector_alive()


class Resource:
    def __init__(self, error: Exception | None = None) -> None:
        self.count, self.error = 0, error

    def close(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


def test_every_resource_is_given_back_once() -> None:
    runner = runners.runner()
    runner._shared_resources += [Resource(ValueError("first")), Resource(KeyError("second")), Resource()]
    with pytest.raises(ValueError, match="first"):
        runner.close()
    runner.close()
    assert [resource.count for resource in runner._shared_resources] == [1, 1, 1]


def test_a_wait_for_rollouts_ends_with_the_collectors() -> None:
    ring = RolloutRingBuffer(1, 1, 1, 1)
    runner = runners.runner()
    runner._shared_resources.append(ring)
    runner._start_collector(runners.write_rollouts_and_die, {"ring": ring, "count": 2})
    found = 0
    with pytest.raises(CollectorDiedError, match="SIGKILL"):
        while ring.wait_for_data(timeout=600):
            ring.advance_read()
            found += 1
    assert found == 2
    runner.close()


def test_every_wait_of_the_learner_ends_with_the_cause() -> None:
    """The collectors fail before they have touched anything."""
    ring, cell, rows = Ring({"x": ((), "int64")}, 2), Cell({"x": ((), "int64")}), Rows({"x": ((), "int64")}, 9)
    sync = SharedWeightSync({"w": (2,)})
    runner = runners.runner(num_collectors=2)
    runner._shared_resources += [ring, cell, rows, sync]
    runner._start_collector(runners.first_fails, {"stop_event": runner._stop_event})
    for wait in (ring.take, ring.wait, cell.read, cell.wait, rows.wait, sync.wait_for_version):
        arguments = {"newer_than": 0} if wait == cell.read else {"version": 1} if wait == sync.wait_for_version else {}
        with pytest.raises(CollectorDiedError, match="ValueError: the first one fails"):
            wait(timeout=600, **arguments)  # type: ignore[operator]
    runner.close()


def test_a_wait_starts_a_collector_again(tmp_path: Path) -> None:
    ring = Ring({"x": ((), "int64")}, 2)
    runner = runners.runner(restart="on_crash")
    runner._shared_resources.append(ring)
    runner._start_collector(runners.fail_once_then_put, {"stop_event": runner._stop_event, "ring": ring, "marker": str(tmp_path / "marker")})
    with ring.take(timeout=600) as slot:
        assert slot.arrays["x"] == 7
    assert runner.restarts == 1
    runner.close()


@pytest.mark.parametrize("what", ["claim", "take", "version", "rows"])
def test_a_collector_that_waits_ends_quietly_when_the_learner_closes(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    ring, cell, rows = Ring({"x": ((), "int64")}, 1, policy="block"), Cell({"x": ((), "int64")}), Rows({"x": ((), "int64")}, 9)
    runner, ready = runners.runner(stop_timeout=600), _SPAWN_CTX.Event()
    runner._shared_resources += [ring, cell, rows]
    runner._start_collector(runners.wait_for, {"stop_event": runner._stop_event, "what": what, "ring": ring, "cell": cell, "rows": rows, "ready": ready})
    assert ready.wait(60)
    runner.close()
    assert runner._collector_process.exitcode == 0 and "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_one_that_is_stopped_or_killed_while_it_waits_for_the_end_does_not_hold_up_close(how: signal.Signals) -> None:
    runner, answers = runners.runner(stop_timeout=600), _SPAWN_CTX.Queue()
    runner._start_collector(runners.obey, {"stop_event": runner._stop_event, "answers": answers})
    answers.get(timeout=60)
    time.sleep(0.2)  # it is most likely waiting by now
    os.kill(runner._collector_process.pid, how)
    runner.close()
    assert runner._collector_process.exitcode == (0 if how == signal.SIGSTOP else -how)
    answers.close()
    answers.join_thread()


def a_function_of_a_test(stop_event: Any) -> None:
    stop_event.wait(60)


def test_what_cannot_be_spawned_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runners.runner()
    with pytest.raises(ConfigError, match=r"the collector .*<lambda> cannot be handed .* at the top level of a module"):
        runner._start_collector(lambda stop_event: None, {"stop_event": runner._stop_event})
    with pytest.raises(ConfigError, match="the argument 'env' of the collector cannot be handed"):
        runner._start_collector(runners.obey, {"stop_event": runner._stop_event, "env": lambda: None})
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    monkeypatch.setattr(a_function_of_a_test, "__module__", "__main__")
    with pytest.raises(ConfigError, match="the collector a_function_of_a_test is defined in a notebook"):
        runner._start_collector(a_function_of_a_test, {"stop_event": runner._stop_event})
    monkeypatch.undo()
    runner.close()


@pytest.mark.parametrize("end", ["crash", "close"])
def test_what_a_collector_has_started_ends_with_it(end: str) -> None:
    runner, answers = runners.runner(), _SPAWN_CTX.Queue()
    runner._start_collector(runners.start_another, {"stop_event": runner._stop_event, "answers": answers, "crash": end == "crash"})
    pid, started = answers.get(timeout=60)
    if end == "crash":
        until_dead(runner)
        assert not runner._check_collector_alive()
    else:
        assert _native.is_alive(pid, started)
        runner.close()
    until_gone({pid: started})
    runner.close()
    answers.close()
    answers.join_thread()


def test_iterations_are_logged_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved: list[int] = []
    with runners.runner() as runner:
        assert runner._iterate(5, 2, str(tmp_path / "run"), lambda number: {"loss": number}, lambda folder, number: saved.append(number)) == 5
        assert saved == [2, 4, 5]
        lines = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
        assert [(line["iteration"], line["loss"]) for line in lines] == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]
        assert "5/5" in capsys.readouterr().err

        def stop(number: int) -> None:
            if number == 3:
                raise StopIteration

        assert runner._iterate(5, 0, str(tmp_path), stop, lambda folder, number: saved.append(number), progress=False) == 3 and saved[3:] == [3]
        assert runner._iterate(2, 1, None, lambda number: None, lambda folder, number: saved.append(number), progress=False) == 2 and saved[4:] == []


def until_gone(started: dict[int, int]) -> None:
    until = time.monotonic() + 60
    while any(_native.is_alive(pid, started[pid]) for pid in started) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_native.is_alive(pid, started[pid]) for pid in started)


@pytest.mark.parametrize("stopped", [False, True])
def test_collectors_and_what_they_have_started_do_not_outlive_their_learner(stopped: bool) -> None:
    learner = subprocess.Popen([sys.executable, runners.__file__], stdout=subprocess.PIPE, text=True)
    assert learner.stdout is not None
    pids = json.loads(learner.stdout.readline())
    started = {pid: _native.start_of(pid) for pid in pids}
    assert len(pids) == 4 and all(_native.is_alive(pid, started[pid]) for pid in pids)
    for pid in pids[:2] if stopped else []:
        os.kill(pid, signal.SIGSTOP)
    learner.kill()
    learner.wait()
    learner.stdout.close()
    until_gone(started)
