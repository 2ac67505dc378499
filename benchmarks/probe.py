"""The measured process: ``python -m benchmarks.probe JOB`` runs one case of one system once.

It is the learner; its workers are children of its own. On the pipe to the harness go only JSON
lines: phases as they begin, and at the end the figures or the error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, NoReturn

from benchmarks import suites
from benchmarks.pace import Pace
from benchmarks.processes import die_with


class Pipe:
    """The reporter of a measured process: JSON lines on what was its standard output."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # a system that prints must not break the JSON

    def phase(self, name: str, seconds: float) -> None:
        self._say(phase=name, seconds=seconds)

    def fail(self, reason: str) -> NoReturn:
        self.end(error=reason)

    def end(self, **message: Any) -> NoReturn:
        """Say the last thing and leave, without asking threads that may be stuck in a system."""
        self._say(**message)
        os._exit(0)

    def _say(self, **message: Any) -> None:
        print(json.dumps(message), file=self._file, flush=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    report = Pipe()
    try:
        report.phase("start", 0.0)
        pace = Pace(job["seconds"], job["warmup"])
        parts = {name: suites.part(job["suite"], name) for name in ("adapters", "cases", "modes")}
        system = parts["adapters"].load(job["system"])
        report.end(figures=parts["modes"].run(system, parts["cases"].Case(**job["case"]), pace, report))
    except Exception as error:
        traceback.print_exc()
        report.fail(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
