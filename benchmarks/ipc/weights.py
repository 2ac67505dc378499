"""Weights of a learner: written, read, and read after another process has written them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

from echo_ipc import SharedWeightSync

from .cases import Case, Slice, rate
from .rivals import unilab_rl

spawning = multiprocessing.get_context("spawn")

SIZES = {"0.76 MB": 0.76e6, "10 MB": 10e6, "100 MB": 100e6}
TENSORS = 14
MUST = {"10 MB": (1.15, 1.8), "100 MB": (1.15, 1.8)}  # writing and reading


def state(size: float) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return {f"layer{i}.weight": torch.rand(int(size / TENSORS / 4)) for i in range(TENSORS)}


def _sides(source: dict[str, Any]) -> tuple[Any, Any]:
    rival = unilab_rl("weight_sync")
    return SharedWeightSync.from_state_dict(source), rival and rival.SharedWeightSync.from_state_dict(source)


def weights(name: str) -> Iterator[Case]:
    source = state(SIZES[name])
    target = {key: value.clone() for key, value in source.items()}
    size = sum(value.numel() * 4 for value in source.values())
    ours, theirs = _sides(source)
    write, read = MUST.get(name, (None, None))
    yield Case(f"write {name}", "GB/s", rate(lambda: ours.write_weights(source), size), theirs and rate(lambda: theirs.write_weights(source), size), write)
    yield Case(
        f"read {name}", "GB/s", rate(lambda: ours.read_weights_into(target), size), theirs and rate(lambda: theirs.read_weights_into(target), size), read
    )
    for side in filter(None, (ours, theirs)):
        side.cleanup()


def _writer(link: Any, size: float, sync: Any, attach: Any) -> None:
    source = state(size)
    if sync is None:
        shapes = {key: value.shape for key, value in source.items()}
        sync = unilab_rl("weight_sync").SharedWeightSync(shapes, create=False, shm_name=attach[0], lock=attach[1])
    while link.recv():
        sync.write_weights(source)
        link.send(True)


def fresh(name: str) -> Iterator[Case]:
    source = state(SIZES[name])
    target = {key: value.clone() for key, value in source.items()}
    size = sum(value.numel() * 4 for value in source.values())
    processes = []

    def side(sync: Any, arguments: tuple[Any, Any]) -> Slice:
        here, there = spawning.Pipe()
        process = spawning.Process(target=_writer, args=(there, SIZES[name], *arguments), daemon=True)
        process.start()
        processes.append((process, here))

        def measured(seconds: float) -> float:
            spent, calls, end = 0.0, 0, time.monotonic() + seconds
            while not calls or time.monotonic() < end:
                here.send(True)
                here.recv()
                begun = time.perf_counter()
                sync.read_weights_into(target)
                spent, calls = spent + time.perf_counter() - begun, calls + 1
            return size * calls / spent

        return measured

    ours, theirs = _sides(source)
    try:
        yield Case(
            f"read {name} that another process wrote",
            "GB/s",
            side(ours, (ours, None)),
            theirs and side(theirs, (None, (theirs.name, theirs._lock))),
        )
    finally:
        for process, link in processes:
            link.send(False)
            process.join()
        for sync in filter(None, (ours, theirs)):
            sync.cleanup()
