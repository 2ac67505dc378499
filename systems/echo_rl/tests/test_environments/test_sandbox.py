"""What functions of unknown origin cannot do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from echo_rl.environments.code import sandbox

CODE = """
import math, os

def f(what, *given):
    return globals()[what](*given)

def floor(x): return math.floor(x)
def files(): return os.listdir("/"), os.listdir(".")
def settings(): return sorted(os.environ)
def read(path): return open(path).read()
def fork(): return os.fork()
def memory(): return len(bytearray(1 << 31))
def fill():
    with open("big", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 16))
def processes(): return os.getpid()
def mount():
    import ctypes
    return ctypes.CDLL(None).mount(b"none", b"/", b"tmpfs", 0, None)
def connect(port):
    import ctypes, struct
    libc = ctypes.CDLL(None)
    where = struct.pack("=HHI8x", 2, (port >> 8) | (port & 255) << 8, 0x0100007F)
    return libc.connect(libc.socket(2, 1, 0), where, len(where))
def say(): print('{"value": "9"}'); return 1
def shown():
    class Bad:
        def __repr__(self): raise KeyError("x")
    return Bad()
def long(): return "x" * 30000
def end(): os._exit(0)
"""


@pytest.fixture
def confined() -> None:
    if not sandbox.namespaces():
        pytest.skip("the kernel gives an unprivileged process no namespaces")


def results(*calls: str, seconds: float = 20.0) -> list[str]:
    return [answer.value if answer.value is not None else f"! {answer.error}" for answer in sandbox.call(CODE, "f", calls, seconds=seconds)]


@pytest.mark.usefixtures("confined")
def test_in_namespaces_there_are_no_files_no_network_and_no_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    secret = tmp_path / "secret"
    secret.write_text("token")
    monkeypatch.setenv("SECRET_TOKEN", "token")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        got = results(
            "'floor', 2.5", "'files'", "'settings'", f"'read', {str(secret)!r}", f"'read', {sys.executable!r}", f"'connect', {port}", "'processes'", "'mount'"
        )
    assert got[0] == "2" and got[1] == "([], [])" and got[2] in ("[]", "['LC_CTYPE']")
    assert "FileNotFoundError" in got[3] and "FileNotFoundError" in got[4]
    assert got[5:] == ["-1", "2", "-1"]  # the second process of its namespace, whose first one is ours


@pytest.mark.parametrize("namespaces", [True, False])
def test_memory_files_and_processes_are_limited(namespaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if namespaces and not sandbox.namespaces():
        pytest.skip("the kernel gives an unprivileged process no namespaces")
    monkeypatch.setattr(sandbox, "namespaces", lambda: namespaces)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SECRET_TOKEN", "token")
    got = results("'memory'", "'fill'", "'fork'", "'shown'", "'long'", "'say'", "'settings'", "'nothing'", "'end'", "'floor', 1.0")
    assert "MemoryError" in got[0] and "OSError" in got[1] and "BlockingIOError" in got[2] and "KeyError" in got[3] and "too long" in got[4]
    assert got[5] == "1" and got[6] in ("[]", "['LC_CTYPE']") and "KeyError" in got[7]
    assert got[8] == got[9] == "! it did not end in time, or ended its process"
    assert not list(tmp_path.iterdir())


def test_time_is_limited_and_earlier_results_count() -> None:
    answers = sandbox.call("def f(x):\n    while x:\n        pass\n    return 'done'\n", "f", ["0", "1", "0"], seconds=2)
    assert [answer.value for answer in answers] == ["'done'", None, None]


def test_code_that_cannot_run_is_an_error_of_each_call() -> None:
    assert "SyntaxError" in (sandbox.call("def f(:", "f", ["1"], seconds=20)[0].error or "")
    assert "KeyError" in (sandbox.call("x = 1", "f", ["1"], seconds=20)[0].error or "")


ENDLESS = "def f():\n    while True: pass\n"
# It clears the signal that it gets when its parent dies, leaves its session, and tries to stop and to trace the process that watches it.
STUBBORN = """
def f():
    import ctypes, os
    libc = ctypes.CDLL(None)
    libc.prctl(1, 0, 0, 0, 0)
    for attempt in (os.setsid, lambda: os.kill(1, 19), lambda: libc.ptrace(16, 1, 0, 0)):
        try:
            attempt()
        except OSError:
            pass
    while True: pass
"""


@pytest.mark.parametrize(
    ("code", "namespaces", "killed"),
    [(ENDLESS, True, True), (ENDLESS, False, True), (STUBBORN, True, True), (STUBBORN, True, False), (STUBBORN, False, False)],
)
def test_no_process_outlives_its_caller_or_its_time(code: str, namespaces: bool, killed: bool, tmp_path: Path) -> None:
    if namespaces and not sandbox.namespaces():
        pytest.skip("the kernel gives an unprivileged process no namespaces")
    program = f"from echo_rl.environments.code import sandbox\nsandbox.namespaces = lambda: {namespaces}\n"
    program += f"sandbox.call({code!r}, 'f', [''], seconds={60 if killed else 3})\ninput()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed caller leaves its folder
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment) as caller:
        found: list[int] = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(_burning(pid) for pid in found):
            found = _below(caller.pid)
            time.sleep(0.05)
        assert found
        if killed:
            os.kill(caller.pid, signal.SIGKILL)
        while any(Path(f"/proc/{pid}").exists() and not _ended(pid) for pid in found):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        caller.kill()


def _below(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(below for child in children for below in _below(child))]


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _burning(pid: int) -> bool:
    """Whether a process has used half a second of CPU time: the endless function runs."""
    try:
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]
    except OSError:
        return False
    return int(used) >= 50
