"""Bare processes in C that copy each sample twice: into memory of the worker's that the learner sees, and from there into its rows.

The ceiling on one machine of a system that keeps a sample until it is acknowledged and hands the learner batches: nothing is checked or acknowledged, there
is no Python, and nobody sleeps. Beside it stands what the kernel's way of reading another process (process_vm_readv, UCX's cma) reaches instead.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.adapters.base import Program
from benchmarks.cases import Case
from benchmarks.pace import Figures, Pace, Reporter
from benchmarks.payloads import PAYLOADS

SOURCE = Path(__file__).with_suffix(".c")
AHEAD = 1 << 20  # bytes that a worker may be ahead: what stays in the caches is the quickest
BUFFERS = 3  # batches of rows


def program() -> str:
    """The compiled program; ImportError without a C compiler."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"echo-bench-{os.getuid()}" / f"relay-{digest}"
    if not built.exists():
        built.parent.mkdir(mode=0o700, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        own = built.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run([*compiler, "-O2", "-o", str(own), str(SOURCE)], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ImportError(f"relay.c did not compile: {getattr(error, 'stderr', error)}") from error
        own.rename(built)
    return str(built)


class Relay(Program):
    name = "relay"
    can = frozenset({"ucx"})
    how = "memcpy"

    def measure(self, case: Case, pace: Pace, report: Reporter) -> Figures:
        payload = PAYLOADS[case.payload]
        size = payload.sample_bytes
        words = [case.workers, size, payload.pool, max(2, AHEAD // size), BUFFERS * payload.batch_size, self.how, pace.seconds]
        report.phase("measure", pace.seconds)
        done = subprocess.run([program(), *map(str, words)], capture_output=True, text=True, timeout=60 + 2 * pace.seconds)
        if done.returncode:
            raise RuntimeError(f"relay ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        rate = float(done.stdout)
        return {"rate": rate / size, "bytes_per_s": rate}


class RelayByKernel(Relay):
    name = "relay-readv"
    how = "vm_readv"
