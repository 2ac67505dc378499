"""Behind a load balancer: a real nginx and a real Envoy in front of a learner, as docs/grpc.md says to set them up, in plain text and ending TLS."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, SecurityError, Server
from echo_core.security.tls import Authority
from echo_testing.ports import free_port
from echo_testing.processes import until
from echo_testing.samples import Tally, example, stacked

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc.md"

pytestmark = pytest.mark.needs("echo-grpc", "echo-samplers")


class Proxy:
    """A proxy with the documented configuration: a plain and a TLS port in front of `backend`."""

    language = ""  # of its configuration, as docs/grpc.md marks it
    binary: str | None = None

    def __init__(self, folder: Path, backend: int) -> None:
        self.plain, self.secure = free_port(), free_port()
        self.authority = Authority.create(folder / "authority")
        identity = self.authority.issue("learner", ["127.0.0.1"])
        block = re.search(rf"```{self.language}\n(.*?)```", PAGE.read_text(), re.S)
        assert block, f"docs/grpc.md shows no configuration in {self.language}"
        text = block[1]
        paths = {"/etc/echo/learner.pem": str(identity.certificate), "/etc/echo/learner.key": str(identity.key)}
        for documented, real in {**paths, **self.places(backend)}.items():
            assert documented in text, documented
            text = text.replace(documented, real)
        self._folder = folder
        self._command = self.configure(text)
        self.start()

    def places(self, backend: int) -> dict[str, str]:
        """What stands for the addresses of the documented configuration."""
        raise NotImplementedError

    def configure(self, text: str) -> list[str]:
        """Write the configuration; what runs it."""
        raise NotImplementedError

    def start(self) -> None:
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._answers, "the proxy listens")

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.secure)) == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Nginx(Proxy):
    language = "nginx"
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

    def places(self, backend: int) -> dict[str, str]:
        return {
            "listen 80 http2": f"listen 127.0.0.1:{self.plain} http2",
            "listen 443 ssl http2": f"listen 127.0.0.1:{self.secure} ssl http2",
            "10.0.0.5:50051": f"127.0.0.1:{backend}",
        }

    def configure(self, text: str) -> list[str]:
        folder = self._folder
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = folder / "nginx.conf"
        config.write_text(
            f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n"
        )
        return [str(self.binary), "-p", str(folder), "-c", str(config)]


class Envoy(Proxy):
    language = "yaml"
    binary = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))

    def places(self, backend: int) -> dict[str, str]:
        return {
            "address: 0.0.0.0, port_value: 80}": f"address: 127.0.0.1, port_value: {self.plain}}}",
            "address: 0.0.0.0, port_value: 443}": f"address: 127.0.0.1, port_value: {self.secure}}}",
            "address: 10.0.0.5, port_value: 50051}": f"address: 127.0.0.1, port_value: {backend}}}",
        }

    def configure(self, text: str) -> list[str]:
        config = self._folder / "envoy.yaml"
        config.write_text(text)
        # Hot restarts would share memory and a socket with other Envoys of this machine.
        return [str(self.binary), "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(example(), 20, "grpc://127.0.0.1:0") as server:
        yield server


@pytest.fixture(params=[Nginx, Envoy])
def proxy(request: pytest.FixtureRequest, tmp_path: Path, server: Server) -> Iterator[Proxy]:
    kind: type[Proxy] = request.param
    if kind.binary is None:
        pytest.skip(f"there is no {kind.__name__.lower()}")
    proxy = kind(tmp_path, server.port)
    yield proxy
    proxy.end()


@pytest.mark.parametrize("secure", [False, True])
def test_everything_passes_a_proxy(server: Server, proxy: Proxy, secure: bool) -> None:
    address = f"grpcs://127.0.0.1:{proxy.secure}" if secure else f"grpc://127.0.0.1:{proxy.plain}"
    trust = {"tls_authority": proxy.authority.certificate} if secure else {}
    clients = [Client(address, example(), timeout=60, name=f"w{maker}", **trust) for maker in range(3)]
    server.publish({"w": np.arange(5_000_000, dtype=np.float32)})
    tally = Tally()
    for maker, client in enumerate(clients):
        for first in range(0, 2000, 100):
            client.send_batch(stacked(maker, first, 100))
            while tally.count < maker * 2000 + first + 100:
                tally.add(server.sample(timeout=60).batch)
        assert client.weights(60).params["w"][-1] == 4_999_999
        client.wait()
    tally.check(dict.fromkeys(range(3), 2000))
    until(lambda: {peer.weights_version for peer in server.peers()} == {1}, "the receipts have come")
    assert len(server.peers()) == 3
    with pytest.raises(SecurityError, match="ECHO_TOKEN"):  # the proxy lets everybody through, the learner does not
        Client(address, example(), token="a-token-of-somebody-else", timeout=60, **trust)
    for client in clients:
        client.close()


def test_a_proxy_that_is_restarted_loses_nothing(server: Server, proxy: Proxy) -> None:
    with Client(f"grpc://127.0.0.1:{proxy.plain}", example(), timeout=60) as client:
        client.send_batch(stacked(1, 0, 30))
        client.wait()
        proxy.end()
        client.send_batch(stacked(1, 30, 30))
        proxy.start()
        client.wait()
        stats = client.stats()
        assert stats["reconnects"] >= 1 and stats["learner_restarts"] == 0
    tally = Tally()
    while tally.count < 60:
        tally.add(server.sample(timeout=60).batch)
    tally.check({1: 60})
