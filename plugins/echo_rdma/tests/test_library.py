"""UCX is found, and if there is no usable one, the error says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.base.errors import ConfigError, EchoError, ForkError
from echo_core.base.installing import how_to_install
from echo_rdma import lanes, library
from echo_rdma.transport import RdmaTransport, UcxTransport
from echo_testing.processes import forked

EXAMPLE = {"x": np.zeros(4, np.float32)}
TOKEN = "the-token-of-these-tests-long-enough"


def python(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


SELECT = """
from echo_core import Server
from echo_core.base.errors import ConfigError
import numpy as np
try:
    Server({"x": np.zeros(4)}, 2, "rdma://127.0.0.1:0").start()
except ConfigError as error:
    print(error)
"""


def test_a_machine_without_ucx_is_told_what_to_install(tmp_path: Path) -> None:
    said = python(SELECT, ECHO_UCX_LIBRARY=str(tmp_path / "libucp.so.0"))
    assert how_to_install("echo-rdma[wheel]") in said and "ECHO_UCX_LIBRARY" in said and "libucp.so.0" in said
    said = python("from echo_rdma import library; library._candidates = lambda: []\n" + SELECT, ECHO_UCX_LIBRARY="")
    assert "no libucp was found" in said


def test_a_library_of_something_else_is_named(tmp_path: Path) -> None:
    said = python(SELECT, ECHO_UCX_LIBRARY="libm.so.6")
    assert "libm.so.6 has no ucp_get_version" in said


def test_importing_loads_nothing() -> None:
    code = "import echo_rdma, sys; print('libucp' in open('/proc/self/maps').read(), 'echo_rdma._ucx' in sys.modules)"
    assert python(code).split() == ["False", "False"]
    code = "import echo_core.plugins.discovery as p; p.default.examine(p.TRANSPORTS); import sys; print('libucp' in open('/proc/self/maps').read())"
    assert python(code).split() == ["False"]


def test_the_environment_of_children_is_left_as_it_was(ucx: object) -> None:
    code = "from echo_rdma import library; library.context(); import os; print([n for n in os.environ if n.startswith('UCX_')])"
    assert python(code).strip() == "[]"


@pytest.mark.usefixtures("ucx")
def test_no_transport_left_is_an_error_that_shows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "rc_nothing")
    with pytest.raises(ConfigError, match="UCX_TLS=rc_nothing"):
        Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN).start()


def test_no_silent_fallback(ucx: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    shown, counted = ("tcp/lo", "tcp") if ucx >= lanes.NAMES_LANES else ("lanes it does not name", "")
    with Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN) as server:
        with pytest.raises(EchoError, match=f"{shown}.*no RDMA.*UCX_TLS=tcp"):
            Client(server.address, EXAMPLE, token=TOKEN, require_rdma=True, timeout=10)
        with Client(server.address, EXAMPLE, token=TOKEN) as client:
            assert client.stats()["lanes"].startswith(f"{counted}/" if counted else "")
            assert server.stats().get("transport/rdma/lane_tcp", 0) == (1 if counted else 0)
    with Server(EXAMPLE, 2, "rdma://127.0.0.1:0?require_rdma=true", token=TOKEN) as server:
        with pytest.raises(EchoError, match=f"learner refused.*{shown}.*no RDMA"):
            Client(server.address, EXAMPLE, token=TOKEN, timeout=10)
        assert server.peers() == []


@pytest.mark.parametrize("address", ["rdma://[::1]:0", "ucx://[::]:0"])
def test_addresses_of_ipv6_are_refused(address: str) -> None:
    """When the first worker comes, UCX would write past the memory of its lanes' addresses and crash the learner."""
    with pytest.raises(ConfigError, match="go by IPv4"):
        Server(EXAMPLE, 2, address, token=TOKEN).start()
    with pytest.raises(ConfigError, match="go by IPv4"):
        Client(address.replace(":0", ":1"), EXAMPLE, token=TOKEN)


def test_a_host_that_is_unknown_is_named_with_the_remedy() -> None:
    with pytest.raises(OSError, match="nowhere.invalid.*give an IPv4 address or name of this machine"):
        Server(EXAMPLE, 2, {"type": "rdma", "host": "nowhere.invalid", "port": 0}, token=TOKEN).start()


@pytest.mark.usefixtures("ucx")
def test_errors_of_connecting_show_what_ucx_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_LOG_LEVEL", "fatal")
    with pytest.raises(EchoError, match="UCX is told .*UCX_LOG_LEVEL=fatal"):
        Client("rdma://127.0.0.1:1", EXAMPLE, token=TOKEN, timeout=1)


def test_the_lanes_are_logged_once(ucx: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setattr(lanes, "chosen", {})
    with Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN) as server, Client(server.address, EXAMPLE, token=TOKEN):
        pass
    lines = [record.getMessage() for record in caplog.records if "no RDMA" in record.getMessage() and record.levelname == "WARNING"]
    shown = "tcp/lo" if ucx >= lanes.NAMES_LANES else "lanes it does not name"
    assert len(lines) == 1 and shown in lines[0] and "UCX_TLS=tcp" in lines[0]


