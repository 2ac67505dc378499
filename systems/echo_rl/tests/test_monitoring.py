"""Monitoring: real figures of a server, an engine and this process, kept, summed up and written."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from echo_core import Server
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.utils.monitoring import MetricsCollector, MetricsLogger, PerformanceMetrics, PerformanceMonitor, SystemMonitor

MODEL = ModelConfig("gpt2", vocab=20, layers=1, heads=2, width=8, inner=8, context=32)


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_a_monitor_reads_a_server_an_engine_and_a_source() -> None:
    engine = Engine(Model.random(MODEL), slots=2, room=8)
    with Server({"x": np.zeros(2)}, batch_size=4) as server:
        monitor = PerformanceMonitor(server, engine, sources={"own": lambda: {"answer": 42, "text": "left out", "nan": float("nan")}}, interval=0.01)
        with monitor:
            until(lambda: len(monitor.collector) >= 3)
            for i in range(8):
                server.submit({"x": np.full(2, float(i))})
            engine.submit([1, 2, 3], 4)
            engine.run()
        last = monitor.collector.readings()[-1].figures
    assert last["store/samples_inserted_total"] == 8 and last["engine/made_tokens"] == 4 and last["own/answer"] == 42
    assert not {"own/text", "own/nan"} & last.keys() and last["system/rss_bytes"] > 1e6
    assert monitor.collector.rates()["store/samples_inserted_total"] > 0
    assert monitor.collector.summary()["engine/made_tokens"].most == 4
    assert not [thread for thread in threading.enumerate() if thread.name == "echo-rl-monitor"]


def test_a_monitor_can_be_started_again_but_not_twice() -> None:
    monitor = PerformanceMonitor(interval=60)
    assert len(monitor.stop_monitoring()) == 0
    monitor.start_monitoring()
    with pytest.raises(RuntimeError, match="runs already"):
        monitor.start_monitoring()
    until(lambda: len(monitor.collector) == 1)
    assert len(monitor.stop_monitoring()) == 2, "it does not wait for the interval, and takes a last reading"
    monitor.start_monitoring()
    assert len(monitor.stop_monitoring()) > 2
    with pytest.raises(ValueError, match="'system' is taken"):
        PerformanceMonitor(sources={"system": dict})
    with pytest.raises(ValueError, match="interval"):
        PerformanceMonitor(interval=0)


def test_a_source_that_fails_is_said_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def source() -> dict[str, float]:
        if broken:
            raise OSError("gone")
        return {"a": 1.0}

    monitor = PerformanceMonitor(sources={"mine": source, "other": lambda: {"b": 2}})
    with caplog.at_level(logging.ERROR):
        assert "other/b" in monitor.read().figures and "other/b" in monitor.read().figures
    assert caplog.text.count("the figures of 'mine' could not be read") == 1
    broken = False
    assert monitor.read().figures["mine/a"] == 1


def test_a_source_that_hangs_is_no_hang() -> None:
    asked, release = threading.Event(), threading.Event()

    def hanging() -> dict[str, float]:
        asked.set()
        release.wait(60)
        return {}

    monitor = PerformanceMonitor(sources={"slow": hanging})
    monitor.start_monitoring()
    assert asked.wait(60)
    with pytest.raises(TimeoutError, match="did not answer within 0.01 s; it has system, slow"):
        monitor.stop_monitoring(timeout=0.01)
    release.set()
    monitor.stop_monitoring()


def filled(values: list[float], name: str = "x", **options: int) -> MetricsCollector:
    collector = MetricsCollector(**options)
    for i, value in enumerate(values):
        collector.collect_metrics(PerformanceMetrics({name: value}, 100.0 + 2 * i))
    return collector


def test_summaries_trends_and_rates() -> None:
    summary = filled([1.0, 2.0, 3.0, 4.0]).summary()["x"]
    assert (summary.count, summary.mean, summary.least, summary.p50, summary.most, summary.last) == (4, 2.5, 1, 2.5, 4, 4)
    assert summary.deviation == pytest.approx(np.std([1, 2, 3, 4])) and summary.p95 == pytest.approx(3.85)
    assert filled([1.0, 2.0, 3.0]).trend("x") == pytest.approx(0.5) and filled([5.0]).trend("x") == 0
    # A server that was started anew counts from 0.
    assert filled([10.0, 30.0, 6.0], "n_total").rates() == {"n_total": (20 + 6) / 4}
    assert filled([1.0, 9.0]).rates() == {}, "it is no count"
    assert [r.figures["x"] for r in filled([1.0, 2.0, 3.0], history=2).readings()] == [2, 3]
    with pytest.raises(KeyError, match="no reading has 'y'; there are x"):
        filled([1.0]).trend("y")


def test_readings_come_in_order_and_are_finite() -> None:
    collector = filled([1.0, 2.0])
    with pytest.raises(ValueError, match=r"2\.000 s older"):
        collector.collect_metrics(PerformanceMetrics({}, 100.0))
    collector.collect_metrics(PerformanceMetrics({"x": float("inf"), "y": 1}, 200.0))
    assert collector.readings()[-1].figures == {"y": 1}
    with pytest.raises(ValueError, match="history"):
        MetricsCollector(1)


def test_exports_hold_every_reading(tmp_path: Path) -> None:
    collector = filled([1.0, 2.0])
    collector.collect_metrics(PerformanceMetrics({"y": 3.0}, 200.0))
    collector.export(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == [{"time": 100, "x": 1}, {"time": 102, "x": 2}, {"time": 200, "y": 3}]
    collector.export(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["time", "x", "y"], ["100.0", "1.0", ""], ["102.0", "2.0", ""], ["200.0", "", "3.0"]]
    with pytest.raises(ValueError, match=r"a\.txt must end in \.csv or \.json"):
        collector.export(tmp_path / "a.txt")
    assert {file.name for file in tmp_path.iterdir()} == {"a.json", "a.csv"}


def test_a_log_can_be_read_again_also_after_a_kill(tmp_path: Path) -> None:
    logger = MetricsLogger(tmp_path / "log.jsonl")
    with PerformanceMonitor(logger=logger, interval=0.01) as monitor:
        until(lambda: len(monitor.collector) >= 3)
    logger.close()
    assert [r.figures for r in MetricsLogger.read(logger.path)] == [r.figures for r in monitor.collector.readings()]
    with logger.path.open("a") as file:
        file.write('{"time": 1')
    assert len(list(MetricsLogger.read(logger.path))) == len(monitor.collector)
    logger.path.write_text('{"time": 1, "x": 2}\n[]\n')
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2, is no reading"):
        list(MetricsLogger.read(logger.path))


def test_the_system_is_read_without_psutil_too() -> None:
    monitor = SystemMonitor()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert 0 < monitor.read()["system/cpu_percent"] < 150
    program = """
import sys
sys.modules["psutil"] = None
from echo_rl.utils.monitoring import SystemMonitor
print(sorted(SystemMonitor().read()))
assert "torch" not in sys.modules, "its import takes seconds"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "system/rss_bytes" in done.stdout and "children" not in done.stdout


def test_children_are_counted_with_psutil() -> None:
    pytest.importorskip("psutil")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = SystemMonitor().read()
        assert found["system/children"] >= 1 and found["system/children_rss_bytes"] > 0
    finally:
        child.communicate(timeout=60)


def test_readings_follow_the_clock_that_nobody_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, steady, before = PerformanceMonitor(), time.monotonic, time.time()
    began, first = steady(), monitor.read().time
    assert before - 1 <= first <= time.time() + 1
    monkeypatch.setattr(time, "monotonic", lambda: steady() + 3600)
    ahead = monitor.read().time - first - 3600
    assert -1e-3 <= ahead <= steady() - began + 1e-3
