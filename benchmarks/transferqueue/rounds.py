"""Rounds of TransferQueue in an environment of its own: __main__.py starts this file there, and needs nothing of Echo.

It reads the name of a case (a line) from stdin, puts its samples and gets them, and writes the seconds and a checksum to the descriptor that is its
argument. Tensors are made before the clock starts, and storage is cleared after it stops, so both are free for TransferQueue.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

workload: Any = importlib.import_module("samples")  # beside this file


def main() -> None:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine starts ray's processes slowly
    os.environ.setdefault("RAY_worker_niceness", "0")  # by default its workers give way to every other process, which would be unfair to TransferQueue
    # These are only in the environment of TransferQueue.
    ray, torch, tq = (importlib.import_module(name) for name in ("ray", "torch", "transfer_queue"))
    tensordict = importlib.import_module("tensordict")
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    ray.init(num_cpus=4, include_dashboard=False, logging_level="error", log_to_driver=False, _node_ip_address="127.0.0.1")
    tq.init()
    fields: dict[str, Any] = {}
    out.write("ready\n")
    for turn, line in enumerate(sys.stdin):
        name = line.strip()
        if name not in fields:
            samples = workload.samples(name)
            columns = {}
            for leaf, value in samples[0].items():
                rows = [torch.from_numpy(one[leaf]) if value.ndim else one[leaf].item() for one in samples]
                columns[leaf] = torch.nested.as_nested_tensor(rows, layout=torch.jagged) if value.ndim else torch.tensor(rows)
            fields[name] = tensordict.TensorDict(columns, batch_size=len(samples))
        given = fields[name]
        keys = [f"{turn}-{i}" for i in range(len(given))]
        began = time.perf_counter()
        tq.kv_batch_put(keys=keys, partition_id="p", fields=given)
        got = tq.kv_batch_get(keys=keys, partition_id="p")
        seconds = time.perf_counter() - began
        leaf = workload.LEAF[name]
        total = int(sum(int(row.sum(dtype=torch.int64)) for row in got[leaf].unbind()))
        tq.kv_clear(keys=keys, partition_id="p")
        out.write(f"{seconds} {total}\n")
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