@pytest.mark.usefixtures("ucx")
def test_it_describes_what_was_chosen_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setattr(lanes, "chosen", {})
    monkeypatch.setattr(library, "cards", list)
    before = RdmaTransport.describe()
    assert before["UCX settings"] == "UCX_TLS=tcp" and before["RDMA devices"].startswith("none") and str(library.ucx()[0]) in before["UCX"]
    assert before["UCX lanes"] == "none yet; they will be no RDMA: this machine has no RDMA device (/sys/class/infiniband is empty)"
    with Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN) as server, Client(server.address, EXAMPLE, token=TOKEN):
        pass
    after = RdmaTransport.describe()
    assert after["UCX lanes"] == "tcp/lo: no RDMA: this machine has no RDMA device (/sys/class/infiniband is empty)"
    assert UcxTransport.describe() == after


@pytest.mark.parametrize(
    ("cards", "of_wheel", "tls", "why"),
    [
        ([], True, "", "no RDMA device"),
        (["mlx5_0 (DOWN)"], False, "", r"no port is active: mlx5_0 \(DOWN\)"),
        (["mlx5_0 (ACTIVE)"], True, "", "of the wheel"),
        (["mlx5_0 (ACTIVE)"], False, "tcp", "UCX_TLS=tcp leaves none"),
        (["mlx5_0 (ACTIVE)"], False, "^rc,dc,ud", r"UCX_TLS=\^rc,dc,ud leaves none"),
        (["mlx5_0 (ACTIVE)"], False, "^tcp", "these two ends"),
        (["mlx5_0 (ACTIVE)"], False, "rc,tcp", "these two ends"),
        (["mlx5_0 (ACTIVE)"], False, "all", "these two ends"),
    ],
)
def test_the_reason_is_the_first_that_holds(cards: list[str], of_wheel: bool, tls: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cards", lambda: cards)
    monkeypatch.setattr(library, "is_of_wheel", lambda: of_wheel)
    monkeypatch.setenv("UCX_TLS", tls)
    assert re.search(why, lanes.why_no_rdma())


@pytest.mark.parametrize(
    ("found", "scheme", "reads"),
    [
        ("rc_mlx5/mlx5_0:1", "", True),
        ("tcp/lo", "", False),
        ("ud_verbs/rxe0:1", "", False),
        ("rc_verbs/rxe0:1", "get_zcopy", True),
        ("rc_verbs/rxe0:1", "put_zcopy", False),
    ],
)
def test_slots_are_received_into_only_where_the_receiver_moves_the_bytes(found: str, scheme: str, reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if scheme:
        monkeypatch.setenv("UCX_RNDV_SCHEME", scheme)
    assert lanes.receiver_reads(("tcp/", found)) is reads


def test_without_ucx_the_description_says_what_to_install() -> None:
    code = "from echo_rdma.transport import RdmaTransport; print(RdmaTransport.describe()['UCX'])"
    said = python(code, ECHO_UCX_LIBRARY="/nowhere/libucp.so.0")
    assert "/nowhere/libucp.so.0" in said and how_to_install("echo-rdma[wheel]") in said


@pytest.mark.usefixtures("ucx")
def test_a_forked_child_is_told() -> None:
    with Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN):

        def child() -> None:
            with pytest.raises(ForkError, match="spawn"):
                Server(EXAMPLE, 2, "rdma://127.0.0.1:0", token=TOKEN).start()

        forked(child)


FORKS = """
import os, sys, warnings
import numpy as np
import echo_net.channel.connection  # its hook for forks comes first, as where a client of another transport was there before
from echo_core import Client
warnings.simplefilter("ignore")  # forking with threads is the point
with Client(sys.argv[1], {"x": np.zeros(4, np.float32)}) as client:
    for number in range(8):
        client.send({"x": np.full(4, number, np.float32)})
        client.wait()
        if number == 3 and (child := os.fork()) == 0:
            sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    print(client.stats()["acknowledged"], client.stats()["reconnects"])
"""


@pytest.mark.usefixtures("ucx")
def test_a_fork_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("ECHO_TOKEN", TOKEN)
    with Server(EXAMPLE, 1, "rdma://127.0.0.1:0", num_buffers=16) as server:
        assert python(FORKS, str(server.address)).split() == ["8", "0"]
        for number in range(8):
            one = server.sample(timeout=30)
            assert one is not None and one.batch["x"][0, 0] == number
            del one


@pytest.mark.usefixtures("ucx")
def test_an_address_beyond_this_machine_needs_authentication() -> None:
    from echo_core.base.errors import SecurityError

    with pytest.raises(SecurityError, match="allow_insecure"):
        Server(EXAMPLE, 2, "rdma://0.0.0.0:0?auth=false").start()


def test_memory_that_may_be_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert "8192 KiB" in library.memory_lock_advice() and "ulimit -l unlimited" in library.memory_lock_advice()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert library.memory_lock_advice() == ""


@pytest.mark.usefixtures("ucx")
def test_the_check_says_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from echo_rdma import check

    monkeypatch.setattr(check, "SECONDS", 0.4)
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert check.main([]) == 0
    said = capsys.readouterr().out
    assert "UCX_TLS=tcp" in said and "no RDMA" in said and "28 KiB" in said and "samples/s" in said
    assert check.main(["--require-rdma"]) == 1
    assert "require_rdma" in capsys.readouterr().out
