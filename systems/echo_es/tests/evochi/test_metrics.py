"""The figures under Evochi's names, over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from echo_es.evochi.metrics import Metrics, served

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


def fetched(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_served_at_their_path() -> None:
    endpoint = served(metrics().text, "127.0.0.1", 0)
    try:
        status, body = fetched(f"{endpoint.url}/metrics")
        assert (status, "worker_pool_workers 0" in body) == (200, True)
        assert fetched(f"{endpoint.url}/")[0] == 404
        assert fetched(f"{endpoint.url}/metrics", Host="evil.example")[0] == 403
    finally:
        endpoint.close()
