"""A worker process: `python -m benchmarks.replay.worker JOB`. Connects, says so, waits for "go", inserts until it is killed."""

from __future__ import annotations

import json
import os
import sys

from benchmarks.processes import die_with
from benchmarks.replay import adapters
from benchmarks.replay.items import ITEMS


def main() -> None:
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    # The pipe is for our one line; whatever a system prints goes to the error stream.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    payload = ITEMS[job["payload"]]
    worker = adapters.load(job["system"]).worker(job["address"], payload)
    print("connected", file=report, flush=True)
    if sys.stdin.readline() == "go\n":
        worker.flood(payload.samples())


if __name__ == "__main__":
    main()
