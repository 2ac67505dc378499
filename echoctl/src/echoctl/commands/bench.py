"""`echoctl bench`: measures transports on this machine, with real worker processes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from echo_core.base.errors import ConfigError, EchoError
from echo_core.base.plural import counted
from echo_core.base.writing import write_whole, writing
from echo_core.plugins import discovery
from echo_core.server.server import Server

from ..output import console, json_option, print_json, table

__all__ = ["command"]

_WARMUP = 0.5  # seconds at the start that are not measured
_WORKER = """
import sys
import numpy as np
from echo_core import Client, EchoError

client = Client(sys.argv[1], np.zeros(int(sys.argv[2]), np.uint8), timeout=20)
sample = np.ones(int(sys.argv[2]), np.uint8)
try:
    while True:
        client.send(sample)
except EchoError:
    pass  # the learner has finished
"""


@click.command(name="bench", short_help="measure transports on this machine")
@click.option("--transport", "transports", multiple=True, help="Name or address; may be repeated. Default: every installed transport.")
@click.option(
    "--bytes", "sizes", multiple=True, type=click.IntRange(1), help="Bytes of a sample; may be repeated. Default: 20, 1024, 28672."
)
@click.option("--workers", "counts", multiple=True, type=click.IntRange(1, 256), help="Worker processes; may be repeated. Default: 1, 4.")
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=2.0, show_default=True, help="Seconds measured per case.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the results to this file, as JSON.")
@click.option("--compare", type=click.Path(exists=True, path_type=Path), help="Results of an earlier run (--save) to compare with.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Plot the throughput to this file (needs matplotlib).")
@json_option
def command(transports: tuple[str, ...], sizes: tuple[int, ...], counts: tuple[int, ...], seconds: float, save: Path | None,
            compare: Path | None, picture: Path | None, as_json: bool) -> int:  # fmt: skip
    """Measure every transport with every sample size and number of workers.

    Each case shows the samples and bytes per second that the learner takes, how long a complete batch waited for the learner (p50, p99),
    and the processor seconds per second of learner and workers together.
    """
    before = {_case(row): row for row in json.loads(compare.read_text())} if compare else {}
    names = transports or tuple(
        record.name for record in discovery.default.examine(discovery.TRANSPORTS) if not record.error and not record.disabled
    )
    if not names:
        raise ConfigError("no transport is installed; see: echoctl plugins list")
    cases = [(name, size, count) for name in names for size in sizes or (20, 1024, 28672) for count in counts or (1, 4)]
    logging.getLogger("echo").setLevel(logging.ERROR)  # hides messages about lost workers, which are killed after each case
    rows: list[dict[str, Any]] = []
    progress = console(stderr=True)
    for number, (name, size, count) in enumerate(cases, 1):
        if progress.is_terminal:
            progress.print(f"[dim]\\[{number}/{len(cases)}] {name}, {size} B, {counted(count, 'worker')}[/]")
        rows.append(_measure(name, size, count, seconds))
    for row in rows:
        if old := before.get(_case(row)):
            row["ratio"] = row["samples_per_s"] / old["samples_per_s"] if old["samples_per_s"] else None
    if save is not None:
        write_whole(save, (json.dumps(rows, indent=1) + "\n").encode())
    if as_json:
        print_json(rows)
    else:
        columns = ["transport", "bytes", "workers", "samples/s", "MB/s", "dwell p50", "dwell p99", "CPU"] + (["before"] if before else [])
        table(columns, [_shown(row, bool(before)) for row in rows])
    if picture is not None:
        _plot(rows, picture)
    return 0


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["transport"], row["bytes"], row["workers"]


def _shown(row: dict[str, Any], compared: bool) -> list[str]:
    cells = [row["transport"], row["bytes"], row["workers"], f"{row['samples_per_s']:,.0f}", f"{row['bytes_per_s'] / 1e6:,.1f}",
             f"{row['dwell_p50_us']:,.0f} µs", f"{row['dwell_p99_us']:,.0f} µs", f"{row['cpu']:.2f}"]  # fmt: skip
    ratio = row.get("ratio")
    return [*map(str, cells), *([f"{ratio:.2f}×" if ratio else "-"] if compared else [])]


def _measure(name: str, size: int, count: int, seconds: float) -> dict[str, Any]:
    batch = max(1, min(4096, (16 << 20) // size))
    with (
        tempfile.TemporaryDirectory(prefix="echo-bench-") as folder,
        Server(np.zeros(size, np.uint8), batch, _listening(name, folder)) as server,
    ):
        command = [sys.executable, "-c", _WORKER, str(server.address), str(size)]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(count)]
        try:
            return {"transport": name, "bytes": size, "workers": count, **_take(server, workers, seconds, size)}
        finally:
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.wait()


def _take(server: Server, workers: list[subprocess.Popen[bytes]], seconds: float, size: int) -> dict[str, Any]:
    while len(server.peers()) < len(workers):
        if dead := [worker for worker in workers if worker.poll() is not None]:
            raise EchoError(f"a worker ended with exit code {dead[0].returncode} before it connected; see: echoctl doctor")
        time.sleep(0.02)
    until = time.monotonic() + _WARMUP
    while time.monotonic() < until:
        server.sample(20)
    start, taken, cpu = time.monotonic(), 0, _processor_seconds(workers)
    while time.monotonic() - start < seconds:
        server.sample(20)
        taken += server.batch_size
    took = time.monotonic() - start
    stats = server.stats()
    return {
        "samples_per_s": taken / took,
        "bytes_per_s": taken * size / took,
        "dwell_p50_us": stats["latency/queue_dwell_p50_ns"] / 1e3,  # type: ignore[operator]
        "dwell_p99_us": stats["latency/queue_dwell_p99_ns"] / 1e3,  # type: ignore[operator]
        "cpu": (_processor_seconds(workers) - cpu) / took,
    }


def _processor_seconds(workers: list[subprocess.Popen[bytes]]) -> float:
    """The processor seconds of this process and the workers so far."""
    ticks = 0
    for pid in [os.getpid(), *(worker.pid for worker in workers)]:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _listening(name: str, folder: str) -> Any:
    """A transport of that name at a free address, or at the given address."""
    if "://" in name:
        return name
    cls = discovery.transport_class(name)
    fields = {field.name for field in dataclasses.fields(cls.Options)}
    if "port" in fields:
        return cls(port=0)
    if "path" in fields:
        return cls(path=f"{folder}/socket")
    return cls(name=Path(folder).name) if "name" in fields else cls()


def _plot(rows: list[dict[str, Any]], picture: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(f"cannot plot: {error}; run: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    names = [f"{row['transport']}, {row['bytes']} B, {counted(row['workers'], 'worker')}" for row in rows]
    rates = [row["samples_per_s"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 1), layout="constrained")
    axes.plot(rates, names, "o")  # no bars, because a logarithmic scale has no zero where they could begin
    if old := [(row["samples_per_s"] / row["ratio"], name) for row, name in zip(rows, names) if row.get("ratio")]:
        axes.plot([rate for rate, _ in old], [name for _, name in old], "|", color="gray", markersize=14, label="before")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderaxespad=0)
    for rate, name in zip(rates, names):
        axes.annotate(f"{rate:,.0f}", (rate, name), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=8)
    axes.set(xscale="log", xlabel="samples per second")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if max(rates) < 50 * min(rates) else ticker.LogLocator())
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.margins(0.15, 0.5 / len(rows))
    axes.grid(axis="x", which="major", alpha=0.3)
    axes.invert_yaxis()
    with writing(picture):
        figure.savefig(picture, dpi=150)
