"""Two bare processes in C that send active messages over UCX as Echo has to: each sample is copied into memory that keeps it until it is acknowledged,
and at the other end from UCX's memory into its row.

What ``ucx_perftest`` leaves out: it sends the same buffer again and again, lets large messages be written over the one before (by the receiver's
address, which it gives away), and looks at nothing. Beside it stands here what those two copies cost, without Python, threads or batches.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.adapters.base import Program
from benchmarks.cases import Case
from benchmarks.compiled import compiled
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS
from benchmarks.systems import program

SOURCE = Path(__file__).with_suffix(".c")
AHEAD = 16 << 20  # bytes under way at most, as many as Echo's
BUFFERS = 3  # batches of rows
PART = 64000  # bytes of a message, as of Echo's over TCP
SETTINGS = {"UCX_TCP_TX_SEG_SIZE": "64K", "UCX_WARN_UNUSED_ENV_VARS": "n"}  # likewise


def loop() -> str:
    """The compiled program, for the UCX that `ucx_perftest` is of; ImportError without a compiler or UCX's headers."""
    root = Path(program("ucx_perftest")).parent.parent
    if (root / "lib" / "libucp.so").exists():  # a wheel's
        flags = [f"-I{root / 'include'}", f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"]
    else:
        flags = []
    return str(compiled(SOURCE, "", *flags, "-Wl,--no-as-needed", "-lucp", "-lucs"))


class UcxCopies(Program):
    name = "ucx-copies"
    can = frozenset({"ucx-tcp"})

    def measure(self, case: Case, pace: Pace, report: Reporter) -> Figures:
        payload = PAYLOADS[case.payload]
        size = payload.sample_bytes
        words = [size, payload.pool, min(65536, max(2, AHEAD // size)), BUFFERS * payload.batch_size, PART, pace.seconds]
        report.phase("measure", pace.seconds)
        env = {**os.environ, **SETTINGS}
        done = subprocess.run([loop(), *map(str, words)], env=env, capture_output=True, text=True, timeout=60 + 2 * pace.seconds)
        if done.returncode:
            raise RuntimeError(f"ucx_copies ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        rate = float(done.stdout)
        return {"rate": rate / size, "bytes_per_s": rate}
