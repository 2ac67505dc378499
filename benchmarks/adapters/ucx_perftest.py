"""ucx_perftest: what UCX itself says that active messages of a size reach between two processes that do nothing else.

No Python, nothing checked, nothing acknowledged, no batch, the same buffer again and again: a ceiling of "one message, one sample".
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

from benchmarks.adapters.base import Program
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.systems import program

FIRST_BYTES, FIRST_MESSAGES = 50 << 20, 20_000  # at most, of the first run, which says how many make up the seconds wanted
LINE = re.compile(r"^\s*(?:\[[^]]*\])?\s*(?:Final:)?\s*\d+(?:\s+[\d.]+){6,7}\s*$", re.MULTILINE)


class UcxPerftest(Program):
    name = "ucx-perftest"
    can = frozenset({"ucx", "ucx-tcp"})
    settings: dict[str, str] = {}

    def measure(self, case: Case, pace: Pace, report: Reporter) -> Figures:
        size = PAYLOADS[case.payload].sample_bytes
        report.phase("warm-up", pace.warmup)
        count = min(FIRST_MESSAGES, FIRST_BYTES // size)
        rate = self._run(size, count)
        # A short run measures its buffers, or how long it took to start, so only a run of about the wanted time counts.
        while count < rate * pace.seconds / 2:
            count = min(20 * count, max(count + 1, round(rate * pace.seconds)))
            report.phase("measure", 2 * count / rate)
            rate = self._run(size, count)
        return {"rate": rate, "bytes_per_s": rate * size}

    def _run(self, size: int, count: int) -> float:
        """Messages per second: the overall rate on the last line of the table."""
        path = program("ucx_perftest")
        env = {**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n", **self.settings}
        if (library := Path(path).parent.parent / "lib" / "libucp.so.0").exists():  # that of a wheel does not find it by itself
            env["LD_LIBRARY_PATH"] = str(library.parent)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        with subprocess.Popen([path, "-p", port], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                _until_it_listens(int(port), server)
                command = [path, "-p", port, "-t", "ucp_am_bw", "-s", str(size), "-n", str(count), "-f", "127.0.0.1"]
                done = subprocess.run(command, env=env, capture_output=True, text=True)
            finally:
                server.kill()
        lines = LINE.findall(done.stdout)
        if not lines:
            raise RuntimeError(f"ucx_perftest said no rate: {(done.stderr or done.stdout).strip()[-300:]}")
        return float(lines[-1].split()[-1])


class UcxPerftestEager(UcxPerftest):
    """The same with every message sent as such. UCX by itself has large ones written by the sender to an address that the receiver gives away."""

    name = "ucx-perftest-eager"
    can = frozenset({"ucx-tcp"})
    settings = {"UCX_RNDV_THRESH": "inf"}


def _until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Without connecting, because it serves one connection only: looked up in the kernel's table of sockets."""
    wanted = f":{port:04X} 00000000:0000 0A"  # state LISTEN
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    while not any(wanted in table.read_text() or f":{port:04X} {'0' * 32}:0000 0A" in table.read_text() for table in tables if table.exists()):
        if server.poll() is not None:
            raise RuntimeError(f"ucx_perftest ended with status {server.returncode} before it listened")
