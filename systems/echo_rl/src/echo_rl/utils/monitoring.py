"""Figures over time: those of Echo's servers, of engines, of this machine, and of any other function that returns numbers.

Names are flat, as those of `server.stats()`: `store/samples_inserted_total`, `engine/hit_rate`, `system/rss_bytes`. A name that ends in
`_total` counts and only grows; its rate per second is computed from two readings.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

_log = logging.getLogger(__name__)

Source = Callable[[], Mapping[str, Any]]


class HasStats(Protocol):
    """A server of Echo, an engine of `echo_rl.engine`, or anything else with such a method."""

    def stats(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class PerformanceMetrics:
    """One reading: `figures` by name, and `time` in seconds since 1970."""

    figures: Mapping[str, float]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Summary:
    """What the readings of one figure have in common; `deviation` is the standard deviation, `p50` and `p95` are percentiles."""

    count: int
    mean: float
    deviation: float
    least: float
    p50: float
    p95: float
    most: float
    last: float


class SystemMonitor:
    """Reads what this process and its machine use.

    `system/cpu_percent` is that of this process since the last reading (100: one core). `system/rss_bytes`, `system/threads` and
    `system/open_files` are this process's; `system/load_1m` and `system/available_bytes` the machine's. With psutil there are also
    `system/children` and `system/children_rss_bytes`, and with CUDA `system/cuda_bytes`.
    """

    def __init__(self) -> None:
        self._before = (time.monotonic(), time.process_time())
        self._psutil = importlib.util.find_spec("psutil") is not None

    def read(self) -> dict[str, float]:
        """The figures now."""
        now = (time.monotonic(), time.process_time())
        wall, cpu = now[0] - self._before[0], now[1] - self._before[1]
        self._before = now
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found = {
            "system/cpu_percent": 100 * cpu / wall if wall > 0 else 0.0,
            "system/rss_bytes": float(pages * os.sysconf("SC_PAGE_SIZE")),
            "system/threads": float(threading.active_count()),
            "system/open_files": float(len(os.listdir("/proc/self/fd"))),
            "system/load_1m": os.getloadavg()[0],
            "system/available_bytes": 1024.0 * int(memory["MemAvailable"].split()[0]),
        }
        if self._psutil:
            found |= _children()
        return found | _cuda()


class MetricsCollector:
    """Keeps the last `history` readings, and says what they have in common. It may be used from several threads."""

    def __init__(self, history: int = 10_000) -> None:
        if history < 2:
            raise ValueError(f"history must be at least 2, got {history}")
        self._readings: deque[PerformanceMetrics] = deque(maxlen=history)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._readings)

    def collect_metrics(self, metrics: PerformanceMetrics) -> None:
        """Adds a reading; numbers that are not finite are left out. Raises ValueError if it is older than the one before."""
        figures = {name: float(value) for name, value in metrics.figures.items() if math.isfinite(value)}
        with self._lock:
            if self._readings and metrics.time < self._readings[-1].time:
                raise ValueError(f"the reading is {self._readings[-1].time - metrics.time:.3f} s older than the one before; collect them in order")
            self._readings.append(PerformanceMetrics(figures, metrics.time))

    def readings(self) -> list[PerformanceMetrics]:
        """The readings, oldest first."""
        with self._lock:
            return list(self._readings)

    def names(self) -> list[str]:
        """The figures that any reading has."""
        return sorted({name for reading in self.readings() for name in reading.figures})

    def series(self, name: str) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
        """Times and values of one figure, float64 (n,) each. Raises KeyError if no reading has it."""
        pairs = [(reading.time, reading.figures[name]) for reading in self.readings() if name in reading.figures]
        if not pairs:
            raise KeyError(f"no reading has {name!r}; there are {', '.join(self.names()) or 'no figures'}")
        times, values = np.array(pairs, np.float64).T
        return times, values

    def summary(self) -> dict[str, Summary]:
        """Every figure's summary."""
        return {name: _summary(self.series(name)[1]) for name in self.names()}

    def rates(self) -> dict[str, float]:
        """How much each figure that ends in `_total` grew per second, over all readings. A count that began anew goes on from 0."""
        found = {}
        for name in self.names():
            times, values = self.series(name)
            if name.endswith("_total") and times[-1] > times[0]:
                steps = np.diff(values)
                found[name] = float(np.where(steps < 0, values[1:], steps).sum() / (times[-1] - times[0]))
        return found

    def trend(self, name: str) -> float:
        """The slope of a figure per second, by least squares; 0 with fewer than two different times. Raises KeyError if no reading has it."""
        times, values = self.series(name)
        moved = times - times.mean()
        square = float((moved**2).sum())
        return float((moved * values).sum() / square) if square > 0 else 0.0

    def export(self, path: str | Path) -> None:
        """Writes all readings: as a table if the name ends in .csv, as JSON if it ends in .json. Raises ValueError for another ending."""
        file, readings, names = Path(path), self.readings(), self.names()
        partial = file.with_name(file.name + ".new")
        if file.suffix == ".csv":
            with partial.open("w", newline="") as opened:
                writer = csv.writer(opened)
                writer.writerow(["time", *names])
                writer.writerows([reading.time, *(reading.figures.get(name, "") for name in names)] for reading in readings)
        elif file.suffix == ".json":
            partial.write_text(json.dumps([{"time": reading.time, **reading.figures} for reading in readings]))
        else:
            raise ValueError(f"{file.name} must end in .csv or .json")
        # By a rename, so that an interruption leaves the older file whole.
        partial.replace(file)


