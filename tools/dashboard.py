"""Draw docs/_static/grafana.png and grafana-narrow.png: the dashboard of docs/monitoring/grafana.json with the figures of two real runs.

    python tools/dashboard.py [--seconds S] [--keep FILE]

Both examples run at once and serve their figures: CartPole, whose server has a stream, and DQN, whose server has a replay table. Prometheus scrapes them once a
second and evaluates the dashboard's own expressions. Matplotlib draws the panels at their places, not Grafana.

It needs the program `prometheus` (on Debian: apt install prometheus), echo-core[tcp,metrics], gymnasium and matplotlib.
`./dev dashboard` installs all but the first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DASHBOARD = ROOT / "docs" / "monitoring" / "grafana.json"
PICTURES = ROOT / "docs" / "_static"  # the site copies what is there; two pictures for two widths are no image that it would find by itself
#: The name of each server in the pictures, and the command that runs it.
RUNS = {
    "cartpole": ["examples.cartpole", "--workers", "3", "--target", "0", "--no-view", "--no-plot", "--seconds"],
    "dqn": ["examples.dqn", "--workers", "2", "--target", "0", "--steps"],
}
SCRAPE = 1  # seconds
RATE_INTERVAL = 4 * SCRAPE  # Grafana's $__rate_interval is four times the interval of scrapes, if the picture has more points than that
BACK, PANEL, TEXT, FAINT = "#111217", "#181b1f", "#d0d3da", "#3a3e47"
COLOURS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#e0b400"]

Series = list[tuple[str, list[float], list[float]]]  # the legend, seconds, values


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, with its own children."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def ask(url: str) -> bytes:
    """The answer at `url`, once there is somebody to answer, within 30 s."""
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def streaming(port: int) -> None:
    """Return once the learner at `port` takes batches.

    Raises:
        SystemExit: it takes none within two minutes.
    """
    for _ in range(600):
        if re.search(rb"^echo_store_batches_taken_total [1-9]", ask(f"http://127.0.0.1:{port}/metrics"), re.M):
            return
        time.sleep(0.2)
    raise SystemExit("dashboard: a learner took no batch within two minutes; is the machine busy?")


def record(seconds: float, panels: list[dict[str, Any]]) -> list[Series]:
    """Run both examples for `seconds`, and return the series of each panel.

    Raises:
        SystemExit: `prometheus` is missing, or a run ended too early.
    """
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("dashboard: the program `prometheus` is not on the PATH; on Debian: apt install prometheus")
    ports = {name: free_port() for name in RUNS}
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in ports.items()]
        jobs = {"global": {"scrape_interval": f"{SCRAPE}s"}, "scrape_configs": [{"job_name": "echo", "static_configs": targets}]}
        (folder / "prometheus.yml").write_text(json.dumps(jobs))  # JSON is YAML
        limits = {"cartpole": str(seconds + 180), "dqn": "1000000"}
        runs = [held.enter_context(started(sys.executable, "-m", *RUNS[name], limits[name], "--metrics-port", str(port))) for name, port in ports.items()]
        for port in ports.values():
            ask(f"http://127.0.0.1:{port}/readyz")
        base = f"127.0.0.1:{free_port()}"
        places = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={base}"]
        held.enter_context(started(prometheus, *places, "--log.level=error"))
        ask(f"http://{base}/-/ready")
        for port in ports.values():
            streaming(port)
        began = time.time()
        time.sleep(seconds)
        if any(run.poll() is not None for run in runs):
            raise SystemExit("dashboard: a run ended before its figures were recorded; its errors are above")
        return [[line for target in panel["targets"] for line in query(base, target, began, began + seconds)] for panel in panels]


def query(base: str, target: dict[str, str], first: float, last: float) -> Series:
    """What Prometheus answers to a target of the dashboard, with Grafana's variables filled in."""
    expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", f"{RATE_INTERVAL}s")
    asked = urllib.parse.urlencode({"query": expression, "start": first, "end": last, "step": SCRAPE})
    found = json.loads(ask(f"http://{base}/api/v1/query_range?{asked}"))["data"]["result"]
    lines: Series = []
    for one in found:
        legend = target["legendFormat"]
        for name, value in one["metric"].items():
            legend = legend.replace("{{" + name + "}}", value)
        points = [(at - first, float(value)) for at, value in one["values"] if math.isfinite(float(value))]
        lines.append((legend, [at for at, _ in points], [value for _, value in points]))
    return sorted(lines)


