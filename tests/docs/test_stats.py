"""docs/stats.md names every figure of a running server, and no other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Queue, Ragged, Sequences, Server, Steps, Table, __version__
from echo_core.base.errors import ConfigError
from echo_testing.processes import until

exposition = pytest.importorskip("echoctl.prometheus").exposition

pytestmark = pytest.mark.needs("echo-core", "echo-samplers", "echo-shm", "echo-tcp", "echo-grpc", "echo-rdma")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stats.md"
EXAMPLE = {"x": np.zeros(2, np.float32)}
STEP = {"x": np.zeros(2, np.float32), "reward": np.float32(0)}
SCHEMES = {"tcp": "127.0.0.1:0", "tcps": "127.0.0.1:0", "grpc": "127.0.0.1:0", "grpcs": "127.0.0.1:0", "rdma": "127.0.0.1:0", "shm": "stats-page"}
# No server here has them: a name of UCX's lanes, and a refusal that only a broken client brings about.
ELSEWHERE = {"transport/rdma/lane_<name>", "table/<name>/refused_last"}


def told() -> set[str]:
    """Names of the page; a histogram's `*` stands for its figures."""
    names = set()
    for row in re.findall(r"^\| (`(?:store|latency|weights|worker|relay|table|transport|clients)/[^|]*)\|", PAGE.read_text(), re.M):
        names |= set(re.findall(r"`([^`]+)`", row))
    figures = ("count", "p50_ns", "p90_ns", "p99_ns", "max_ns")
    return {each for name in names for each in ([name[:-1] + figure for figure in figures] if name.endswith("*") else [name])}


def plain(name: str) -> str:
    """A server's name as the page writes it."""
    name = re.sub(r"^(worker|relay|table)/[^/]+/", r"\1/<name>/", name)
    name = re.sub(r"(?<=/)units_(inserted_|sampled_)?t$", r"units_\1<axis>", name)
    name = re.sub(r"(?<=/)lag_\d+_\d+$", "lag_<n>_<m>", re.sub(r"(?<=/)lag_\d+$", "lag_<n>", name))
    return re.sub(r"^transport/rdma/lane_.*", "transport/rdma/lane_<name>", name)


def over(scheme: str) -> dict[str, Any]:
    try:
        with Server(EXAMPLE, 2, f"{scheme}://{SCHEMES[scheme]}") as server, Client(server.address, EXAMPLE) as client:
            client.send_batch({"x": np.zeros((2, 2), np.float32)})
            client.wait(10)
            return server.stats()
    except ConfigError as error:
        pytest.skip(f"{scheme}: {error}")  # no UCX that can be used


def of_tables() -> dict[str, Any]:
    tables = [
        Table("replay", EXAMPLE, capacity=64, sampler="uniform", policy_versions=True),
        Table("steps", STEP, capacity=64, sampler="uniform", items=Sequences(length=2, period=2)),
        Table("queue", EXAMPLE, capacity=64, sampler="fifo", rate_limiter=Queue(64), lease_timeout=30.0),
        Table("rollouts", {"tokens": Ragged(np.int32, most=100)}, capacity=64, max_bytes=1 << 16, sampler="fifo", rate_limiter=Queue(64)),
    ]
    with Server(tables=tables, batch_size=2, transport="tcp://127.0.0.1:0") as server:
        for _ in range(4):  # lags of 0 to 3
            server.publish({"w": np.zeros(2)})
            server.submit(EXAMPLE, table="replay")
        with Client(server.address, Steps(STEP), table="steps") as client:
            client.send(STEP)
            client.wait(10)
            return server.stats()


def of_relays() -> dict[str, Any]:
    """The figures of a learner and of a relay, in one."""
    with Server(EXAMPLE, 2, "tcp://127.0.0.1:0") as learner, Server(EXAMPLE, 2, "tcp://127.0.0.1:0", weights_from=learner.address) as relay:
        until(lambda: any(peer.relayed is not None for peer in learner.peers()), "the relay has reported")
        return relay.stats() | learner.stats()


def test_the_page_has_every_figure_and_no_other() -> None:
    page = told()
    there: set[str] = {plain(name) for name in of_tables() | of_relays()}
    for scheme in SCHEMES:
        stats = over(scheme)
        there |= {name if (name := plain(key)) in page else name.replace(f"transport/{scheme}/", "transport/<scheme>/") for key in stats}
    there = {name if name in page else re.sub("^transport/tcp/", "transport/<scheme>/", name) for name in there}
    assert there - page == set(), "docs/stats.md lacks these"
    assert page - there <= ELSEWHERE, "no server has these"


def test_what_only_grows_is_a_counter() -> None:
    text = exposition({**over("rdma"), **over("shm"), **of_tables()})
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
    counted = "inserts samples deleted evicted push_blocked aborted redrawn updated gone drawn_batches stale acknowledged refused steps episodes truncated"
    for name in counted.split():
        assert kinds.get(f"echo_table_{name}_total") == "counter", name
    assert kinds["echo_table_redelivered"] == kinds["echo_table_size"] == kinds["echo_store_samples"] == "gauge"
    for name in ("killed_workers", "revoked_claims", "moved_batches", "messages", "direct", "shown", "samples", "refused"):
        assert kinds[f"echo_transport_{name}_total"] == "counter", name
    assert kinds["echo_transport_direct_workers"] == kinds["echo_transport_active_connections"] == "gauge"


def test_every_family_has_a_help_line_with_the_text_of_the_page() -> None:
    done = subprocess.run([sys.executable, str(PAGE.parents[1] / "tools" / "meanings.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python tools/meanings.py"
    text = exposition({**over("tcp"), **over("rdma"), **of_tables(), **of_relays()})
    kinds, helps = (dict(re.findall(rf"^# {word} (\w+) (.+)$", text, re.M)) for word in ("TYPE", "HELP"))
    assert kinds.keys() == helps.keys() and not [name for name, text in helps.items() if "in Server.stats()" in text]
    assert helps["echo_table_size"] == "number of items in the table, and number that fit"
    assert helps["echo_table_lag_0"] == "number of items that lag by so many versions: lag_0, lag_1, lag_2_3, lag_4_7, ..."
    assert helps["echo_copy_max_seconds"] == helps["echo_copy_seconds"] == "how long it took to copy one sample into its slot"
    assert text.index("# HELP echo_table_size ") < text.index("# TYPE echo_table_size ") < text.index("\necho_table_size{")


def test_the_build_is_a_metric() -> None:
    text = exposition(over("tcp"))
    python = ".".join(map(str, sys.version_info[:3]))
    assert re.search(rf'^echo_build_info{{version="{re.escape(__version__)}",python="{re.escape(python)}[^"]*"}} 1$', text, re.M)
