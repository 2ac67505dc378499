"""Behind a load balancer: a real nginx in front of a learner, as docs/grpc.md says to set it up, in plain text and ending TLS."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, SecurityError, Server
from echo_core.testing.ports import free_port
from echo_core.testing.processes import until
from echo_core.testing.samples import Tally, example, stacked
from echo_core.tls import Authority

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc.md"

pytestmark = [
    pytest.mark.needs("echo-grpc", "echo-samplers"),
    pytest.mark.skipif(NGINX is None, reason="there is no nginx"),
]


class Proxy:
    """nginx with the documented configuration: a plain and a TLS port in front of `backend`."""

    def __init__(self, folder: Path, backend: int) -> None:
        self.plain, self.secure = free_port(), free_port()
        self.authority = Authority.create(folder / "authority")
        identity = self.authority.issue("learner", ["127.0.0.1"])
        block = re.search(r"```nginx\n(.*?)```", PAGE.read_text(), re.S)
        assert block, "docs/grpc.md shows no nginx configuration"
        text = block[1]
        for documented, real in [
            ("listen 80 http2", f"listen 127.0.0.1:{self.plain} http2"),
            ("listen 443 ssl http2", f"listen 127.0.0.1:{self.secure} ssl http2"),
            ("/etc/echo/learner.pem", str(identity.certificate)),
            ("/etc/echo/learner.key", str(identity.key)),
            ("10.0.0.5:50051", f"127.0.0.1:{backend}"),
        ]:
            assert documented in text, documented
            text = text.replace(documented, real)
        paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = folder / "nginx.conf"
        config.write_text(
            f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{paths}{text}\n}}\n"
        )
        assert NGINX is not None
        self._process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL)
        until(lambda: self._answers(folder), "nginx listens")

    def _answers(self, folder: Path) -> bool:
        assert self._process.poll() is None, (folder / "error.log").read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.secure)) == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(example(), 20, "grpc://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def proxy(tmp_path: Path, server: Server) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path, server.port)
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
        Client(address, example(), token="a token of somebody else", timeout=60, **trust)
    for client in clients:
        client.close()


def test_a_proxy_that_is_restarted_loses_nothing(server: Server, proxy: Proxy, tmp_path: Path) -> None:
    with Client(f"grpc://127.0.0.1:{proxy.plain}", example(), timeout=60) as client:
        client.send_batch(stacked(1, 0, 30))
        client.wait()
        proxy.end()
        client.send_batch(stacked(1, 30, 30))
        second = Proxy.__new__(Proxy)
        config = tmp_path / "nginx.conf"
        assert NGINX is not None
        second._process = subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            client.wait()
        finally:
            stats = client.stats()
            client.close()
            second.end()
        assert stats["reconnects"] >= 1 and stats["learner_restarts"] == 0
    tally = Tally()
    while tally.count < 60:
        tally.add(server.sample(timeout=60).batch)
    tally.check({1: 60})
