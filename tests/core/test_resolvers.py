"""Where a client's server is: Echo's own resolvers, those of plugins, and what a client does with them."""

from __future__ import annotations

import math
import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core import Client, Server
from echo_core.base import waiting
from echo_core.base.address import Address
from echo_core.base.errors import AddressError, ConfigError, EchoError, EchoTimeoutError, PluginConflict, PluginError, PluginNotFound
from echo_core.client.observer import Observer
from echo_core.config.config import client_arguments
from echo_core.plugins import discovery
from echo_core.plugins.discovery import RESOLVERS, PluginHost, transport_class
from echo_core.plugins.resolvers import dns, file, static, static_list

EXAMPLE = {"x": np.zeros(2, np.float32)}
over_tcp = pytest.mark.needs("echo-samplers", "echo-tcp")


def test_a_file_says_where_the_server_is(tmp_path: Path) -> None:
    place = tmp_path / "address"
    address = Address.parse(f"file://{place}")
    assert file(address) is None
    place.write_text("\n")
    assert file(address) is None
    place.write_text("tcp://127.0.0.1:5555\n")
    assert file(address) == Address("tcp", "127.0.0.1", 5555)
    place.write_text("# several\ntcp://a:1\n\ntcp://b:2\n")
    assert {str(file(address)) for _ in range(100)} == {"tcp://a:1", "tcp://b:2"}


@pytest.mark.parametrize("secret", ["swordfish:x:0:0", "https://user:swordfish@host", "tcp://swordfish@host:1", "a swordfish", "https://hooks/swordfish"])
def test_no_error_shows_what_a_file_contains(tmp_path: Path, secret: str) -> None:
    """An address may name the wrong file, such as one with passwords."""
    place = tmp_path / "secrets"
    place.write_text(f"# a comment\n{secret}\n")
    with pytest.raises(EchoError) as raised:
        Client(f"file://{place}", EXAMPLE, timeout=0.1)
    shown = "".join(traceback.format_exception(raised.value))
    assert str(place) in str(raised.value) and "swordfish" not in shown


