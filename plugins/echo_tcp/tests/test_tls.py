"""TCP with TLS: certificates, mutual TLS, and who is refused."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import numpy as np
import pytest

from echo_core import Client, Server
from echo_core.errors import EchoTimeoutError, SecurityError
from echo_core.tls import Authority
from echo_tcp.transport import TcpsTransport

EXAMPLE = {"x": np.zeros(4, np.float32), "n": np.zeros((), np.int64)}
TOKEN = "the token of these tests, long enough"


def test_certificates(tmp_path: Path) -> None:
    ours = Authority.create(tmp_path / "authority")
    learner = ours.issue("learner", ["127.0.0.1"])
    worker = ours.issue("worker-3")
    stranger = Authority.create(tmp_path / "other").issue("worker-3")
    given = {"tls_certificate": learner.certificate, "tls_key": learner.key}
    trust = {"tls_authority": ours.certificate, "token": TOKEN, "timeout": 20}
    with Server(EXAMPLE, 2, TcpsTransport(port=0, **given), token=TOKEN) as server:
        with Client(server.address, EXAMPLE, **trust) as client:
            client.send_batch({"x": np.zeros((2, 4), np.float32), "n": np.arange(2)})
            assert server.sample(20) is not None
        with pytest.raises(SecurityError, match="certificate"):
            Client(server.address, EXAMPLE, token=TOKEN, timeout=20)  # who does not know the authority
        with pytest.raises(SecurityError, match="certificate"):
            Client(server.address, EXAMPLE, tls_server_name="another.host", **trust)
        with socket.create_connection(server.address.endpoint, timeout=20) as plain:  # an older TLS
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(plain)
    with Server(EXAMPLE, 2, TcpsTransport(port=0, tls_client_authority=ours.certificate, **given), token=TOKEN) as server:
        with Client(server.address, EXAMPLE, tls_certificate=worker.certificate, tls_key=worker.key, **trust) as client:
            client.request("ping")
            assert server.peers()[0].address.startswith("worker-3@")
        for wrong in ({}, {"tls_certificate": stranger.certificate, "tls_key": stranger.key}):
            with pytest.raises((SecurityError, EchoTimeoutError)):
                Client(server.address, EXAMPLE, **trust | wrong | {"timeout": 2})
        assert server.peers() == []


def test_an_expired_certificate(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")  # openssl's command knows no seconds
    ours = Authority.create(tmp_path / "authority")
    old = ours.issue("learner", ["127.0.0.1"], days=2 / 86400)
    with Server(EXAMPLE, 2, TcpsTransport(port=0, tls_certificate=old.certificate, tls_key=old.key), token=TOKEN) as server:
        time.sleep(2.5)
        with pytest.raises(SecurityError, match="expired"):
            Client(server.address, EXAMPLE, token=TOKEN, tls_authority=ours.certificate, timeout=20)
