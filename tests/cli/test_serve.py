"""`echoctl serve`, and those that look at it: top, doctor, its web page, its figures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, EchoError
from echo_core.client.observer import Observer
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-tcp", "echo-samplers", "click", "rich")

COMMAND = [sys.executable, "-m", "echoctl"]
EXAMPLE = {"obs": np.zeros(3, np.float32), "next": {"reward": np.float32(0)}}


def samples(n: int) -> dict[str, object]:
    return {"obs": np.ones((n, 3), np.float32), "next": {"reward": np.ones(n, np.float32)}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_announces_itself_serves_and_drains(serve, number: int) -> None:
    server = serve()
    facts = server.facts
    assert facts["addresses"] == [server.address] and facts["pid"] == server.process.pid
    assert (facts["sampler"], facts["batch_size"], facts["sample_bytes"]) == ("fifo", 4, 16)
    assert Path(facts["token"]).is_file() and os.stat(facts["token"]).st_mode & 0o077 == 0
    with Client(server.address, EXAMPLE) as client:
        client.send_batch(samples(1))
        client.wait(10)
        done = server.end(number)
        until(lambda: not client.stats()["connected"], "the worker hears of it")
        assert client.ended == (number == signal.SIGINT), "Ctrl-C ends the job, and after SIGTERM the server may come back"
    assert done.code == 0 and "1 sample received, 0 batches taken, 1 sample left" in done.err
    assert not server.address_file.exists()


def test_a_server_that_consumes_takes_batches(serve) -> None:
    server = serve("--consume")
    with Client(server.address, EXAMPLE) as client:
        for _ in range(10):
            client.send_batch(samples(4))  # many times what the store holds
        client.wait(10)
    assert "40 samples received, 10 batches taken" in server.end().err


def test_examples_come_from_files_and_functions(echoctl, serve, tmp_path: Path) -> None:
    np.savez(tmp_path / "sample.npz", **{"obs": np.zeros((2, 2), np.uint8), "next/obs": np.zeros(3, np.int64)})
    server = serve("--example", "sample.npz")
    Client(server.address, {"obs": np.zeros((2, 2), np.uint8), "next": {"obs": np.zeros(3, np.int64)}}).close()
    server.end()
    (tmp_path / "mine.py").write_text("import numpy as np\ndef example():\n    return [np.zeros(2), np.zeros((), bool)]\n")
    server = serve("--example", "mine:example")
    Client(server.address, [np.zeros(2), np.zeros((), bool)]).close()
    server.end()
    for source, said in [("mine:nothing", "has no attribute 'nothing'"), ("no.npz", "cannot be read"), ("what", "give a .toml file")]:
        done = echoctl("serve", "-c", "echo.toml", "--example", source)
        assert done.code == 2 and said in done.err, done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "add a table [example]"),
        (["-c", "echo.toml", "server.batchsize=3"], "did you mean 'batch_size'?"),
        (["-c", "no.toml"], "check the path"),
        (["-c", "bad.toml"], 'a leaf is written { shape = [84, 84, 4], dtype = "uint8" }'),
        (["--example", "echo.toml", "--batch-size", "4"], "no worker could connect; give --transport"),
        (["--example", "echo.toml", "--transport", "tpc://127.0.0.1:0", "--batch-size", "4"], "did you mean 'tcp'?"),
        (["--example", "echo.toml", "--transport", "tcp://127.0.0.1:0"], "ECHO_SERVER__BATCH_SIZE"),
        (["--example", "echo.toml", "--transport", "tcp://0.0.0.0:0", "--batch-size", "4", "security.auth=false"], "allow_insecure"),
    ],
)
def test_mistakes_end_in_the_thing_to_do(echoctl, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "echo.toml").write_text("[server]\nbatch_size = 4\n[example]\nobs = { dtype = 'float32' }\n")
    (tmp_path / "bad.toml").write_text("[example]\nobs = { dtype = 'float33' }\n")
    done = echoctl("serve", *arguments)
    assert done.code in (2, 3) and said in done.err and "Traceback" not in done.err, done.err
    as_json = echoctl("serve", *arguments, "--json")
    assert as_json.code == done.code == as_json.json["exit_code"] and said in as_json.json["error"]


def test_a_port_in_use_is_named(serve, echoctl, tmp_path: Path) -> None:
    server = serve()
    done = echoctl("serve", "-c", "echo.toml", "--transport", server.address)
    assert done.code == 3 and server.address.rpartition(":")[2] in done.err and "in use" in done.err


def test_top_sees_workers_rates_and_who_waits(serve, echoctl) -> None:
    server = serve()
    with Client(server.address, EXAMPLE, name="rack/1") as client:
        client.send_batch(samples(12))
        client.wait(10)
        with pytest.raises(EchoError):  # nobody takes batches: the store is full
            client.send_batch(samples(40), timeout=0.1)
            client.wait(0.5)
        done = echoctl("top", server.address, "--count", 2, "--interval", 0.2, "--json")
        assert done.code == 0
        first, second = map(json.loads, done.out.splitlines())
        assert second["stored"] == second["capacity"] == 12 and second["fill"] == 1
        (worker,) = second["workers"]
        assert (worker["name"], worker["inserted"], worker["state"]) == ("rack/1", 12, "waiting for space")
        assert second["time"] > first["time"] and worker["since"] > 0.2
        assert second["waits"][0].startswith("rack/1 waits for space, for ")
        assert second["waits"][0].endswith("s: " + worker["waits_for"]) and worker["waits_for"].startswith("12 samples wait in 3 of 3 batch buffers")
        seen = echoctl("top", server.address, "--count", 1, "--interval", 0.2).out
        assert "rack/1" in seen and "waiting for space" in seen and "12/12" in seen
        with pytest.raises(EchoError):
            client.close(0.1)
    server.end()


TABLES = """
[server]
batch_size = 4
transport = "tcp://127.0.0.1:0"

