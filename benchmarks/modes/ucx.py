"""Samples per second over UCX, by lanes that the case names: Echo's, those of other libraries on UCX, and what UCX itself reports."""

from __future__ import annotations

import os

from benchmarks.adapters.base import System
from benchmarks.cases import Case
from benchmarks.modes import throughput
from benchmarks.pace import Figures, Pace, Reporter

#: What UCX may use: shared memory of System V, which Echo takes by default (docs/rdma.md). TCP is needed beside it: endpoints
#: are wired up by it.
LANES = {"ucx-shm": "sysv,cma,tcp", "ucx-tcp": "tcp"}


def run(system: System, case: Case, pace: Pace, report: Reporter) -> Figures:
    os.environ["UCX_TLS"] = LANES[case.mode]  # workers inherit it
    os.environ["UCX_MM_ERROR_HANDLING"] = "y"  # ucxx and Echo ask UCX to report lost peers, and UCX would choose TCP for them otherwise
    return throughput.run(system, case, pace, report)