def unit(name: str) -> Any:
    """How the axis of a panel writes its values."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

    if name == "percentunit":
        return PercentFormatter(1.0, decimals=0)
    if name in ("s", "Bps", "ops"):
        after = {"s": "s", "Bps": "B/s", "ops": "/s"}[name]
        thousands = EngFormatter(after, sep="")
        return FuncFormatter(lambda value, at: thousands(value, at) if value >= 1 or name == "s" else f"{value:g}{after}")
    return FuncFormatter(lambda value, _: f"{value:g}")


def draw(panels: list[dict[str, Any]], series: list[Series], title: str, path: Path, columns: int, width: float, size: float) -> None:
    """Draw the panels at their places (three columns), or one below another as Grafana does on a phone (one column)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    rows = len({panel["gridPos"]["y"] for panel in panels}) if columns > 1 else len(panels)
    height = rows * (width / columns) * (0.64 if columns > 1 else 0.43) + 0.5
    pyplot.rcParams.update({"font.size": size, "text.color": TEXT, "xtick.color": TEXT, "ytick.color": TEXT})
    figure, grid = pyplot.subplots(rows, columns, figsize=(width, height), facecolor=BACK, squeeze=False, layout="constrained")
    figure.suptitle(title, fontsize=size + 2)
    tops = sorted({panel["gridPos"]["y"] for panel in panels})
    for number, (panel, lines) in enumerate(zip(panels, series, strict=True)):
        place = panel["gridPos"]
        axes = grid[tops.index(place["y"])][place["x"] * columns // 24] if columns > 1 else grid[number][0]
        axes.set_facecolor(PANEL)
        axes.set_title(panel["title"], loc="left", fontsize=size + 1, fontweight="bold")
        axes.grid(color=FAINT, linewidth=0.6)
        axes.tick_params(length=0)
        axes.spines[:].set_color(FAINT)
        for colour, (legend, seconds, values) in zip(COLOURS, lines, strict=False):
            axes.plot(seconds, values, color=colour, linewidth=1.3, label=legend)
        defaults = panel["fieldConfig"]["defaults"]
        axes.yaxis.set_major_formatter(unit(defaults["unit"]))
        axes.yaxis.get_major_locator().set_params(nbins=4)
        top = max((value for _, _, values in lines for value in values), default=0.0)
        axes.set_ylim(defaults.get("min"), defaults.get("max", top * 1.1 or 1.0))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} s")
        if any(values for _, _, values in lines):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=size - 1, frameon=False, handlelength=1.0, columnspacing=1.0)
        else:
            axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes)
    figure.savefig(path, dpi=150, facecolor=BACK)
    with Image.open(path) as picture:  # a few colours: the file has a third of its size
        picture.convert("RGB").quantize(64).save(path, optimize=True)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long figures are recorded (default: %(default)g)")
    parser.add_argument("--keep", type=Path, help="a file for the recorded series; if it is there, it is drawn and nothing runs")
    arguments = parser.parse_args()
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] == "timeseries"]
    if arguments.keep is not None and arguments.keep.is_file():
        series = json.loads(arguments.keep.read_text())
    else:
        series = record(arguments.seconds, panels)
        if arguments.keep is not None:
            arguments.keep.write_text(json.dumps(series))
    for name, columns, width, size in (("grafana.png", 3, 10.5, 9.0), ("grafana-narrow.png", 1, 4.6, 9.0)):
        draw(panels, series, dashboard["title"], PICTURES / name, columns, width, size)
        print(PICTURES / name)


if __name__ == "__main__":
    main()
