"""The figures under Evochi's names, over HTTP on a port of their own and on the port of gRPC."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from echo_es.evochi.doors import MetricsDoor, SharedDoor
from echo_es.evochi.metrics import Metrics

UPSTREAM = {
    "evaluate_duration_seconds",
    "heartbeat_duration_seconds",
    "initialize_duration_seconds",
    "optimize_duration_seconds",
    "share_state_duration_seconds",
    "worker_pool_workers_added",
    "worker_pool_workers_removed",
    "worker_pool_workers",
    "epochs_created",
    "epochs_total_eval_size",
}


def metrics(workers: int = 0, evaluated: int = 0) -> Metrics:
    return Metrics(lambda: dict.fromkeys(UPSTREAM, 0) | {"worker_pool_workers": workers, "epochs_total_eval_size": evaluated})


def test_the_names_are_those_of_evochi() -> None:
    named = {line.split()[2] for line in metrics().text().splitlines() if line.startswith("# TYPE")}
    assert named == UPSTREAM


def test_prometheus_reads_the_figures() -> None:
    figures = metrics(workers=3, evaluated=12)
    figures.observe("evaluate", 0.3)
    figures.observe("evaluate", 99.0)
    samples = {(sample.name, *sample.labels.values()): sample.value for family in text_string_to_metric_families(figures.text()) for sample in family.samples}
    assert samples["evaluate_duration_seconds_count",] == 2
    assert samples["evaluate_duration_seconds_sum",] == pytest.approx(99.3)
    assert samples["evaluate_duration_seconds_bucket", "0.25"] == 0
    assert samples["evaluate_duration_seconds_bucket", "0.5"] == 1
    assert samples["evaluate_duration_seconds_bucket", "+Inf"] == 2
    assert samples["epochs_total_eval_size_total",] == 12
    assert samples["worker_pool_workers",] == 3


async def fetched(url: str, **headers: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)


@pytest.mark.parametrize("shared", [False, True])
def test_metrics_are_served_at_their_path(shared: bool, tmp_path: Path) -> None:
    async def run() -> None:
        door = SharedDoor(metrics().text, str(tmp_path / "s")) if shared else MetricsDoor(metrics().text)
        port = await door.open("127.0.0.1", 0)
        try:
            status, body = await fetched(f"http://127.0.0.1:{port}/metrics")
            assert (status, "worker_pool_workers 0" in body) == (200, True)
            assert (await fetched(f"http://127.0.0.1:{port}/"))[0] == 404
            assert (await fetched(f"http://127.0.0.1:{port}/metrics", Host="evil.example"))[0] == 403
        finally:
            await door.close()

    asyncio.run(run())


def test_http2_is_passed_on(tmp_path: Path) -> None:
    behind = str(tmp_path / "s")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(100):
            writer.write(piece.upper())
        writer.close()

    async def run() -> None:
        server = await asyncio.start_unix_server(echo, behind)
        door = SharedDoor(metrics().text, behind)
        port = await door.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * http")
        assert await reader.readexactly(10) == b"PRI * HTTP"
        writer.close()
        await door.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