class MetricsLogger:
    """Appends readings to a file, one line of JSON each, so that a killed run keeps what it had."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = self.path.open("a")

    def log(self, metrics: PerformanceMetrics) -> None:
        """Writes one reading."""
        self._file.write(json.dumps({"time": metrics.time, **metrics.figures}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @staticmethod
    def read(path: str | Path) -> Iterator[PerformanceMetrics]:
        """The readings of a file. A last line that was not written to its end is left out; any other wrong line raises ValueError."""
        lines = Path(path).read_text().split("\n")
        for number, line in enumerate(lines[:-1], 1):
            try:
                figures = json.loads(line)
                yield PerformanceMetrics({name: float(value) for name, value in figures.items() if name != "time"}, float(figures["time"]))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}, is no reading: {error}") from error


class PerformanceMonitor:
    """Reads figures in a thread of its own, every `interval` seconds.

    Args:
        server: a server of Echo. Its figures keep their names.
        engine: an engine of `echo_rl.engine`. Its figures are named `engine/...`.
        sources: further functions that return figures, by name. The figures of the function under the key `x` are named `x/...`.
        interval: the seconds between two readings.
        collector: the collector that keeps the readings. By default a new one is made.
        logger: a file that gets the readings as well. The monitor does not close it.
    """

    def __init__(
        self,
        server: HasStats | None = None,
        engine: HasStats | None = None,
        *,
        sources: Mapping[str, Source] | None = None,
        interval: float = 1.0,
        collector: MetricsCollector | None = None,
        logger: MetricsLogger | None = None,
    ) -> None:
        if not interval > 0:
            raise ValueError(f"interval must be greater than 0, got {interval}")
        self.interval, self.collector, self.logger = interval, collector or MetricsCollector(), logger
        self._sources: dict[str, Source] = {"system": SystemMonitor().read}
        if server is not None:
            self._sources["server"] = server.stats
        if engine is not None:
            self._sources["engine"] = lambda: {f"engine/{name}": value for name, value in engine.stats().items()}
        for key, source in (sources or {}).items():
            if key in self._sources:
                raise ValueError(f"the name {key!r} is taken; name the source otherwise")
            self._sources[key] = _prefixed(key, source)
        self._epoch = time.time() - time.monotonic()  # so that readings stay in order if somebody sets the clock back
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: set[str] = set()

    def read(self) -> PerformanceMetrics:
        """Reads all figures once, now. A source that fails is left out, and the log says so the first time."""
        figures: dict[str, float] = {}
        for key, source in self._sources.items():
            try:
                found = source()
            except Exception:
                if key not in self._failing:
                    _log.exception("the figures of %r could not be read; the monitor goes on without them", key)
                self._failing.add(key)
                continue
            self._failing.discard(key)
            figures |= {name: float(value) for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)}
        return PerformanceMetrics(figures, self._epoch + time.monotonic())

    def start_monitoring(self) -> None:
        """Begins to read. Raises RuntimeError if it has begun already."""
        if self._thread is not None:
            raise RuntimeError("the monitor runs already; call stop_monitoring() first")
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="echo-rl-monitor", daemon=True)
        self._thread.start()

    def stop_monitoring(self, timeout: float = 10.0) -> MetricsCollector:
        """Takes a last reading, ends the thread and returns the readings; a monitor that does not run only returns them.

        Raises TimeoutError if a source did not answer within `timeout` seconds.
        """
        thread = self._thread
        if thread is not None:
            self._stop.set()
            thread.join(timeout)
            if thread.is_alive():
                raise TimeoutError(f"a source of the monitor did not answer within {timeout} s; it has {', '.join(self._sources)}")
            self._thread = None
        return self.collector

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_monitoring()

    def _run(self) -> None:
        while True:
            over = self._stop.is_set()
            reading = self.read()
            self.collector.collect_metrics(reading)
            if self.logger is not None:
                self.logger.log(reading)
            if over:
                return
            self._stop.wait(self.interval)


def _prefixed(key: str, source: Source) -> Source:
    return lambda: {f"{key}/{name}": value for name, value in source().items()}


def _summary(values: np.ndarray[Any, np.dtype[np.float64]]) -> Summary:
    p50, p95 = np.percentile(values, (50, 95))
    figures = (values.mean(), values.std(), values.min(), p50, p95, values.max(), values[-1])
    return Summary(len(values), *(float(value) for value in figures))


def _children() -> dict[str, float]:
    import psutil

    sizes = []
    for child in psutil.Process().children(recursive=True):
        try:
            sizes.append(child.memory_info().rss)
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
    return {"system/children": float(len(sizes)), "system/children_rss_bytes": float(sum(sizes))}


def _cuda() -> dict[str, float]:
    # Without an import of its own, which would take seconds: a process that has not imported PyTorch holds no memory of its.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return {"system/cuda_bytes": float(cuda.memory_allocated())} if cuda is not None and cuda.is_available() else {}
