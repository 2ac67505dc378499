"""The traceback of a collector reaches its learner, whatever its size and however the collector ends."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from typing import Any

import pytest

from echo_ipc.collector_error import ErrorWriter, ExceptionWrapper, collector_error_guard, create_error_pipe, format_collector_death

METHODS = ["spawn", "forkserver", "fork"]


def fail(kind: str, conn: ErrorWriter, metrics: Any, stop: Any) -> None:
    sys.stderr = io.StringIO()
    with collector_error_guard(conn, metrics, stop, label="collector 3"):
        if kind == "exit":
            sys.exit(4)
        if kind == "interrupt":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        if kind == "good exit":
            sys.exit(0)
        raise ValueError("x" * int(kind))


@pytest.mark.parametrize("how", METHODS)
def test_a_large_traceback_arrives_whole(how: str) -> None:
    context = multiprocessing.get_context(how)
    reader, writer = create_error_pipe()
    metrics, stop = context.Queue(), context.Event()
    process = context.Process(target=fail, args=("300000", writer, metrics, stop))
    process.start()
    process.join()  # although nobody has read the queue, or the pipe
    assert process.exitcode == 1 and stop.is_set() and reader.poll()
    error = reader.recv()
    assert (error.exc_type, error.where) == ("ValueError", "in collector 3")
    assert error.exc_msg.startswith("Traceback (most recent call last):") and error.exc_msg.rstrip().endswith("ValueError: " + "x" * 300_000)
    assert reader.poll() and reader.recv().exc_msg == error.exc_msg, "it stays there"
    metrics.close()
    metrics.join_thread()
    reader.close()
    writer.close()


@pytest.mark.parametrize(("kind", "name", "code"), [("exit", "SystemExit", 4), ("interrupt", "KeyboardInterrupt", 1), ("good exit", "", 0)])
def test_other_ends(kind: str, name: str, code: int) -> None:
    context = multiprocessing.get_context("fork")
    reader, writer = create_error_pipe()
    stop = context.Event()
    with reader, writer:
        process = context.Process(target=fail, args=(kind, writer, None, stop))
        process.start()
        process.join()
        assert process.exitcode in (code, -signal.SIGINT if kind == "interrupt" else code)
        assert (reader.poll(), stop.is_set()) == (bool(name), bool(name))
        assert not name or reader.recv().exc_type == name


def test_what_is_broken_does_not_keep_the_rest_from_being_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def send(self, error: object) -> None:
            raise OSError("gone")

    metrics: queue.Queue[dict[str, str]] = queue.Queue()
    stop = threading.Event()
    with pytest.raises(KeyError), collector_error_guard(Broken(), metrics, stop):
        raise KeyError("k")
    assert stop.is_set() and metrics.get_nowait()["error"].rstrip().endswith("KeyError: 'k'")
    assert "collector: OSError: gone" in capsys.readouterr().err


def test_only_text_travels() -> None:
    class Local(Exception):
        pass

    try:
        raise Local("é\ud800")
    except Local:
        error = ExceptionWrapper()
    reader, writer = create_error_pipe()
    with reader, writer:
        assert not reader.poll(0.01)
        writer.send(error)
        assert reader.recv().exc_type == "Local" and "é" in reader.recv().exc_msg
        writer.send(ExceptionWrapper())
        assert reader.recv().exc_type == "None", "a later one replaces it"
    assert b"Local" not in pickle.dumps(pickle.loads(pickle.dumps(error)).exc_class)
    with pytest.raises(RuntimeError, match="as an argument of Process"):
        pickle.dumps(create_error_pipe())


@pytest.mark.parametrize(
    ("code", "trace", "texts"),
    [
        (1, "Traceback\n  boom\n", ["crashed", "boom"]),
        (-9, None, ["killed by signal 9 (SIGKILL)", "out of memory"]),
        (-11, None, ["SIGSEGV", "native code"]),
        (-7, None, ["SIGBUS"]),
        (139, None, ["code 139 (signal 11, SIGSEGV)"]),
        (-63, None, ["signal 63 (unknown)"]),
        (3, None, ["exited with code 3"]),
        (None, None, ["exit code unknown"]),
    ],
)
def test_deaths_in_words(code: int | None, trace: str | None, texts: list[str]) -> None:
    found = format_collector_death(code, trace)
    assert found.startswith("Collector process") and all(text in found for text in texts)