[[server.tables]]
name = "replay"
capacity = 1_000_000
sampler = "uniform"
rate_limiter = { type = "SampleToInsertRatio", samples_per_insert = 4, min_size_to_sample = 8, error_buffer = 32 }

[[server.tables]]
name = "queue"
capacity = 10
sampler = "fifo"
rate_limiter = { type = "Queue", size = 10 }

[example]
obs = { shape = [3], dtype = "float32" }
next.reward = { dtype = "float32" }
"""


def test_top_has_a_row_for_each_table(serve, echoctl, tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(TABLES)
    server = serve("-c", "tables.toml")
    with Client(server.address, EXAMPLE, table="replay") as client:
        client.send_batch(samples(12))
        client.wait(10)
        client.table("replay").sample(4, timeout=10)
        (shown,) = map(json.loads, echoctl("top", server.address, "--count", 1, "--interval", 0.2, "--json").out.splitlines())
        rows = {row["name"]: row for row in shown["tables"]}
        assert list(rows) == ["replay", "queue"]
        assert (rows["replay"]["size"], rows["replay"]["capacity"]) == (12, 1_000_000)
        assert rows["replay"]["samples_per_insert"] == pytest.approx(4 / 12)
        assert (rows["replay"]["holds"], rows["queue"]["holds"]) == ("nobody", "the learner")
        assert any(text.startswith("the limiter holds the learner, for ") and "table 'queue': Queue(10)" in text for text in shown["waits"])
        seen = echoctl("top", server.address, "--count", 1, "--interval", 0.2).out
        assert "12 of 1.00M" in seen and "1 worker, 12 samples inserted" in seen and "samples/s" not in seen
    server.end()


def test_top_names_the_limiter_that_holds_the_workers(serve, echoctl, tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(TABLES)
    server = serve("-c", "tables.toml")
    with Client(server.address, EXAMPLE, table="queue", name="digger") as client:
        with pytest.raises(EchoError):
            client.send_batch(samples(20))
            client.wait(0.5)
        reason = (
            "table 'queue': Queue(10) allows no insert after 10 inserts and 0 samples (0 inserts under way); the learner samples slower than "
            "the workers insert"
        )
        (shown,) = map(json.loads, echoctl("top", server.address, "--count", 1, "--interval", 0.2, "--json").out.splitlines())
        rows = {row["name"]: row for row in shown["tables"]}
        assert (rows["queue"]["holds"], rows["queue"]["why"]) == ("the workers", reason)
        assert [(worker["name"], worker["state"], worker["waits_for"]) for worker in shown["workers"]] == [("digger", "waiting for space", reason)]
        seen = " ".join(echoctl("top", server.address, "--count", 1, "--interval", 0.2, COLUMNS="120").out.split())
        assert re.search(r"the limiter holds the workers, for \d+\.\d s: " + re.escape(reason), seen), seen
        assert "digger waits" not in seen, "the limiter's line says it"
        with pytest.raises(EchoError):
            client.close(0.1)
    server.end()


def test_top_names_what_holds_a_worker_where_no_limiter_does(serve, echoctl, tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(TABLES.replace('sampler = "fifo"\n', 'sampler = "fifo"\nlease_timeout = 600.0\n'))
    server = serve("-c", "tables.toml")
    with Client(server.address, EXAMPLE, table="queue", name="digger") as client, Client(server.address, EXAMPLE, table="queue") as learner:
        client.send_batch(samples(10))
        client.wait(10)
        learner.sample(10, timeout=10)  # and never acknowledged
        with pytest.raises(EchoError):
            client.send_batch(samples(10))
            client.wait(0.5)
        seen = " ".join(echoctl("top", server.address, "--count", 1, "--interval", 0.2, COLUMNS="120").out.split())
        assert re.search(r"digger waits for space, for \d+\.\d s: table 'queue': items that a learner was given and has not acknowledged", seen), seen
        with pytest.raises(EchoError):
            client.close(0.1)
    server.end()


def test_tap_shows_samples_decoded_and_takes_none(serve, echoctl) -> None:
    server = serve()
    nothing = echoctl("tap", server.address, "--timeout", 0.3)
    assert nothing.code == 3 and "the store has no samples" in nothing.err
    with Client(server.address, EXAMPLE) as client:
        made = samples(6)
        made["obs"][5] = [0.5, np.nan, -np.inf]
        client.send_batch(made)
        client.wait(10)
        shown = echoctl("tap", server.address, "-n", 2)
        assert shown.code == 0 and "sample 2 of 2, the newest" in shown.out, shown.err
        assert [line.split() for line in shown.out.splitlines() if "obs" in line][1] == ["obs", "float32", "3", "0.5", "nan", "-inf"]
        first, last = map(json.loads, echoctl("tap", server.address, "-n", 2, "--json").out.splitlines())
        assert first == {"sample": {"next": {"reward": 1.0}, "obs": [1.0, 1.0, 1.0]}}
        assert last["sample"]["obs"] == [0.5, "nan", "-inf"]
        client.send_batch(samples(2))
        client.wait(10)
    assert echoctl("tap", server.address, "--table", "x").err.count("this server streams") == 1
    assert "8 samples received, 0 batches taken, 8 samples left" in server.end().err


def test_the_log_says_who_came(serve, echoctl) -> None:
    server = serve()
    with Client(server.address, EXAMPLE, name="rack/1"), Observer(server.address, name="a look"):
        pass
    log = server.end().err
    assert "worker rack/1 connected from" in log and "observer a look connected from" in log and "observer a look left" in log, log


def test_an_observer_is_no_worker_and_needs_no_example(serve) -> None:
    server = serve()
    with Observer(server.address) as observer:
        stats = observer.stats()
        assert stats["store/active_connections"] == 0 and stats["store/batch_size"] == 4
        assert not [key for key in stats if key.startswith("worker/")]
        began = time.monotonic()
        seconds, ahead = observer.ping()
        took = time.monotonic() - began
        assert 0 < seconds <= took and abs(ahead) <= took + 1, "both have the same clock, which may be set meanwhile"
        with pytest.raises(EchoError, match="no operation 'nonsense'"):
            observer.request("nonsense")
    with pytest.raises(PermissionError):
        Observer(server.address, token="another-token-than-the-servers")


def test_nobody_there(echoctl) -> None:
    done = echoctl("top", "tcp://127.0.0.1:1", "--timeout", 0.5)
    assert done.code == 3 and "start the learner, or correct the address; if a server was there before, its job may be over" in done.err
    assert echoctl("top", "127.0.0.1:1").code == 2
    doctor = echoctl("doctor", "tcp://127.0.0.1:1", "--timeout", 0.5, "--json")
    assert doctor.code == 1 and [line["what"] for line in doctor.json if line["status"] == "failure"] == ["connection"]


def test_doctor_looks_at_the_machine_and_the_way_to_a_server(serve, echoctl, tmp_path: Path) -> None:
    server = serve()
    done = echoctl("doctor", server.address, "--json")
    found = {line["what"]: line for line in done.json}
    assert {"versions", "transports", "samplers", "memory", "/dev/shm", "file descriptors", "ports", "token"} < set(found)
    assert {"connection", "round trip", "clocks", "its version", "server"} < set(found)
    assert done.code == 0 and found["clocks"]["status"] == found["its version"]["status"] == "ok"
    token = tmp_path / "token"
    token.write_text("a-token-that-everybody-can-read\n")
    token.chmod(0o644)
    open_token = echoctl("doctor", "--json", ECHO_TOKEN_FILE=str(token))
    (failure,) = [line for line in open_token.json if line["status"] == "failure"]
    assert open_token.code == 1 and failure["what"] == "token" and "chmod 600" in failure["found"]


def test_doctor_fails_only_for_plugins_that_the_server_needs(serve, echoctl, tmp_path: Path) -> None:
    server = serve()
    info = tmp_path / "echo_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[echo.transports]\nbroken = no_such_module\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    for address, code, status in (((), 1, "failure"), ((server.address,), 0, "warning")):
        done = echoctl("doctor", *address, "--json", PYTHONPATH=path)
        (broken,) = [line for line in done.json if "no_such_module" in line["found"]]
        assert done.code == code and broken["status"] == status


@pytest.mark.needs("echo-rdma")
def test_what_a_transport_found_is_shown(serve, echoctl) -> None:
    (shown,) = echoctl("plugins", "show", "rdma", "--json", UCX_TLS="tcp").json
    assert shown["found"]["UCX settings"] == "UCX_TLS=tcp" and {"UCX", "UCX lanes", "RDMA devices", "locked memory"} <= set(shown["found"])
    assert "UCX_TLS=tcp" in echoctl("plugins", "show", "rdma", UCX_TLS="tcp").out


def test_doctor_asks_transports_what_they_find(echoctl, tmp_path: Path) -> None:
    pytest.importorskip("echo_grpc.transport")
    fine = {line["what"]: line for line in echoctl("doctor", "--json", GRPC_ENABLE_FORK_SUPPORT="0").json}
    assert fine["gRPC and fork"]["status"] == "ok"
    told = {line["what"]: line for line in echoctl("doctor", "--json", GRPC_ENABLE_FORK_SUPPORT="1").json}
    assert told["gRPC and fork"]["status"] == "warning" and "spawn" in told["gRPC and fork"]["fix"]
    pytest.importorskip("echo_rdma.transport")
    none = {line["what"]: line for line in echoctl("doctor", "--json", ECHO_UCX_LIBRARY=str(tmp_path / "no.so")).json}
    assert none["UCX"]["status"] == "warning" and "install UCX" in none["UCX"]["fix"] and "RDMA devices" in none


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_web_page_is_for_whoever_has_the_link(serve) -> None:
    server = serve()
    view = subprocess.Popen(
        [*COMMAND, "top", server.address, "--web", "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where the tests run in the background of a shell
    )  # fmt: skip
    try:
        assert view.stdout is not None
        url, _, token = json.loads(view.stdout.readline())["url"].partition("#")
        code, page = get(url)
        assert code == 200 and b"<!doctype html>" in page and token.encode() not in page
        assert get(url + "stats.json")[0] == 401
        assert get(url + "stats.json", Authorization="Bearer wrong")[0] == 401
        assert get(url, Host="rebound.example:80")[0] == 403
        assert get(url + "../etc/passwd")[0] == 404
        deadline = time.monotonic() + 60
        while "stored" not in (shown := json.loads(get(url + "stats.json", Authorization=f"Bearer {token}")[1])):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert shown["address"] == server.address and shown["capacity"] == 12
    finally:
        view.send_signal(signal.SIGINT)
        view.communicate(timeout=20)
    assert view.returncode == 130


def test_a_view_ends_with_the_job(serve) -> None:
    server = serve()
    address = server.address
    view = subprocess.Popen(
        [*COMMAND, "top", address, "--json", "--interval", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert view.stdout is not None
        assert json.loads(view.stdout.readline())["inserts_total"] == 0
        server.end(signal.SIGINT)
        _, said = view.communicate(timeout=60)
        assert view.returncode == 0 and f"the server at {address} has ended the job" in said
    finally:
        view.kill()
        view.communicate()


def test_figures_for_prometheus(serve) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    server = serve("--metrics-port", "0")
    with Client(server.address, EXAMPLE, name='odd "name"/\\ 1') as client:
        client.send_batch(samples(5))
        client.wait(10)
        code, text = get(server.facts["metrics"])
    assert code == 200
    families = {family.name: family for family in parser.text_string_to_metric_families(text.decode())}
    assert families["echo_store_samples"].type == "gauge" and families["echo_store_samples"].samples[0].value == 5
    assert families["echo_store_samples_inserted"].type == "counter"
    (worker,) = families["echo_worker_samples"].samples
    assert (worker.name, worker.labels, worker.value) == ("echo_worker_samples_total", {"worker": 'odd "name"/\\ 1'}, 5)
    assert families["echo_transport_bytes_received"].samples[0].labels == {"transport": "tcp"}
    copied = families["echo_ingest_round_seconds"]
    assert copied.type == "summary" and {s.labels.get("quantile") for s in copied.samples} == {"0.5", "0.9", "0.99", None}
    states = {s.labels["state"]: s.value for s in families["echo_worker_state"].samples}
    assert sum(states.values()) == 1
    server.end()


def test_a_server_is_drained(serve, echoctl) -> None:
    server = serve()
    address = server.address
    with Client(address, EXAMPLE) as client:
        client.send(EXAMPLE)
        client.wait()
        done = echoctl("drain", address, "--timeout", "5", "--json")
        assert done.code == 0 and done.json == {"address": address, "draining": True}
        ended = server.end(signal.SIGCONT)  # it ends without a signal; this one changes nothing
        assert ended.code == 0 and "1 sample received" in ended.err
    assert echoctl("drain", address).code == 3


def test_doctor_tries_the_token_of_a_server(serve, echoctl, tmp_path: Path) -> None:
    server = serve()
    token = Path(echoctl("token", "create", "--file", tmp_path / "home" / "echo" / "token", "--json").json["file"])
    home = {"XDG_CONFIG_HOME": str(token.parent.parent)}
    done = echoctl("doctor", server.address, "--json", **home)
    (failure,) = [line for line in done.json if line["status"] == "failure"]
    assert failure["what"] == "connection" and f"This observer used the token file {token}" in failure["found"]
    assert failure["fix"].endswith(f"scp -p 127.0.0.1:.config/echo/token {token}")
    away = echoctl("doctor", "tcp://192.0.2.7:5555", "--json", "--timeout", 0.5, **home)
    assert "copy" not in json.dumps(away.json), "this machine has a token"
    token.unlink()
    missing = echoctl("doctor", "tcp://192.0.2.7:5555", "--json", "--timeout", 0.5, **home)
    (failure,) = [line for line in missing.json if line["status"] == "failure"]
    assert f"there is no file {token}" in failure["found"] and "scp -p 192.0.2.7:.config/echo/token" in failure["found"] and not token.exists()
    (told,) = [line for line in missing.json if line["what"] == "token"]
    assert told["status"] == "warning" and told["fix"].endswith(f"scp -p 192.0.2.7:.config/echo/token {token}")
    for address in ([], ["tcp://127.0.0.1:1"]):
        (told,) = [line for line in echoctl("doctor", *address, "--json", "--timeout", 0.5, **home).json if line["what"] == "token"]
        assert told["status"] == "ok" and "is made at first use" in told["found"]
