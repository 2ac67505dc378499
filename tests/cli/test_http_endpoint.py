"""The HTTP server of figures: clients that hang up leave nothing on stderr, and other sites' pages get no figures."""

from __future__ import annotations

import http.client
import logging
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from echo_core import Server
from echoctl.http_endpoint import HttpEndpoint, Request
from echoctl.prometheus import Exporter

pytestmark = pytest.mark.needs("echo-samplers")


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    with Server(np.zeros(2), 2) as server:
        made = Exporter(server)
        yield made
        made.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def status(port: int, host: str | None, address: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(address, port, timeout=20)
    connection.putrequest("GET", "/metrics", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_clients_that_hang_up_are_no_errors(exporter: Exporter, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = port_of(exporter.url)
    for number in range(200):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n"[: 5 + number])
    time.sleep(0.5)
    assert status(port, "localhost") == 200
    assert capfd.readouterr().err == "" and caplog.text == ""


@pytest.mark.parametrize(
    "host, code",
    [
        (None, 200), ("127.0.0.1", 200), ("127.0.0.1:80", 200), ("localhost", 200), ("LocalHost:9090", 200), ("[::1]", 200), ("[::1]:80", 200),
        ("evil.example", 403), ("evil.example:9090", 403), ("127.0.0.1.evil.example", 403), ("[::2]", 403), ("", 403),
    ],
)  # fmt: skip
def test_on_loopback_only_this_machine_is_answered(exporter: Exporter, host: str | None, code: int) -> None:
    assert status(port_of(exporter.url), host) == code


def test_elsewhere_every_name_is_answered() -> None:
    with Server(np.zeros(2), 2) as server:
        exporter = Exporter(server, host="0.0.0.0")
        assert status(port_of(exporter.url), "learner.cluster") == 200
        exporter.close()


def test_figures_are_served_over_ipv6() -> None:
    with Server(np.zeros(2), 2) as server:
        exporter = Exporter(server, host="::1")
        assert exporter.url.startswith("http://[::1]:")
        assert status(port_of(exporter.url), "[::1]", "::1") == 200
        exporter.close()


def test_a_defect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Request):
        def do_GET(self) -> None:
            raise KeyError("figure")

    endpoint = HttpEndpoint(Broken, "metrics", "127.0.0.1", 0)
    with pytest.raises(http.client.HTTPException):
        status(port_of(endpoint.url), None)
    endpoint.close()
    assert "a request of 127.0.0.1 failed" in caplog.text and "KeyError" in caplog.text
