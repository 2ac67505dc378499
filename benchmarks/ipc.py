"""Shared memory between a learner and its collectors, `echo_ipc`, beside unilab-rl 0.2.0: ``python -m benchmarks.ipc``.

    pip install torch                        # next to echo-ipc; the CPU's is enough
    pip install --no-deps unilab-rl==0.2.0   # without it, the columns of the rival stay empty

Both run in the same processes and in turn, round for round, with one thread of torch, so that drift affects both; a figure is the median of all rounds. It
prints a table, and writes JSON with `--out`.

| mode | figure |
|---|---|
| `write`, `read` | weights of 0.76, 10 and 100 MB in 14 tensors, written and read in one process: GB/s |
| `fresh` | read in one process what another has just written: GB/s |
| `ping` | a small rollout there and one back between two processes: microseconds for one way, half of the round trip |
| `stream` | rollouts of 6.5 MB from one process to another, each copied in and copied out: GB/s; none may be lost |
| `add`, `sample` | rows of 444 bytes in a table of 200,000, in batches of 256 and 4096: rows/s, beside a tensor with index_select, which notices no torn row |

`write` and `read` of the rival go through its lock, as its users do. Its ring never waits for the consumer; for `stream` its producer therefore
waits until there is room, as ours does by its policy. `ping` is measured with the default, in which both sleep, and with 50 microseconds of
spinning, which only Echo has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

spawning = multiprocessing.get_context("spawn")

SHAPES = {"0.76 MB": (0.76e6, 14), "10 MB": (10e6, 14), "100 MB": (100e6, 14)}
ROLLOUT = {"obs": (256, 64, 48), "actions": (256, 64, 29), "rewards": (256, 64), "dones": (256, 64), "values": (256, 64), "log_probs": (256, 64)}
MODES = ["weights", "fresh", "ping", "stream", "replay"]
ROWS, WIDTH = 200_000, 111  # of 444 bytes


def rival(module: str) -> Any:
    """A module of unilab-rl, or None."""
    try:
        return __import__(f"uni_rl.ipc.{module}", fromlist=["x"])
    except ImportError:
        return None


def state(size: float, count: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return {f"layer{i}.weight": torch.rand(int(size / count / 4)) for i in range(count)}


def clock(work: Callable[[], object], seconds: float) -> float:
    """Seconds for one call: the mean of as many as fit in the time."""
    work()
    begun, calls = time.perf_counter(), 0
    while (now := time.perf_counter()) - begun < seconds:
        work()
        calls += 1
    return (now - begun) / calls


# ---- weights


def weights(name: str, seconds: float) -> dict[str, dict[str, Callable[[], float]]]:
    from echo_ipc import Cell

    source = state(*SHAPES[name])
    target = {key: value.clone() for key, value in source.items()}
    size = sum(value.numel() * 4 for value in source.values())
    cell = Cell(source)
    cell.write(source)
    found = {
        f"write {name}": {"echo": lambda: size / clock(lambda: cell.write(source), seconds) / 1e9},
        f"read {name}": {"echo": lambda: size / clock(lambda: cell.read_into(target), seconds) / 1e9},
    }
    module = rival("weight_sync")
    if module:
        other = module.SharedWeightSync.from_state_dict(source)
        found[f"write {name}"]["unilab"] = lambda: size / clock(lambda: other.write_weights(source), seconds) / 1e9
        found[f"read {name}"]["unilab"] = lambda: size / clock(lambda: other.read_weights_into(target), seconds) / 1e9
    return found


def _writer(link: Any, name: str, cell: Any, attached: Any) -> None:
    source = state(*SHAPES[name])
    if attached is not None:
        shapes = {key: value.shape for key, value in source.items()}
        cell = rival("weight_sync").SharedWeightSync(shapes, create=False, shm_name=attached[0], lock=attached[1])
    write = cell.write if attached is None else cell.write_weights
    while link.recv():
        write(source)
        link.send(True)


def fresh(name: str, seconds: float) -> dict[str, dict[str, Callable[[], float]]]:
    from echo_ipc import Cell

    source = state(*SHAPES[name])
    target = {key: value.clone() for key, value in source.items()}
    size = sum(value.numel() * 4 for value in source.values())

    def measured(cell: Any, attached: Any, read: Callable[[Any], object]) -> float:
        here, there = spawning.Pipe()
        process = spawning.Process(target=_writer, args=(there, name, cell, attached), daemon=True)
        process.start()
        times, end = [], None
        while end is None or time.monotonic() < end or len(times) < 3:
            here.send(True)
            here.recv()
            begun = time.perf_counter()
            read(target)
            times.append(time.perf_counter() - begun)
            end = end or time.monotonic() + seconds
        here.send(False)
        process.join()
        return size / statistics.median(times[1:]) / 1e9

    cell = Cell(source)
    found: dict[str, Callable[[], float]] = {"echo": lambda: measured(cell, None, cell.read_into)}
    module = rival("weight_sync")
    if module:
        other = module.SharedWeightSync.from_state_dict(source)
        found["unilab"] = lambda: measured(None, (other.name, other._lock), other.read_weights_into)
    return {f"fresh {name}": found}


# ---- rollouts


def _echoes(there: Any, back: Any, count: int) -> None:
    for _ in range(count):
        with there.take(timeout=60) as slot:
            value = slot.arrays["n"].copy()
        back.put({"n": value}, timeout=60)


def _unilab_ring(name: Any = None, pointers: Any = None, *, shape: tuple[int, int, int, int] = (1, 1, 1, 1), slots: int = 2) -> Any:
    ring = rival("rollout_ring_buffer").RolloutRingBuffer(*shape, num_slots=slots, create=name is None, shm_name_prefix=name)
    if pointers:
        ring.attach_sync_primitives(*pointers)
    return ring


def _unilab_echoes(there_at: Any, back_at: Any, count: int) -> None:
    there, back = _unilab_ring(*there_at), _unilab_ring(*back_at)
    for _ in range(count):
        there.wait_for_data()
        value = there.read_numpy_views()["obs"].copy()
        there.advance_read()
        back.write_buffer["obs"][:] = value
        back.signal_write_done()


def ping(spin: float, seconds: float) -> dict[str, dict[str, Callable[[], float]]]:
    from echo_ipc import Ring

    count = max(100, int(seconds * 1000))

    def ours() -> float:
        rings = [Ring({"n": ((1,), "float32")}, 2, policy="block", spin=spin) for _ in range(2)]
        process = spawning.Process(target=_echoes, args=(*rings, count), daemon=True)
        process.start()
        times = []
        value = {"n": np.ones(1, np.float32)}
        for _ in range(count):
            begun = time.perf_counter()
            rings[0].put(value, timeout=60)
            rings[1].take(timeout=60).release()
            times.append(time.perf_counter() - begun)
        process.join()
        for ring in rings:
            ring.cleanup()
        return statistics.median(times[10:]) / 2 * 1e6

    def theirs() -> float:
        rings = [_unilab_ring() for _ in range(2)]
        places = [(ring.name, (ring._write_ptr, ring._read_ptr)) for ring in rings]
        process = spawning.Process(target=_unilab_echoes, args=(*places, count), daemon=True)
        process.start()
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            rings[0].write_buffer["obs"][:] = 1
            rings[0].signal_write_done()
            rings[1].wait_for_data()
            rings[1].advance_read()
            times.append(time.perf_counter() - begun)
        process.join()
        for ring in rings:
            ring.cleanup()
        return statistics.median(times[10:]) / 2 * 1e6

    found: dict[str, Callable[[], float]] = {"echo": ours}
    if rival("rollout_ring_buffer"):
        found["unilab"] = theirs
    return {"ping" if not spin else f"ping, {spin * 1e6:.0f} us of spinning": found}


STREAM = (256, 64, 64, 29)  # environments, steps, width of observations and of actions: 6.4 MB


def _source() -> dict[str, np.ndarray]:
    envs, steps, obs, actions = STREAM
    shapes = {"obs": (envs, steps, obs), "actions": (envs, steps, actions), "last_obs": (envs, obs)}
    shapes |= dict.fromkeys(("log_probs", "rewards", "dones", "truncated"), (envs, steps))
    return {name: np.random.default_rng(0).random(shape, np.float32) for name, shape in shapes.items()}


def _streams(ring: Any, count: int) -> None:
    source = _source()
    for _ in range(count):
        with ring.claim(timeout=60) as slot:
            for name, array in source.items():
                np.copyto(slot.arrays[name], array)


def _unilab_streams(at: Any, count: int) -> None:
    ring, source = _unilab_ring(*at, shape=STREAM, slots=4), _source()
    for _ in range(count):
        while ring.available() >= 3:  # the one that is written must not be one that is read
            time.sleep(1e-4)
        for name, array in ring.write_buffer.items():
            np.copyto(array, source[name])
        ring.signal_write_done()


def stream(seconds: float) -> dict[str, dict[str, Callable[[], float]]]:
    from echo_ipc import Ring

    source = _source()
    target = {name: np.empty_like(array) for name, array in source.items()}
    size = sum(array.nbytes for array in source.values())
    count = max(30, int(seconds * 400))

    def timed(process: Any, take: Callable[[], None]) -> float:
        process.start()
        take()
        begun = time.perf_counter()
        for _ in range(count - 1):
            take()
        spent = time.perf_counter() - begun
        process.join()
        assert all((target[name] == array).all() for name, array in source.items())
        return size * (count - 1) / spent / 1e9

    def ours() -> float:
        with Ring({name: (array.shape, "float32") for name, array in source.items()}, 3, policy="block") as ring:

            def take() -> None:
                with ring.take(timeout=60) as slot:
                    for name, array in slot.arrays.items():
                        np.copyto(target[name], array)

            rate = timed(spawning.Process(target=_streams, args=(ring, count), daemon=True), take)
            assert (ring.written, ring.stats()["taken"], ring.stats()["lost"]) == (count, count, 0)
            return rate

    def theirs() -> float:
        ring = _unilab_ring(shape=STREAM, slots=4)

        def take() -> None:
            ring.wait_for_data()
            for name, array in ring.read_numpy_views().items():
                np.copyto(target[name], array)
            ring.advance_read()

        place = (ring.name, (ring._write_ptr, ring._read_ptr))
        rate = timed(spawning.Process(target=_unilab_streams, args=(place, count), daemon=True), take)
        ring.cleanup()
        return rate

    found: dict[str, Callable[[], float]] = {"echo": ours}
    if rival("rollout_ring_buffer"):
        found["unilab"] = theirs
    return {"stream": found}


# ---- rows


def replay(seconds: float) -> dict[str, dict[str, Callable[[], float]]]:
    import torch

    from echo_ipc import Rows

    torch.set_num_threads(1)
    widths = {"obs": 48, "next_obs": 48, "actions": 12, "rewards": 1, "dones": 1, "truncated": 1}
    rows = Rows({name: ((width,), "float32") for name, width in widths.items()}, ROWS)
    table, at = torch.zeros(ROWS, WIDTH), 0
    generator = np.random.default_rng(0)
    found: dict[str, dict[str, Callable[[], float]]] = {}
    whole = {name: torch.rand(ROWS // 4, width) for name, width in widths.items()}
    for _ in range(4):
        rows.add(whole)
    for count in (256, 4096):
        some = {name: torch.rand(count, width) for name, width in widths.items()}

        def add(some: dict[str, Any] = some, count: int = count) -> None:
            nonlocal at
            end, begin = at + count, 0
            if end > ROWS:
                at, end = 0, count
            for name, width in widths.items():
                table[at:end, begin : begin + width] = some[name]
                begin += width
            at = end

        def draw(count: int = count) -> dict[str, Any]:
            packed, begin, batch = table.index_select(0, torch.randint(0, ROWS, (count,))), 0, {}
            for name, width in widths.items():
                batch[name] = packed[:, begin : begin + width].contiguous()
                begin += width
            return batch

        def ours(count: int = count) -> dict[str, Any]:
            batch, _ = rows.sample(count, generator=generator)
            return {name: torch.from_numpy(array) for name, array in batch.items()}

        found[f"add {count}"] = {
            "echo": lambda some=some, count=count: count / clock(lambda: rows.add(some), seconds),
            "torch": lambda add=add, count=count: count / clock(add, seconds),
        }
        found[f"sample {count}"] = {
            "echo": lambda ours=ours, count=count: count / clock(ours, seconds),
            "torch": lambda draw=draw, count=count: count / clock(draw, seconds),
        }
    return found


def measure(modes: list[str], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """For each case and each system the figures of all rounds."""
    suites: dict[str, list[Callable[[], dict[str, dict[str, Callable[[], float]]]]]] = {
        "weights": [lambda name=name: weights(name, seconds) for name in SHAPES],
        "fresh": [lambda name=name: fresh(name, seconds) for name in ("10 MB", "100 MB")],
        "ping": [lambda: ping(0.0, seconds), lambda: ping(50e-6, seconds)],
        "stream": [lambda: stream(seconds)],
        "replay": [lambda: replay(seconds)],
    }
    results: dict[str, dict[str, list[float]]] = {}
    for mode in modes:
        for make in suites[mode]:
            for case, systems in make().items():
                print(f"{case} ...", file=sys.stderr, flush=True)
                for _ in range(rounds):
                    for system, figure in systems.items():
                        results.setdefault(case, {}).setdefault(system, []).append(figure())
    return results


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """The medians, and how many times better Echo is."""
    lines = ["| case | unit | echo | other | ratio |", "|---|---|---|---|---|"]
    for case, systems in results.items():
        medians = {system: statistics.median(runs) for system, runs in systems.items()}
        lower, rows = case.startswith("ping"), case.startswith(("add", "sample"))
        unit, scale = "us" if lower else "M rows/s" if rows else "GB/s", 1e-6 if rows else 1.0
        echo, other = medians["echo"], next((value for system, value in medians.items() if system != "echo"), None)
        name = next((system for system in medians if system != "echo"), "")
        ratio = "" if other is None else f"{other / echo if lower else echo / other:.2f}"
        lines.append(f"| {case} | {unit} | {echo * scale:.2f} | {'' if other is None else f'{other * scale:.2f} ({name})'} | {ratio} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ipc", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--rounds", type=int, default=5, help="how often each system has its turn (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for one turn (default 1)")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures of all rounds")
    options = parser.parse_args(words)
    results = measure(options.modes, options.rounds, options.seconds)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
