"""Figures outside a server: Prometheus' text, the dashboard that reads it, and notebooks."""

from __future__ import annotations

import gc
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Queue, Server, Table
from echoctl.prometheus import Exporter, exposition

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers")


def test_the_dashboard_asks_for_figures_that_there_are() -> None:
    example = np.zeros(2)
    with Server(example, 2, "tcp://127.0.0.1:0") as server, Client(server.address, example) as client:
        client.send(example)
        client.wait(10)
        text = exposition(server.stats())
    with Server(tables=[Table("queue", example, capacity=4, sampler="fifo", rate_limiter=Queue(4))], batch_size=2) as server:
        tables = exposition(server.stats())
    assert 'echo_table_limiter_holds{table="queue",side="samples"} 1' in tables and 'echo_table_limiter_holds{table="queue",side="inserts"} 0' in tables
    there = set(re.findall(r"^(echo_\w+)", text + tables, re.M))
    board = json.loads((ROOT / "docs" / "monitoring" / "grafana.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"echo_\w+", target["expr"])}
    assert asked and asked <= there, asked - there
    states = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r'state="([^"]+)"', target["expr"])}
    assert all(f'state="{state}"' in text for state in states)


def test_an_exporter_outlives_its_server_and_names_a_port_in_use() -> None:
    server = Server(np.zeros(2), 2)
    exporter = Exporter(server)
    port = int(exporter.url.rpartition(":")[2].partition("/")[0])
    with urllib.request.urlopen(exporter.url, timeout=10) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    with pytest.raises(OSError, match=f"127.0.0.1:{port}.*choose another port"):
        Exporter(server, port=port)
    server.close()
    del server
    gc.collect()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(exporter.url, timeout=10)
    exporter.close()


def test_notebooks_show_figures_and_run_nobodys_markup() -> None:
    example = np.zeros(2)
    with Server(example, 2, "tcp://127.0.0.1:0") as server, Client(server.address, example, name="<script>alert(1)</script>") as client:
        client.send(example)
        client.wait(10)
        shown = server._repr_html_()
    assert "store/samples_inserted_total" in shown and "&lt;script&gt;" in shown and "<script" not in shown


def test_a_probe_says_whether_clients_can_connect() -> None:
    server = Server(np.zeros(2), 2, "tcp://127.0.0.1:0")
    exporter = Exporter(server)

    def status() -> int:
        try:
            with urllib.request.urlopen(exporter.url.replace("/metrics", "/readyz"), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        assert status() == 503
        server.start()
        assert status() == 200
        server.drain()
        assert status() == 503
        server.close()
        assert status() == 503
    finally:
        exporter.close()


def test_core_names_the_extra_if_echoctl_is_not_installed(python) -> None:
    python(
        """
        import sys
        sys.modules["echoctl"] = None  # any import of it now fails
        try:
            from echo_core.server.statistics.prometheus import Exporter
        except ImportError as error:
            assert "Exporter is part of echoctl" in str(error) and "echo-core[metrics]" in str(error), error
        else:
            raise AssertionError("it was found")
        """
    )
    python(
        """
        from echo_core.server.statistics.prometheus import Exporter, exposition
        import echoctl.prometheus
        assert Exporter is echoctl.prometheus.Exporter and exposition is echoctl.prometheus.exposition
        """
    )


def test_figures_of_others_are_exposed() -> None:
    figures = {"epoch": 3, "who": "me", "tasks_total": 7, "samples": 2}
    with Server({"x": np.zeros(2, np.float32)}, 4) as server:
        server.add_stats("es", lambda: figures)
        text = exposition(server.stats())
    assert "# TYPE echo_es_epoch gauge\necho_es_epoch 3\n" in text
    assert "# TYPE echo_es_tasks_total counter\necho_es_tasks_total 7\n" in text
    assert "# TYPE echo_es_samples gauge\n" in text
    assert "me" not in [line.split()[-1] for line in text.splitlines()]
