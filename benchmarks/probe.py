"""The measured process: ``python -m benchmarks.probe JOB`` runs one case of one system once.

It is the learner; its workers are children of its own. On the pipe to the harness go only JSON
lines: phases as they begin, and at the end the figures or the error.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks import adapters, modes
from benchmarks.cases import CASES
from benchmarks.pace import Pace
from benchmarks.processes import die_with


def main() -> None:
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a system that prints must not break the pipe's JSON

    def say(**message: Any) -> None:
        print(json.dumps(message), file=pipe, flush=True)

    def announce(phase: str, seconds: float) -> None:
        say(phase=phase, seconds=seconds)

    try:
        announce("start", 0.0)
        pace = Pace(job["seconds"], job["warmup"])
        system = adapters.load(job["system"])
        say(figures=modes.run(system, CASES[job["case"]], pace, announce))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
    # Threads of a system may be stuck in native code: leave without asking them.
    pipe.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