def test_a_file_that_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(AddressError, match=f"{odd} is not a plain file"):
            file(Address.parse(f"file://{odd}"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    with pytest.raises(AddressError, match="line 1 of .*/binary is not an address"):
        file(Address.parse(f"file://{tmp_path / 'binary'}"))
    (tmp_path / "large").write_bytes(b"tcp://a:1\n" * 200_000)
    with pytest.raises(AddressError, match="has more than 1048576 bytes"):
        file(Address.parse(f"file://{tmp_path / 'large'}"))


def test_a_list_of_addresses() -> None:
    address = Address.parse("static://any?to=tcp://a:1,tcp://b:2")
    assert {str(static(address)) for _ in range(100)} == {"tcp://a:1", "tcp://b:2"}
    with pytest.raises(AddressError, match="names no addresses"):
        static(Address.parse("static://any"))
    for nothing in ("", ",", ",,"):
        with pytest.raises(AddressError, match="names no addresses"):
            static(Address("static", path="any", options={"to": nothing}))
    resolve = static_list(["tcp://a:1", "tcp://b:2"])
    assert [str(resolve(address)) for _ in range(3)] == ["tcp://a:1", "tcp://b:2", "tcp://a:1"]
    with pytest.raises(AddressError, match="must not be empty"):
        static_list([])


def test_names_of_dns() -> None:
    found = dns(Address.parse("dns://localhost:5555?transport=tcp&window_bytes=4"))
    assert found is not None and (found.scheme, found.port, found.options) == ("tcp", 5555, {"window_bytes": "4"})
    assert found.host in ("127.0.0.1", "::1")
    assert dns(Address.parse("dns://localhost:5555?transport=grpc")).scheme == "grpc"  # type: ignore[union-attr]
    assert dns(Address.parse("dns://localhost:5555?transport=tcps")) == Address("tcps", "localhost", 5555), "the certificate is for the name"
    assert dns(Address.parse("dns://nobody.invalid:5555?transport=tcp")) is None
    with pytest.raises(AddressError, match=r"end it with \?transport=NAME"):
        dns(Address.parse("dns://localhost:5555"))


class NameServer:
    """Answers questions about `_echo._tcp.example.org`."""

    def __init__(self, *records: str) -> None:
        import dns.message
        import dns.rrset

        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

        def serve() -> None:
            while True:
                data, peer = self._socket.recvfrom(4096)
                if not data:
                    return
                question = dns.message.from_wire(data)
                answer = dns.message.make_response(question)
                name = question.question[0].name
                if records and str(name) == "_echo._tcp.example.org.":
                    answer.answer.append(dns.rrset.from_text(name, 5, "IN", "SRV", *records))
                else:
                    answer.set_rcode(3)
                self._socket.sendto(answer.to_wire(), peer)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    resolver = pytest.importorskip("dns.resolver")
    servers: list[NameServer] = []

    def answers(*records: str) -> None:
        servers.append(NameServer(*records))
        own = resolver.Resolver(configure=False)
        own.nameservers, own.port = ["127.0.0.1"], servers[-1].port
        monkeypatch.setattr(resolver, "default_resolver", own)

    yield answers
    for server in servers:
        server.close()


def test_records_of_services(answers: Callable[..., None]) -> None:
    address = Address.parse("dns://_echo._tcp.example.org?transport=shm")
    answers("10 5 5001 a.example.org.", "10 5 5002 b.example.org.", "20 5 5003 c.example.org.")
    assert {str(dns(address)) for _ in range(100)} == {"shm://a.example.org:5001", "shm://b.example.org:5002"}
    answers()
    assert dns(address) is None


@over_tcp
def test_a_client_finds_its_server_by_a_file(tmp_path: Path) -> None:
    place = tmp_path / "address"
    with Server(EXAMPLE, 1, transport="tcp://127.0.0.1:0") as server:
        threading.Timer(0.1, lambda: place.write_text(f"{server.address}\n")).start()
        with Client(f"file://{place}", EXAMPLE) as client:
            client.send(EXAMPLE)
            client.wait()
            assert server.sample(10) is not None
            assert str(pickle.loads(pickle.dumps(client)).address) == f"file://{place}"
        with Observer(f"file://{place}") as observer:
            assert observer.stats()["store/batch_size"] == 1
        with Client("static://any?to=tcp://127.0.0.1:1", EXAMPLE, resolve=lambda address: str(server.address)) as client:
            assert client.request("ping")
        port = server.port
        with Client(f"dns://localhost:{port}?transport=tcp&window_bytes=1000", EXAMPLE) as client:
            assert client.request("ping")


@over_tcp
def test_a_resolver_that_does_not_answer_is_asked_once_and_holds_nobody_up() -> None:
    answer, asked = threading.Event(), 0

    def resolve(address: Address) -> str:
        nonlocal asked
        asked += 1
        answer.wait()
        return str(server.address)

    with Server(EXAMPLE, 1, transport="tcp://127.0.0.1:0") as server:
        try:
            with pytest.raises(EchoTimeoutError, match=r"tcp://x:1 was not found within 0 s: its resolver has not answered for 0.1 s"):
                Client("tcp://x:1", EXAMPLE, timeout=0, resolve=resolve)
            assert asked == 1
            threading.Timer(0.3, answer.set).start()
            with Client("tcp://x:1", EXAMPLE, resolve=resolve, timeout=math.inf) as client:
                assert client.request("ping", timeout=10)
        finally:
            answer.set()


class Clock:
    """The time of `echo_core.base.waiting`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@over_tcp
def test_finding_a_server_and_connecting_to_it_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left = Clock(), list[tuple[float, float]]()
    monkeypatch.setattr(waiting, "time", clock)
    over = transport_class("tcp")
    real = over.connect.__func__

    def connect(cls: Any, address: Address, spec: Any, **options: Any) -> Any:
        left.append((options["timeout"], options["connect_timeout"]))
        clock.now += 5  # it took so long
        return real(cls, address, spec, **options)

    def resolve(address: Address) -> str:
        clock.now += 3
        return str(server.address)

    monkeypatch.setattr(over, "connect", classmethod(connect))
    tables = [echo_core.Table(name, EXAMPLE, capacity=10, sampler="uniform") for name in "ab"]
    with Server(transport="tcp://127.0.0.1:0", tables=tables, batch_size=1) as server:
        with Client("tcp://x:1", EXAMPLE, table="a", tables={"b": EXAMPLE}, resolve=resolve, weights=server.address, timeout=20) as client:
            assert left == [(20, 17), (20, 9)]  # each dial asks the resolver again; the second one is for the weights
            client.send(EXAMPLE, table="b")
            client.wait()
            assert left[2:] == [(20, None)]  # a connection that is made later has its own time
        monkeypatch.setattr(discovery, "resolver", lambda scheme: resolve)
        monkeypatch.setattr(discovery, "resolves", lambda scheme: scheme == "slow")
        with Observer("slow://x", timeout=20):
            assert left[3:] == [(20, 17)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_in_a_resolver_ends_it(error: type[BaseException]) -> None:
    def resolve(address: Address) -> None:
        raise error

    with pytest.raises(error):
        Client("tcp://x:1", EXAMPLE, timeout=10, resolve=resolve)


@pytest.mark.parametrize("timeout", [-1.0, math.nan])
def test_an_invalid_timeout_asks_nobody(timeout: float) -> None:
    def resolve(address: Address) -> None:
        raise AssertionError("it was asked")

    with pytest.raises(ValueError, match=f"timeout must be at least 0 seconds, not {timeout}"):
        Client("tcp://x:1", EXAMPLE, timeout=timeout, resolve=resolve)


class Nobody:
    """A resolver that cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, address: Address) -> None:
        return None


@over_tcp
def test_a_client_that_finds_nobody_says_why(tmp_path: Path) -> None:
    with pytest.raises(EchoTimeoutError, match=r"was not found within 0.1 s: it is not up yet \(its file is missing or empty\)"):
        Client(f"file://{tmp_path / 'address'}", EXAMPLE, timeout=0.1)
    with pytest.raises(EchoTimeoutError, match=r"it is not up yet \(no name server knows the name\)"):
        Client("dns://nobody.invalid:5?transport=tcp", EXAMPLE, timeout=0.1)
    with pytest.raises(EchoTimeoutError, match=r"it is not up yet \(its resolver returned None\)"):
        Client("tcp://127.0.0.1:1", EXAMPLE, timeout=0.1, resolve=Nobody())
    with pytest.raises(EchoTimeoutError, match="its resolver failed: KeyError: 'x'"):
        Client("tcp://127.0.0.1:1", EXAMPLE, timeout=0.1, resolve=lambda address: {}["x"])
    with pytest.raises(ConfigError, match="resolve must be callable"):
        Client("tcp://127.0.0.1:1", EXAMPLE, resolve="tcp://127.0.0.1:2")  # type: ignore[arg-type]
    for number in ("3", None):
        with pytest.raises(ConfigError, match=f"timeout must be a number of seconds, not {number!r}"):
            Client("tcp://127.0.0.1:1", EXAMPLE, timeout=number, resolve=Nobody())  # type: ignore[arg-type]
    with pytest.raises(PluginNotFound, match="nowhere"):
        Client("nowhere://a:1", EXAMPLE, timeout=0.1)
    with pytest.raises(AddressError, match='tcp://127.0.0.1:1: its resolver returned no address: "somewhere!" has no scheme'):
        Client("tcp://127.0.0.1:1", EXAMPLE, timeout=0.1, resolve=lambda address: "somewhere!")
    with pytest.raises(PluginNotFound, match="tcp://127.0.0.1:1: its resolver returned an address that begins with nowhere://, but no transport"):
        Client("tcp://127.0.0.1:1", EXAMPLE, timeout=0.1, resolve=lambda address: "nowhere://a:1")
    with pytest.raises(ConfigError, match="give it in code"):
        Client("tcp://127.0.0.1:1?resolve=x", EXAMPLE, timeout=0.1)


@over_tcp
def test_a_server_that_moved_to_another_transport_is_not_reached_by_this_client() -> None:
    place = ["", "grpc://127.0.0.1:1"]
    with Server(EXAMPLE, 1, transport="tcp://127.0.0.1:0") as server:
        place[0] = str(server.address)
        client = Client("tcp://any:1", EXAMPLE, timeout=0.3, resolve=lambda address: place[0])
        place.pop(0)
        server.close(restarting=True)
    with pytest.raises(ConnectionError, match="connects over tcp; make a new one"):
        client.wait(0) if client.stats()["connected"] else client.request("ping", timeout=5)
    with pytest.raises(ConnectionError):
        client.send(EXAMPLE)
        client.close()


def test_resolvers_of_plugins(site: Path, install: Callable[..., None]) -> None:
    source = "def find(address):\n    return 'tcp://h:' + address.options['n']\nodd = 3\n"
    install("echo-cluster", "1", RESOLVERS, {"cluster": "fake_cluster:find", "odd": "fake_cluster:odd", "file": "fake_cluster:find"}, fake_cluster=source)
    host = PluginHost()
    assert host.resolver("cluster")(Address.parse("cluster://replay?n=7")) == "tcp://h:7"
    assert host.resolves("cluster") and not host.resolves("way") and not host.resolves("nobody")
    assert host.resolver("file") is file, "Echo's own schemes win"
    with pytest.raises(PluginError, match="must name something to call"):
        host.resolver("odd")
    with pytest.raises(PluginNotFound, match="no resolver named 'nobody'"):
        host.resolver("nobody")
    install("echo-other", "1", RESOLVERS, {"cluster": "fake_cluster:find"})
    with pytest.raises(PluginConflict, match="echo-cluster 1, echo-other 1"):
        PluginHost().resolver("cluster")


def test_a_configuration_with_a_resolver() -> None:
    arguments: dict[str, Any] = client_arguments({"client": {"address": "dns://learner:5555?transport=tcp", "window_bytes": 1 << 20, "timeout": 3.0}})
    assert (str(arguments["address"]), arguments["window_bytes"], arguments["timeout"]) == ("dns://learner:5555?transport=tcp", 1 << 20, 3.0)
